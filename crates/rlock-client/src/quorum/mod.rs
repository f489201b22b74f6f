//! One lock on several independent servers, held by a majority of them.
//!
//! - here: what users see;
//! - `plan`: what one contender does next, without I/O;
//! - `seats`: carries that out: what is held at each member, and what it is asked;
//! - `hold`: what is held by a majority, and the task that looks after it;
//! - `members`: what is known of each server, and whether it may take part.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rlock_engine::engine::claims::{Owner, check_key};
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Queueing, Terms, lease_ms, whole_ms_or_zero};
use rlock_engine::error::Error;
use rlock_engine::servers::Servers;

use crate::client_builder::{ClientBuilder, Started, on_thread};
use crate::locks::guard::sealed::{self, Grants};
use crate::locks::guard::{Guard, Kind, OneKey};
use crate::locks::left;

mod hold;
mod members;
mod plan;
mod seats;

use hold::{Hold, Turn};
use members::Members;
use seats::{Wait, acquire};

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
    members: Arc<Members>,
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
        if !(3..=9).contains(&servers.len()) || servers.len().is_multiple_of(2) {
            return Err(Error::OutOfRange {
                argument: "members",
                value: format!("{} servers", servers.len()),
                limit: "3, 5, 7 or 9: an even number survives no more failures than the odd number below".into(),
            });
        }
        let (members, tasks) = Members::connect(servers, &self.members, self.any_grace).await?;
        let members = Arc::new(members);
        Ok((Quorum { members }, tasks))
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
            members: Arc::clone(&self.members),
            key: key.as_ref().into(),
            terms: Terms::default(),
            owner: None,
        }
    }

    /// A new owner, to enter a lock more than once.
    pub fn owner(&self) -> Owner {
        self.members.next_owner()
    }

    /// Waits until the background has nothing left to release or withdraw, at
    /// the members that can be reached. Call this before the end of a process.
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
        let mut outcome = Ok(());
        while self.members.unheard.load(Ordering::Acquire) > 0 {
            tokio::task::yield_now().await;
        }
        for member in &self.members.all {
            if member.is_connected() {
                tokio::select! {
                    flushed = member.client.flush() => outcome = outcome.and(flushed),
                    () = member.gone() => {}
                }
            }
        }
        outcome
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
    members: Arc<Members>,
    key: Arc<[u8]>,
    terms: Terms,
    /// The owner; by default a new one each time.
    owner: Option<Owner>,
}

impl QuorumMutex {
    /// The lock's key.
    pub fn key(&self) -> &[u8] {
        &self.key
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
        Self {
            terms,
            ..self.clone()
        }
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
        Self {
            owner: Some(owner.clone()),
            ..self.clone()
        }
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
        loop {
            // Nobody says no to one who waits without limit.
            if let Some(guard) = self.ask(Queueing::Unlimited).await? {
                return Ok(guard);
            }
        }
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
        check_key(&self.key)?;
        self.members.check_grace(self.terms.lease)?;
        let wait = Wait::new(queueing, self.members.limits.retry);
        let owner = self.owner.clone();
        let owner = owner.unwrap_or_else(|| self.members.next_owner());
        let turn = Turn::of(&self.members, (owner, Arc::clone(&self.key)));
        let held = match queueing {
            Queueing::Try => turn.held.try_lock().ok(),
            Queueing::AtMost(_) | Queueing::Unlimited => wait.bound(turn.held.lock()).await,
        };
        let Some(mut held) = held else {
            return Ok(None);
        };
        if let Some(hold) = held.upgrade()
            && let Some(guard) = QuorumGuard::again(hold).await
        {
            return Ok(Some(guard));
        }
        let taken = acquire(&turn, self.terms, wait).await?;
        Ok(taken.map(|hold| {
            *held = Arc::downgrade(&hold);
            QuorumGuard::of(hold)
        }))
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

/// Uses what the members hold until it is released or dropped.
pub struct Share {
    hold: Arc<Hold>,
    open: bool,
}

impl Guard<Majority> {
    /// The first one of a hold.
    pub(crate) fn of(hold: Arc<Hold>) -> Self {
        Self::new(Share { hold, open: true })
    }

    /// Another one, after the lease of the whole was set again; none if the hold
    /// is over.
    pub(crate) async fn again(hold: Arc<Hold>) -> Option<Self> {
        let guard = hold.enter().then(|| Self::of(hold))?;
        if guard.held.hold.look() {
            guard.held.hold.renew().await;
        }
        guard.held.hold.look().then_some(guard)
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
        self.held.hold.members()
    }
}

impl Grants for Share {
    fn first(&self) -> &Arc<Proof> {
        &self.hold.proof
    }

    fn look(&self) {
        self.hold.look();
    }

    fn check(&self) {
        self.hold.is_valid();
    }

    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.hold.extend(lease_ms("lease", lease)?).await
    }

    fn keep(&self, least: Duration) -> Result<(), Error> {
        let proof = &self.hold.proof;
        let least = whole_ms_or_zero("least", least);
        self.hold.keep(match &least {
            Ok(least) => proof.granted + *least,
            Err(_) => proof.valid_until().unwrap_or(proof.granted),
        });
        least.map(|_| ())
    }

    async fn release(mut self) -> Result<(), Error> {
        self.open = false;
        match self.hold.leave() {
            true => self.hold.release().await,
            false => Ok(()),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.open && self.hold.leave() {
            drop(self.hold.end());
        }
    }
}

/// What errors call the addresses of the members.
const MEMBERS: [&str; 9] = [
    "members[0]",
    "members[1]",
    "members[2]",
    "members[3]",
    "members[4]",
    "members[5]",
    "members[6]",
    "members[7]",
    "members[8]",
];

/// Reads the addresses of the members.
pub(crate) fn read<S>(servers: impl IntoIterator<Item = S>) -> Result<Vec<Servers>, Error>
where
    S: TryInto<Servers>,
    Error: From<S::Error>,
{
    let names = MEMBERS.into_iter().chain(std::iter::repeat("members"));
    let servers = servers.into_iter().zip(names).map(|(servers, name)| {
        let of_member = |mut error| {
            if let Error::OutOfRange { argument, .. } = &mut error
                && *argument == "url"
            {
                *argument = name;
            }
            error
        };
        match servers.try_into().map_err(Error::from).map_err(of_member)? {
            one @ Servers::One { .. } => Ok(one),
            Servers::Sentinels { .. } | Servers::Cluster { .. } => Err(Error::OutOfRange {
                argument: name,
                value: "not of one server".to_owned(),
                limit: "redis://, rediss:// or redis+unix://, as a member is one master".into(),
            }),
        }
    });
    servers.collect()
}
