//! The proof of holding a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::ask::Ask;
use crate::engine::clock::Instant;
use crate::engine::hold::Hold;
use crate::engine::owner::Owner;
use crate::engine::terms::Deadline;
use crate::error::{Error, Loss};
use crate::net::acquire::acquire;
use crate::net::release;
use crate::net::state::{Inner, State};
use crate::wire::protocol::Queueing;

/// Holds a lock until it is released, dropped, or lost.
///
/// [`release`](Self::release) is the way to end it. Dropping it sends the
/// release and leaves the reply to the background: that never blocks and never
/// fails, in or out of a runtime, also in a panic; if the runtime is gone, the
/// lock is free when its lease ends.
///
/// A lock that rests on a lease can be lost: see [`lost`](Self::lost), and
/// [`fence`](Self::fence) for what to do about it.
///
/// # Examples
///
/// ```no_run
/// # async fn work() {}
/// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
/// let guard = mutex.lock().await?;
/// tokio::select! {
///     () = work() => guard.release().await?,
///     loss = guard.lost() => eprintln!("stopped: the lock was lost, {loss}"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct Guard {
    inner: Arc<Inner>,
    hold: Arc<Hold>,
    /// What this guard needs, which may be less than how the lock is held.
    ask: Ask,
    open: bool,
}

impl Guard {
    pub(crate) fn new(inner: Arc<Inner>, hold: Arc<Hold>, ask: Ask) -> Self {
        let open = true;
        Self {
            inner,
            hold,
            ask,
            open,
        }
    }

    /// The fencing token: larger than that of every earlier holder.
    ///
    /// A positive number below 2^53. Send it along with what is done under
    /// the lock, and have the receiver refuse a smaller one than it has seen:
    /// then a holder that does not know yet that it lost the lock does no
    /// harm. Entering again and renewal keep it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// let guard = mutex.lock().await?;
    /// let sql = format!("UPDATE account SET fence = {0} WHERE fence <= {0}", guard.fence());
    /// # Ok(()) }
    /// ```
    pub fn fence(&self) -> u64 {
        self.hold.fence()
    }

    /// Who holds it.
    pub fn owner(&self) -> &Owner {
        self.hold.claims.owner()
    }

    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        &self.hold.claims.first().key
    }

    /// For how long the lock is held for certain; zero if it was lost.
    ///
    /// Counted on this machine's clock from a moment before the grant, less 2 ms
    /// and a hundredth of the lease. Each renewal sets it anew.
    pub fn remaining(&self) -> Duration {
        match self.hold.loss() {
            Some(_) => Duration::ZERO,
            None => self
                .hold
                .valid_until()
                .saturating_duration_since(Instant::now()),
        }
    }

    /// Whether the lock is held for certain at this moment.
    ///
    /// Compares with the clock when it is called, so it is right also if the
    /// runtime could not run for a while. Once false it stays false.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn write() {}
    /// # fn example(guard: &rlock_client::Guard) {
    /// if guard.is_valid() {
    ///     write();
    /// }
    /// # }
    /// ```
    pub fn is_valid(&self) -> bool {
        self.loss().is_none()
    }

    /// Why the lock was lost; `None` while it is held.
    pub fn loss(&self) -> Option<Loss> {
        self.hold.loss()
    }

    /// Waits until the lock is lost.
    ///
    /// It is, for the holder, before the server can grant it to another: when
    /// the lease ends by this process's clock, without contact to the server
    /// too. It is at once when the server says so: after a forced release, a
    /// `DEL` or a flush. Never resolves while the lock is held.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(guard: rlock_client::Guard) {
    /// let loss = guard.lost().await;
    /// eprintln!("{loss}");
    /// # }
    /// ```
    pub async fn lost(&self) -> Loss {
        self.hold.lost().await
    }

    /// Releases the lock and waits for the server's word.
    ///
    /// The next waiter gets it in the same moment. If other guards of the
    /// same owner hold it too, only this one ends, and nothing is sent.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the lock was lost before; the server changed nothing;
    /// - [`Error::Unavailable`]: no answer within the client's patience, or
    ///   another call of the same owner has been at work for as long; the
    ///   background goes on trying until the lease ends;
    /// - [`Error::Denied`], [`Error::NotALock`]: the server refuses.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the release to the background, as dropping
    /// the guard does.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// let guard = mutex.lock().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn release(mut self) -> Result<(), Error> {
        if let Some(loss) = self.loss() {
            return Err(Error::Lost(loss));
        }
        let deadline = Deadline::after(self.inner.state.limits.patience);
        let Some(_turn) = deadline.bound(self.hold.claims.turn()).await else {
            return Err(deadline.unavailable(None));
        };
        if self.hold.leave_unless_last(self.ask) {
            self.open = false;
            return Ok(());
        }
        let outcome = release::release(&self.inner.state, &self.hold).await;
        // Unless there was no answer, nothing is left to do.
        if !matches!(outcome, Err(Error::Unavailable { .. })) {
            self.open = false;
            self.hold.leave(self.ask);
        }
        outcome
    }

    /// Asks for more of what this guard holds.
    pub(crate) async fn ask_for(
        &self,
        ask: Ask,
        queueing: Queueing,
    ) -> Result<Option<Self>, Error> {
        let (claims, terms) = (self.hold.claims.clone(), self.hold.terms);
        let hold = acquire(self.state(), claims, ask, terms, queueing).await?;
        Ok(hold.map(|hold| Self::new(Arc::clone(&self.inner), hold, ask)))
    }

    pub(crate) fn state(&self) -> &Arc<State> {
        &self.inner.state
    }

    /// The hold, which other guards of the same owner may share.
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn ask(&self) -> Ask {
        self.ask
    }

    /// Has this guard need the lock in shared mode only; whether no other
    /// guard needs it exclusively.
    pub(crate) fn share(&mut self) -> bool {
        self.ask = Ask::Shared;
        self.hold.leave_writers()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.open && self.hold.leave(self.ask) {
            release::dropped(&self.inner.state, Arc::clone(&self.hold));
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("owner", self.owner())
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .finish()
    }
}
