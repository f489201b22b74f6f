//! How a client reaches the servers of a world, and a lock as it gets it there.
//!
//! A further kind of client is a further [`Address`], [`Door`] and [`Held`].

use std::time::Duration;

use rlock_client::{
    Client, Error, Guard, Leadership, Loss, Owner, Quorum, QuorumGuard, ReadGuard, Terms,
    WriteGuard,
};

use crate::contender::ELECTION;
use rlock_testkit::asynchronous::together;

/// How long calls that do not wait go on.
pub(crate) const PATIENCE: Duration = Duration::from_secs(4);
/// How long replicas may take.
pub(crate) const REPLICATION_LIMIT: Duration = Duration::from_secs(1);

/// Where a client finds its servers.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    /// A server, the Sentinels of one, or a cluster.
    Client(String),
    Quorum(Vec<String>),
}

impl Address {
    pub(crate) async fn connect(&self) -> Result<Door, Error> {
        let builder = Client::builder()
            .response_timeout(Duration::from_secs(1))
            .retry_timeout(PATIENCE)
            .replication_timeout(REPLICATION_LIMIT);
        match self {
            Self::Quorum(urls) => {
                let quorum = Quorum::builder().members(builder).connect(urls).await;
                quorum.map(Door::Quorum)
            }
            Self::Client(url) => builder.connect(url).await.map(Door::Client),
        }
    }

    pub(crate) fn of_sentinels(urls: &[String]) -> Self {
        Self::Client(format!("{}/locks", together("sentinel", urls)))
    }

    pub(crate) fn of_cluster(urls: &[String]) -> Self {
        Self::Client(together("cluster", urls))
    }
}

/// A client, of whichever kind.
#[derive(Clone)]
pub(crate) enum Door {
    Client(Client),
    Quorum(Quorum),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Read,
    Write,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    Try,
    AtMost(Duration),
    Unlimited,
}

/// What to ask for, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) key: &'static str,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    pub(crate) terms: Terms,
    pub(crate) waiting: Waiting,
}

impl Door {
    pub(crate) fn owner(&self) -> Owner {
        match self {
            Self::Client(client) => client.owner(),
            Self::Quorum(quorum) => quorum.owner(),
        }
    }

    pub(crate) async fn flush(&self) -> Result<(), Error> {
        match self {
            Self::Client(client) => client.flush().await,
            Self::Quorum(quorum) => quorum.flush().await,
        }
    }

    pub(crate) async fn ask(
        &self,
        wish: Wish,
        owner: Option<&Owner>,
    ) -> Result<Option<Held>, Error> {
        match self {
            Self::Client(client) if wish.key == ELECTION => leads(client, wish, owner).await,
            Self::Client(client) if wish.mode == Mode::Exclusive => {
                exclusive(client, wish, owner).await
            }
            Self::Client(client) => shared(client, wish, owner).await,
            Self::Quorum(quorum) => by_majority(quorum, wish, owner).await,
        }
    }
}

async fn exclusive(
    client: &Client,
    wish: Wish,
    owner: Option<&Owner>,
) -> Result<Option<Held>, Error> {
    let mutex = client.mutex(wish.key).with(wish.terms);
    let mutex = owner.map_or_else(|| mutex.clone(), |owner| mutex.by(owner));
    let guard = match wish.waiting {
        Waiting::Try => mutex.try_lock().await,
        Waiting::AtMost(wait) => mutex.lock_timeout(wait).await,
        Waiting::Unlimited => mutex.lock().await.map(Some),
    };
    Ok(guard?.map(Held::Exclusive))
}

async fn leads(client: &Client, wish: Wish, owner: Option<&Owner>) -> Result<Option<Held>, Error> {
    let election = client.election(wish.key).with(wish.terms);
    let election = owner.map_or_else(|| election.clone(), |owner| election.by(owner));
    let leadership = match wish.waiting {
        Waiting::Try => election.campaign_for("leads", Duration::ZERO).await,
        Waiting::AtMost(wait) => election.campaign_for("leads", wait).await,
        Waiting::Unlimited => election.campaign("leads").await.map(Some),
    };
    Ok(leadership?.map(Held::Leads))
}

/// Exclusive, whatever is wished for.
async fn by_majority(
    quorum: &Quorum,
    wish: Wish,
    owner: Option<&Owner>,
) -> Result<Option<Held>, Error> {
    let mutex = quorum.mutex(wish.key).with(wish.terms);
    let mutex = owner.map_or_else(|| mutex.clone(), |owner| mutex.by(owner));
    let guard = match wish.waiting {
        Waiting::Try => mutex.try_lock().await,
        Waiting::AtMost(wait) => mutex.lock_timeout(wait).await,
        Waiting::Unlimited => mutex.lock().await.map(Some),
    };
    Ok(guard?.map(Held::Majority))
}

async fn shared(client: &Client, wish: Wish, owner: Option<&Owner>) -> Result<Option<Held>, Error> {
    let lock = client.rwlock(wish.key).with(wish.terms);
    let lock = owner.map_or_else(|| lock.clone(), |owner| lock.by(owner));
    Ok(match (wish.waiting, wish.mode) {
        (Waiting::Try, Mode::Read) => lock.try_read().await?.map(Held::Read),
        (Waiting::AtMost(wait), Mode::Read) => lock.read_timeout(wait).await?.map(Held::Read),
        (Waiting::Unlimited, Mode::Read) => Some(Held::Read(lock.read().await?)),
        (Waiting::Try, _) => lock.try_write().await?.map(Held::Write),
        (Waiting::AtMost(wait), _) => lock.write_timeout(wait).await?.map(Held::Write),
        (Waiting::Unlimited, _) => Some(Held::Write(lock.write().await?)),
    })
}

/// A guard, of whichever kind.
pub(crate) enum Held {
    Exclusive(Guard),
    Leads(Leadership),
    Majority(QuorumGuard),
    Read(ReadGuard),
    Write(WriteGuard),
}

/// The same of each kind.
macro_rules! of_each {
    ($held:expr, $guard:ident => $what:expr) => {
        match $held {
            Held::Exclusive($guard) => $what,
            Held::Leads($guard) => $what,
            Held::Majority($guard) => $what,
            Held::Read($guard) => $what,
            Held::Write($guard) => $what,
        }
    };
}

impl Held {
    pub(crate) fn fence(&self) -> u64 {
        of_each!(self, guard => guard.fence())
    }

    pub(crate) fn owner(&self) -> &Owner {
        of_each!(self, guard => guard.owner())
    }

    pub(crate) fn is_valid(&self) -> bool {
        of_each!(self, guard => guard.is_valid())
    }

    pub(crate) fn leads(&self) -> bool {
        matches!(self, Self::Leads(_))
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Read(_))
    }

    /// Whether several servers know of it.
    pub(crate) fn is_majority(&self) -> bool {
        matches!(self, Self::Majority(_))
    }

    pub(crate) async fn lost(&self) -> Loss {
        of_each!(self, guard => guard.loss().await)
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        of_each!(self, guard => guard.release().await)
    }
}
