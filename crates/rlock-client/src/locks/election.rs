//! Elections: who leads, what it has published, and how others learn of it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use rlock_engine::endpoint::Change;
use rlock_engine::engine::Id;
use rlock_engine::engine::claims::Owner;
use rlock_engine::engine::terms::{Ask, Queueing, Terms, Value};
use rlock_engine::error::Error;
use rlock_engine::session::{Call, Outcome};
use rlock_engine::wire::inspect::Leader;

use crate::locks::guard::{Guard, Kind, OneKey, sealed};
use crate::locks::{Granted, Lock};
use crate::pump::Inner;
use crate::pump::call::{call, done};

/// The right to lead. One owner at a time has it, first come, first served, and
/// publishes a value with it, such as its address.
///
/// Made by [`Client::election`](crate::Client::election); cheap to clone. It is
/// the lock at its key. A holder that did not campaign keeps candidates
/// waiting, but is not a leader, because it publishes nothing.
///
/// # Examples
///
/// ```no_run
/// # async fn serve() {}
/// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// let leadership = client.election("orders").campaign("10.0.0.7:80").await?;
/// tokio::select! {
///     () = serve() => leadership.resign().await?,
///     loss = leadership.loss() => eprintln!("leads no more: {loss}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct Election {
    lock: Lock,
}

impl Election {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock }
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.lock.key
    }

    /// The same election with `owner` as the candidate, which may already lead.
    ///
    /// If it does, it continues to lead under the same fence and terms, with
    /// the new value; see [`Mutex::by`](crate::Mutex::by).
    pub fn by(&self, owner: &Owner) -> Self {
        Self::new(self.lock.by(owner))
    }

    /// The same, on `terms` from the next campaign on.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// // Half a second after a leader's process has died, the next one leads.
    /// let terms = rlock_client::Terms::new().bound(Duration::from_millis(500))?;
    /// let election = client.election("orders").with(terms);
    /// # Ok(()) }
    /// ```
    pub fn with(&self, terms: Terms) -> Self {
        Self::new(self.lock.with(terms))
    }

    /// Waits until this candidate leads, without limit, and publishes `value` from
    /// then on: any bytes, 0 to 1024 of them.
    ///
    /// It waits as [`Mutex::lock`](crate::Mutex::lock) does.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::lock`](crate::Mutex::lock), and [`Error::OutOfRange`] for
    /// a value of more than 1024 bytes. A module that knows no values refuses
    /// it with [`Error::Refused`]; one that can remember no more of them
    /// (`rlock.max-watches`), with [`Error::QueueFull`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing on the server, as for
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(election: rlock_client::Election) -> Result<(), rlock_client::Error> {
    /// let leadership = election.campaign("10.0.0.7:80").await?;
    /// # Ok(()) }
    /// ```
    pub async fn campaign(&self, value: impl AsRef<[u8]>) -> Result<Leadership, Error> {
        let lock = self.lock.publishing(Value::new(value.as_ref())?);
        lock.wait_for(Ask::Exclusive).await.map(Guard::new)
    }

    /// The same for at most `wait`; `None` if the time was not enough.
    ///
    /// `wait` is rounded up to whole milliseconds, at most what the server allows
    /// (24 h by default). With zero it leads at once or not at all. See
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Errors
    ///
    /// The errors of [`campaign`](Self::campaign), [`Error::Unavailable`] if the server
    /// could not be reached in that time, and [`Error::OutOfRange`] above 30 days.
    ///
    /// # Cancel safety
    ///
    /// As for [`campaign`](Self::campaign).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(election: rlock_client::Election) -> Result<(), rlock_client::Error> {
    /// let wait = Duration::from_secs(5);
    /// let Some(leadership) = election.campaign_for("10.0.0.7:80", wait).await? else {
    ///     return Ok(()); // Somebody else has led for 5 s.
    /// };
    /// # Ok(()) }
    /// ```
    pub async fn campaign_for(
        &self,
        value: impl AsRef<[u8]>,
        wait: Duration,
    ) -> Result<Option<Leadership>, Error> {
        let lock = self.lock.publishing(Value::new(value.as_ref())?);
        let held = lock.ask(Ask::Exclusive, Queueing::at_most(wait)?).await?;
        Ok(held.map(Guard::new))
    }

    /// Who leads at the moment of asking; `None` if nobody does.
    ///
    /// Asks the server once. The leader may have changed since: its requests
    /// differ from a predecessor's by their fence.
    ///
    /// # Errors
    ///
    /// The errors of [`Mutex::info`](crate::Mutex::info).
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(election: rlock_client::Election) -> Result<(), rlock_client::Error> {
    /// if let Some(leader) = election.leader().await? {
    ///     println!("{}", String::from_utf8_lossy(&leader.value));
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let key = Arc::clone(&self.lock.key);
        match call(&self.lock.inner.state, Call::Leader { key }).await {
            Outcome::Leader(leader) => Ok(leader),
            outcome => done(outcome).map(|()| None),
        }
    }

    /// The current leader, and then each change, as the server reports it.
    ///
    /// It starts at once, and runs in the background; all observers of the same
    /// key in one client share one subscription. It sends no further requests,
    /// except a heartbeat every 5 s on a quiet connection.
    ///
    /// Needs a module that publishes values in the usual way (`rlock.publish` is
    /// `auto`, or names the same).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(election: rlock_client::Election) -> Result<(), rlock_client::Error> {
    /// let mut changes = election.observe();
    /// while let Some(change) = changes.next().await {
    ///     match change?.leader {
    ///         Some(it) => println!("{}: {}", it.fence, String::from_utf8_lossy(&it.value)),
    ///         None => println!("nobody leads"),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn observe(&self) -> Changes {
        let inner = Arc::clone(&self.lock.inner);
        let observer = inner.state.observe(&self.lock.key);
        Changes { inner, observer }
    }
}

/// Leads until it resigns, is dropped, or the leadership is lost; from
/// [`Election::campaign`].
///
/// Another one may lead before this one notices that it was paused or
/// partitioned: see [`fence`](Guard::fence).
pub type Leadership = Guard<Elected>;

/// A lock, alone, with a published value: the kind of [`Leadership`].
#[derive(Debug)]
pub enum Elected {}

impl Kind for Elected {}
impl OneKey for Elected {}

impl sealed::Kind for Elected {
    const NAME: &str = "Leadership";
    type Grants = Granted;
}

impl Guard<Elected> {
    /// Publishes another value, 0 to 1024 bytes, and waits for the server's reply.
    ///
    /// Observers receive it under the same fence. Values are published in the
    /// order in which this was called.
    ///
    /// # Errors
    ///
    /// After an error it still leads, except after the first one.
    ///
    /// - [`Error::Lost`]: the leadership was lost;
    /// - [`Error::OutOfRange`]: for more than 1024 bytes; nothing was sent;
    /// - [`Error::Unavailable`]: no answer within the client's retry timeout, or
    ///   another call of the same owner was under way for that time. Which value
    ///   is published then is not known;
    /// - [`Error::QueueFull`], [`Error::Denied`], [`Error::Refused`]: the server
    ///   refuses.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open which value is published.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(leadership: rlock_client::Leadership) -> Result<(), rlock_client::Error> {
    /// leadership.proclaim("10.0.0.7:8080").await?;
    /// # Ok(()) }
    /// ```
    pub async fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let (guard, value) = (self.held.guard, Value::new(value.as_ref())?);
        self.held.change(Call::Proclaim { guard, value }).await
    }

    /// Ends the leadership and waits for the server's reply: the same as
    /// [`release`](Guard::release).
    ///
    /// # Errors
    ///
    /// The errors of [`release`](Guard::release).
    ///
    /// # Cancel safety
    ///
    /// As for [`release`](Guard::release).
    pub async fn resign(self) -> Result<(), Error> {
        self.release().await
    }
}

/// Who leads, and each change of that; from [`Election::observe`].
///
/// - It begins with the current leader, or with the fact that there is none.
/// - Each change comes once, a new value of the same leader too, and fences never
///   go back: nothing more is published about a leader that has a successor.
/// - After a reconnect, a fail-over, or a moved slot, it starts again with the
///   current leader, in a change that says that others may have been
///   [`missed`](Change::missed).
/// - If more than 1024 changes have not been taken, the oldest are dropped, and
///   the next one says so in the same way.
///
/// An unreachable server does not end it. It ends after a permanent error:
/// [`Error::Denied`], [`Error::NotALock`], [`Error::ModuleMissing`],
/// [`Error::Refused`], [`Error::Closed`].
///
/// It keeps the client's connections open. Dropping it ends it.
#[must_use = "nothing more is observed as soon as it is dropped"]
pub struct Changes {
    inner: Arc<Inner>,
    observer: Id,
}

impl Changes {
    /// Waits for the next change; `None` after an error.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: a change is taken by the call that returns it.
    pub async fn next(&mut self) -> Option<Result<Change, Error>> {
        poll_fn(|context| self.inner.state.poll_change(self.observer, context)).await
    }
}

impl Stream for Changes {
    type Item = Result<Change, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.state.poll_change(self.observer, context)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.inner.state.unobserve(self.observer);
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}
