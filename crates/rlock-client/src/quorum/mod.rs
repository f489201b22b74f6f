//! One lock on several independent servers, held by a majority of them.
//!
//! - `plan`: what one contender does next, without I/O;
//! - `acquire`: carries that out;
//! - `hold`: what is held, and the task that looks after it;
//! - `member`: what is known of each server, and whether it may take part;
//! - `shared`, `deadline`: what all of these work with;
//! - `mutex`, `guard`: what users see.

use std::sync::Arc;

use rlock_engine::engine::claims::Owner;
use rlock_engine::error::{Error, Failure};
use rlock_engine::servers::Servers;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::client_builder::{ClientBuilder, on_thread};
use crate::pump::lock;

mod acquire;
mod deadline;
pub(crate) mod guard;
mod hold;
mod member;
pub(crate) mod mutex;
mod plan;
mod shared;

use member::Member;
use mutex::QuorumMutex;
use plan::majority;
use shared::Shared;

/// Independent servers that hold locks together: a lock is held by a majority of
/// them, so it outlives a minority.
///
/// | members | may fail |
/// |---|---|
/// | 3 | 1 |
/// | 5 | 2 |
/// | 7 | 3 |
/// | 9 | 4 |
///
/// Each is a master of its own: none is a replica of another. Contenders wait in
/// the queue of one of them, the gate of that key. All of a lock's holders get
/// fences that rise, which holds whatever the clocks of the members say.
///
/// A member must not forget what it has granted and grant it again. So it needs
/// `rlock.startup-grace-ms` of at least the longest lease, or `appendonly yes` with
/// `appendfsync always` and `no-appendfsync-on-rewrite no`; for the fences also
/// more than the clocks of the members are apart. A lease above that grace is refused.
///
/// This is Redlock, with a queue and a fence. It is no consensus: a holder that
/// stood still does not know that it has lost the lock, before it looks. See
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
    shared: Arc<Shared>,
}

/// Settings of a [`Quorum`], from [`Quorum::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct QuorumBuilder {
    pub(crate) members: ClientBuilder,
    any_grace: bool,
}

impl QuorumBuilder {
    /// How each member is connected to; by default as by
    /// [`Client::builder`](crate::Client::builder).
    ///
    /// A member that has not answered after a quarter of its response limit, or a
    /// tenth of the lease if that is less, is not waited for, and left alone for
    /// as long while the others are a majority.
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
    /// Then a member that crashes may grant a lock again that is still held, and
    /// two contenders can hold it at the same time, one of them by the help of
    /// that member. For servers that never forget for another reason.
    pub fn any_grace(mut self) -> Self {
        self.any_grace = true;
        self
    }

    /// Connects to the servers at `urls`; see [`Quorum::connect`].
    ///
    /// # Errors
    ///
    /// Those of [`Quorum::connect`], and [`Error::OutOfRange`] for a setting.
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
        if !self.members.has_thread {
            return self.start(servers).await.map(|(quorum, _)| quorum);
        }
        let (connected, outcome) = oneshot::channel();
        // Whoever is gone by then drops the quorum, which closes it.
        self.start_on_thread(servers, |quorum| drop(connected.send(quorum)))?;
        outcome.await.map_err(|_| Error::Closed)?
    }

    /// Connects on a thread of its own, and says there how that went; the
    /// runtime of that thread.
    pub(crate) fn start_on_thread(
        self,
        servers: Vec<Servers>,
        connected: impl FnOnce(Result<Quorum, Error>) + Send + 'static,
    ) -> Result<Handle, Error> {
        on_thread(async move {
            match self.start(servers).await {
                Ok((quorum, tasks)) => {
                    connected(Ok(quorum));
                    // Until all guards are gone and what they left is done.
                    for task in tasks {
                        let _ = task.await;
                    }
                }
                Err(error) => connected(Err(error)),
            }
        })
    }

    async fn start(self, servers: Vec<Servers>) -> Result<(Quorum, Vec<JoinHandle<()>>), Error> {
        if !(3..=9).contains(&servers.len()) || servers.len().is_multiple_of(2) {
            return Err(Error::OutOfRange {
                argument: "members",
                value: format!("{} servers", servers.len()),
                limit: "3, 5, 7 or 9: one more than an odd number outlives no more failures".into(),
            });
        }
        let (members, tasks) = Member::begin(servers, &self.members)?;
        let mut shared = Shared {
            members,
            shortest_grace: None,
            any_grace: self.any_grace,
            limits: self.members.limits,
            runtime: Handle::current(),
            entries: std::sync::Mutex::default(),
            ending: std::sync::Mutex::default(),
        };
        shared.meet().await?;
        let shared = Arc::new(shared);
        Ok((Quorum { shared }, tasks))
    }
}

impl Shared {
    /// Waits for the first connections: of a majority, and for a while for those
    /// of the others.
    async fn meet(&mut self) -> Result<(), Error> {
        let mut rest: Vec<_> = self.members.iter().map(|it| Box::pin(it.met())).collect();
        let mut failures = Vec::new();
        while !rest.is_empty() {
            let met = self.members.iter().filter(|it| it.is_connected()).count();
            let next = futures_util::future::select_all(rest);
            let has_enough = met >= majority(self.members.len());
            let limit = self.limits.response / if has_enough { 4 } else { 1 };
            let Ok((failure, _, others)) = tokio::time::timeout(limit, next).await else {
                break;
            };
            failures.extend(failure);
            rest = others;
        }
        if let Some(refused) = self.members.iter().find_map(Member::refused) {
            return Err(refused);
        }
        let lasting = failures.into_iter().map(Error::Connect);
        if let Some(error) = lasting.into_iter().find(|error| !error.is_transient()) {
            return Err(error);
        }
        let met = self.members.iter().filter(|it| it.is_connected());
        if met.count() < majority(self.members.len()) {
            let failures = self.members.iter().map(|member| {
                let why = member.why_not(None).unwrap_or_else(|| "connected".into());
                format!("{}: {why}", member.address)
            });
            let failures: Vec<_> = failures.collect();
            let what = "fewer than a majority of the members answer";
            let why = Failure::Io(format!("{what}: {}", failures.join("; ")));
            return Err(Error::Connect(why));
        }
        let graces = self.members.iter().filter_map(|member| {
            let grace = member.grace()?;
            Some((grace, member.address.clone()))
        });
        self.shortest_grace = graces.min().filter(|_| !self.any_grace);
        Ok(())
    }

    /// Another owner for each call.
    fn next_owner(&self) -> Option<Owner> {
        self.members.first().map(|member| member.client.owner())
    }
}

impl Quorum {
    /// Connects to the servers at `urls`, of which there are 3, 5, 7 or 9. All
    /// clients name the same ones.
    ///
    /// Members that are down now join later, if a majority is there. Each is
    /// looked at by every new connection: whether it is another server than the
    /// others, and a master.
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
        QuorumMutex::new(Arc::clone(&self.shared), key.as_ref().into())
    }

    /// A new owner, for entering a lock more than once.
    pub fn owner(&self) -> Owner {
        let owner = self.shared.next_owner();
        owner.unwrap_or_else(|| Owner::numbered("quorum", 0))
    }

    /// Waits until the background has nothing left to release or withdraw, at
    /// the members that can be reached. Call this before the end of a process.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the work goes on.
    pub async fn flush(&self) {
        let ending = std::mem::take(&mut *lock(&self.shared.ending));
        for keeper in ending {
            let _ = keeper.await;
        }
        for member in self.shared.members.iter() {
            if member.is_connected() {
                tokio::select! {
                    () = member.client.flush() => {}
                    () = member.gone() => {}
                }
            }
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
        let of_member = |error| match error {
            Error::OutOfRange {
                argument: "url",
                value,
                limit,
            } => Error::OutOfRange {
                argument: name,
                value,
                limit,
            },
            error => error,
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
