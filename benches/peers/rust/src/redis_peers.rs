//! Peers that need nothing but Redis.

use anyhow::{Context, bail};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, cmd};
use rslock::{LockGuard, LockManager};

use crate::Workload;
use crate::peers::{Caller, Peer};

/// A connection that waits for a reply as long as that takes.
pub(crate) async fn patient(client: &Client) -> anyhow::Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(client
        .get_multiplexed_async_connection_with_config(&config)
        .await?)
}

/// rslock, all callers on one manager, as it is meant to be cloned.
pub(crate) struct Rslock(LockManager);

impl Peer for Rslock {
    const NAME: &str = "rslock";
    const TITLE: &str = "rslock";
    const CRATE: &str = "rslock";
    const WAITS: &str = "polls, after 0 to 200 ms at random, every third time at once";
    const SETTINGS: &str = "one LockManager, cloned for each caller; acquire(), which never gives up; lease from the workload";

    type Caller = RslockCaller;

    async fn open(workload: &Workload) -> anyhow::Result<Self> {
        Ok(Self(LockManager::from_clients(vec![Client::open(
            workload.url.as_str(),
        )?])))
    }

    async fn caller(&self, workload: &Workload) -> anyhow::Result<RslockCaller> {
        Ok(RslockCaller {
            locks: self.0.clone(),
            lease: workload.lease(),
            held: None,
        })
    }
}

pub(crate) struct RslockCaller {
    locks: LockManager,
    lease: std::time::Duration,
    held: Option<LockGuard>,
}

impl Caller for RslockCaller {
    async fn acquire(&mut self, key: &str) -> anyhow::Result<()> {
        self.held = Some(self.locks.acquire(key, self.lease).await?);
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        self.held.take().context("nothing is held")?.release().await;
        Ok(())
    }
}

/// The two plain commands.
pub(crate) struct SetNx(MultiplexedConnection);

impl Peer for SetNx {
    const NAME: &str = "set-nx-px";
    const TITLE: &str = "SET NX PX, DEL";
    const CRATE: &str = "redis";
    const WAITS: &str = "does not wait";
    const SETTINGS: &str = "a yardstick: the two plain commands, all callers on one multiplexed connection of the redis crate; a lock that is held is an error";

    type Caller = SetNxCaller;

    async fn open(workload: &Workload) -> anyhow::Result<Self> {
        Ok(Self(patient(&Client::open(workload.url.as_str())?).await?))
    }

    async fn caller(&self, workload: &Workload) -> anyhow::Result<SetNxCaller> {
        Ok(SetNxCaller {
            connection: self.0.clone(),
            lease_ms: workload.lease().as_millis() as u64,
            key: String::new(),
        })
    }
}

pub(crate) struct SetNxCaller {
    connection: MultiplexedConnection,
    lease_ms: u64,
    key: String,
}

impl Caller for SetNxCaller {
    async fn acquire(&mut self, key: &str) -> anyhow::Result<()> {
        key.clone_into(&mut self.key);
        let mut set = cmd("SET");
        set.arg(key)
            .arg("holder")
            .arg("NX")
            .arg("PX")
            .arg(self.lease_ms);
        if set
            .query_async::<Option<()>>(&mut self.connection)
            .await?
            .is_none()
        {
            bail!("{key} is held");
        }
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        Ok(cmd("DEL")
            .arg(&self.key)
            .query_async(&mut self.connection)
            .await?)
    }
}

/// A list that holds one token while the lock is free.
pub(crate) struct Blpop(Client);

impl Peer for Blpop {
    const NAME: &str = "blpop";
    const TITLE: &str = "BLPOP, RPUSH of a token";
    const CRATE: &str = "redis";
    const WAITS: &str = "server queue";
    const SETTINGS: &str = "a yardstick: a connection for each caller; it has no lease, and a holder that dies takes the token along";

    type Caller = BlpopCaller;

    async fn open(workload: &Workload) -> anyhow::Result<Self> {
        Ok(Self(Client::open(workload.url.as_str())?))
    }

    async fn caller(&self, _workload: &Workload) -> anyhow::Result<BlpopCaller> {
        Ok(BlpopCaller {
            connection: patient(&self.0).await?,
            key: String::new(),
        })
    }
}

pub(crate) struct BlpopCaller {
    connection: MultiplexedConnection,
    key: String,
}

impl Caller for BlpopCaller {
    /// One token, however often this is called.
    async fn prepare(&mut self, key: &str) -> anyhow::Result<()> {
        let mut pipe = redis::pipe();
        pipe.atomic().del(key).rpush(key, "token");
        Ok(pipe.exec_async(&mut self.connection).await?)
    }

    async fn acquire(&mut self, key: &str) -> anyhow::Result<()> {
        key.clone_into(&mut self.key);
        Ok(cmd("BLPOP")
            .arg(key)
            .arg(0)
            .exec_async(&mut self.connection)
            .await?)
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        Ok(cmd("RPUSH")
            .arg(&self.key)
            .arg("token")
            .exec_async(&mut self.connection)
            .await?)
    }
}
