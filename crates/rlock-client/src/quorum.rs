//! One lock on several independent servers, held by a majority of them: what
//! users see. The session of `rlock-engine` decides.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rlock_engine::engine::claims::Owner;
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::error::Error;
use rlock_engine::servers::Servers;
use rlock_engine::session::Call;
use rlock_engine::session::quorum::read;

use crate::client_builder::{ClientBuilder, Started, on_thread};
use crate::locks::guard::sealed::{self, Grants};
use crate::locks::guard::{Guard, Kind, OneKey};
use crate::locks::{Granted, Lock, left};
use crate::pump::Inner;
use crate::pump::call::{call, done};

/// Independent servers that hold locks together: a majority of them holds a
/// lock, so it survives the failure of a minority.
///
/// | members | may fail |
/// |---|---|
/// | 3 | 1 |
/// | 5 | 2 |
/// | 7 | 3 |
/// | 9 | 4 |
///
/// Each is an independent master: none is a replica of another. Contenders wait
/// in the queue of one of them, the gate of that key. The fences of a lock rise
/// from holder to holder, whatever the clocks of the members say.
///
/// A member must not forget a grant and then grant the lock again. So it needs
/// `rlock.startup-grace-ms` of at least the longest lease, or `appendonly yes`
/// with `appendfsync always` and `no-appendfsync-on-rewrite no`. For the
/// fences, the grace must also be longer than the difference between the
/// members' clocks. A lease above the grace is refused.
///
/// This is Redlock, with a queue and a fence. It is not consensus: a holder
/// that stalled does not know that it has lost the lock until it checks. See
/// [`QuorumGuard::fence`](crate::QuorumGuard::fence).
///
/// Cheap to clone; all clones use the same connections.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), rlock_client::Error> {
/// let servers = ["redis://locks-1/", "redis://locks-2/", "redis://locks-3/"];
/// let quorum = rlock_client::Quorum::connect(servers).await?;
/// let guard = quorum.mutex("invoice:7").lock().await?;
/// println!("held by {} members, fence {}", guard.members().len(), guard.fence());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Quorum {
    inner: Arc<Inner>,
}

/// Settings of a [`Quorum`], from [`Quorum::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct QuorumBuilder {
    pub(crate) members: ClientBuilder,
    any_grace: bool,
}

impl QuorumBuilder {
    /// How to connect to each member; by default as
    /// [`Client::builder`](crate::Client::builder).
    ///
    /// If a member has not answered after a quarter of its response limit, or a
    /// tenth of the lease if that is less, the client stops waiting for it. It
    /// leaves that member alone for the same time while the others are a
    /// majority.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), rlock_client::Error> {
    /// let members = rlock_client::Client::builder().name("billing@host-7");
    /// let servers = ["redis://locks-1/", "redis://locks-2/", "redis://locks-3/"];
    /// let quorum = rlock_client::Quorum::builder().members(members).connect(servers).await?;
    /// # Ok(()) }
    /// ```
    pub fn members(mut self, settings: ClientBuilder) -> Self {
        self.members = settings;
        self
    }

    /// Allows leases above the startup grace of a member.
    ///
    /// Then a member that crashes may grant a lock again that is still held,
    /// and two contenders can hold it at the same time. Use this only for
    /// servers that never forget for another reason.
    pub fn any_grace(mut self) -> Self {
        self.any_grace = true;
        self
    }

    /// Connects to the servers at `urls`; see [`Quorum::connect`].
    ///
    /// # Errors
    ///
    /// The errors of [`Quorum::connect`], and [`Error::OutOfRange`] for a setting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes all connections.
    pub async fn connect<S>(self, servers: impl IntoIterator<Item = S>) -> Result<Quorum, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        let servers = read(servers)?;
        if self.members.has_thread {
            return on_thread(self.start(servers))?.1.await;
        }
        Ok(self.start(servers).await?.0)
    }

    pub(crate) async fn start(self, servers: Vec<Servers>) -> Started<Quorum> {
        let (inner, task) = self.members.quorum(servers, self.any_grace)?;
        done(call(&inner.state, Call::Connect).await)?;
        Ok((Quorum { inner }, vec![task]))
    }
}

impl Quorum {
    /// Connects to the servers at `urls`: 3, 5, 7 or 9 of them. All clients
    /// must name the same servers.
    ///
    /// Members that are down now join later, if there is a majority now. The
    /// client checks each member on every new connection: it must be a master,
    /// and a different server from the others.
    ///
    /// # Errors
    ///
    /// - [`Error::OutOfRange`]: another number of servers, or an address that is
    ///   not of one server; it names the member, from `members[0]` on;
    /// - [`Error::Member`]: a server that cannot take part, and why: it is the
    ///   same as another one, a replica, or without the module;
    /// - [`Error::Connect`]: fewer than a majority can be reached, or one of them
    ///   refuses the connection for a reason that does not pass.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes all connections.
    pub async fn connect<S>(servers: impl IntoIterator<Item = S>) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        Self::builder().connect(servers).await
    }

    /// Settings to choose before connecting.
    pub fn builder() -> QuorumBuilder {
        QuorumBuilder::default()
    }

    /// The lock at `key`, with a lease of 30 s that the watchdog renews. Nothing
    /// is sent.
    pub fn mutex(&self, key: impl AsRef<[u8]>) -> QuorumMutex {
        QuorumMutex {
            lock: Lock::new(Arc::clone(&self.inner), key.as_ref().into()),
        }
    }

    /// A new owner, to enter a lock more than once.
    pub fn owner(&self) -> Owner {
        self.inner.next_owner()
    }

    /// Waits until the background has nothing left to release or withdraw, at a
    /// majority and at all members that can be reached. Call this before the end of
    /// a process.
    ///
    /// # Errors
    ///
    /// The error of the first member that has one, as for
    /// [`Client::flush`](crate::Client::flush).
    ///
    /// # Cancel safety
    ///
    /// Safe: the work goes on.
    pub async fn flush(&self) -> Result<(), Error> {
        self.inner.state.flush().await
    }
}

/// A lock that one owner at a time can hold, on a majority of independent
/// servers.
///
/// Made by [`Quorum::mutex`](crate::Quorum::mutex); cheap to clone.
///
/// # Examples
///
/// ```no_run
/// # async fn example(quorum: rlock_client::Quorum) -> Result<(), rlock_client::Error> {
/// let mutex = quorum.mutex("invoice:7");
/// let guard = mutex.lock().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
pub struct QuorumMutex {
    lock: Lock,
}

impl QuorumMutex {
    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        &self.lock.key
    }

    /// The same lock, held on `terms`; see [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use rlock_client::Terms;
    /// # fn example(quorum: rlock_client::Quorum) -> Result<(), rlock_client::Error> {
    /// let brief = Terms::new().lease(Duration::from_secs(5))?;
    /// let mutex = quorum.mutex("invoice:7").with(brief);
    /// # Ok(()) }
    /// ```
    pub fn with(&self, terms: Terms) -> Self {
        let lock = self.lock.with(terms);
        Self { lock }
    }

    /// The same lock for `owner`, which may already hold it: then the lock is
    /// re-entered, under the same fence. See [`Mutex::by`](crate::Mutex::by).
    ///
    /// Only locks that this [`Quorum`](crate::Quorum) and its clones have taken
    /// for that owner can be re-entered.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(quorum: rlock_client::Quorum) -> Result<(), rlock_client::Error> {
    /// let owner = quorum.owner();
    /// let mutex = quorum.mutex("invoice:7").by(&owner);
    /// let outer = mutex.lock().await?;
    /// let inner = mutex.lock().await?;
    /// assert_eq!(outer.fence(), inner.fence());
    /// # Ok(()) }
    /// ```
    pub fn by(&self, owner: &Owner) -> Self {
        let lock = self.lock.by(owner);
        Self { lock }
    }

    /// Waits for the lock without limit, even while too few members can be
    /// reached.
    ///
    /// # Errors
    ///
    /// - [`Error::Member`]: a member's startup grace is below the lease;
    /// - [`Error::Deadlock`], [`Error::Cancelled`]: so says a member that was
    ///   waited at;
    /// - [`Error::Closed`]: the runtime of the quorum is gone;
    /// - [`Error::Denied`], [`Error::NotALock`], [`Error::Refused`],
    ///   [`Error::QueueFull`]: the members that do not refuse are fewer than a majority.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves neither a hold nor a place in a queue at any
    /// member: the client withdraws them in the background.
    pub async fn lock(&self) -> Result<QuorumGuard, Error> {
        self.lock.wait_for(Ask::Exclusive).await.map(Guard::of)
    }

    /// Takes the lock if it is free; `None` if somebody holds it.
    ///
    /// If several try at the same time, one of them gets it: the one that the
    /// gate granted. It waits for the others to leave the other members: for
    /// half of the response limit, or a fifth of the lease if that is less, but
    /// at least half a second. A member that still refuses after that counts as
    /// held.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), and [`Error::Unavailable`] if no majority
    /// has answered within the retry timeout of the members' settings. Its source
    /// says what each of the others does.
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<QuorumGuard>, Error> {
        self.ask(Queueing::Try).await
    }

    /// Waits for at most `wait`; `None` if somebody else held the lock for the
    /// whole time. At the end the client asks all members once more, because
    /// the one that it waited at may hang. That takes no longer than its limit
    /// for a slow member.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), and [`Error::Unavailable`] if too few
    /// members could be reached at the end of that time.
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Option<QuorumGuard>, Error> {
        self.ask(Queueing::at_most(wait)?).await
    }

    /// Waits for the lock until `deadline`; `None` if the time was not enough. See
    /// [`lock_timeout`](Self::lock_timeout); a past `deadline` is a try.
    ///
    /// # Errors
    ///
    /// The errors of [`lock_timeout`](Self::lock_timeout).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock_timeout`](Self::lock_timeout).
    pub async fn lock_until(&self, deadline: Instant) -> Result<Option<QuorumGuard>, Error> {
        self.lock_timeout(left(deadline)).await
    }

    async fn ask(&self, queueing: Queueing) -> Result<Option<QuorumGuard>, Error> {
        let held = self.lock.ask(Ask::Exclusive, queueing).await?;
        Ok(held.map(Guard::of))
    }
}

/// A lock on a majority of servers: the kind of [`QuorumGuard`].
#[derive(Debug)]
pub enum Majority {}

/// Holds a lock of a [`Quorum`](crate::Quorum) until it is released, dropped, or
/// lost.
///
/// A majority of the members has stored its fence, so it rises whatever their
/// clocks say, and whichever of them take part.
///
/// # Examples
///
/// ```no_run
/// # async fn work() {}
/// # async fn example(mutex: rlock_client::QuorumMutex) -> Result<(), rlock_client::Error> {
/// let guard = mutex.lock().await?;
/// match guard.run(work()).await {
///     Ok(()) => guard.release().await?,
///     Err(loss) => eprintln!("stopped: the lock was lost, {loss}"),
/// }
/// # Ok(()) }
/// ```
pub type QuorumGuard = Guard<Majority>;

/// One member that holds a lock of a quorum; from
/// [`QuorumGuard::members`](Guard::members).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldingMember {
    /// The server, as named when connecting.
    pub address: String,
    /// How long it certainly still holds, as [`Guard::remaining`].
    ///
    /// [`Guard::remaining`]: crate::Guard::remaining
    pub remaining: Duration,
}

impl Kind for Majority {}
impl OneKey for Majority {}

impl sealed::Kind for Majority {
    const NAME: &str = "QuorumGuard";
    type Grants = Share;
}

/// What a majority holds, until it is released or dropped.
pub struct Share {
    granted: Granted,
    /// Whether its parts end with their connections.
    is_bound: bool,
}

impl Guard<Majority> {
    fn of(granted: Granted) -> Self {
        let is_bound = granted.in_quorum(|quorum, guard, _| quorum.is_bound(guard));
        Self::new(Share { granted, is_bound })
    }

    /// The members that hold it now. Others may be unreachable, or a request to
    /// them may be under way.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: &rlock_client::QuorumGuard) {
    /// for member in guard.members() {
    ///     println!("{} for {:?}", member.address, member.remaining);
    /// }
    /// # }
    /// ```
    pub fn members(&self) -> Vec<HoldingMember> {
        let granted = &self.held.granted;
        let members = granted.in_quorum(|quorum, guard, now| quorum.holding(now, guard));
        let members = members.into_iter();
        let held = members.map(|(address, remaining)| HoldingMember { address, remaining });
        held.collect()
    }
}

impl Grants for Share {
    fn granted(&self) -> &Granted {
        &self.granted
    }

    fn into_granted(self) -> Granted {
        self.granted
    }

    /// Its parts can be over before.
    fn look(&self) {
        let granted = &self.granted;
        if self.is_bound && granted.proof().valid_until().is_some() {
            granted.in_quorum(|quorum, guard, now| quorum.look(now, guard));
        }
    }
}
