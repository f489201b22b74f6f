//! Ours: the Rust client, and the bare commands.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use redis::cmd;
use rlock_client::{Client, Guard, Terms};

use crate::Workload;
use crate::peers::{Caller, Peer};
use crate::redis_peers::patient;

/// How long a hold of [`Bound`] outlives its connection. It is the shortest
/// grace after which a holder that was cut off knows of the loss by itself.
const GRACE: Duration = Duration::from_millis(400);

/// The Rust client: all callers on one client.
pub(crate) struct Rlock(Client);

impl Peer for Rlock {
    const NAME: &str = "rlock-rust";
    const TITLE: &str = "rlock, Rust client";
    const CRATE: &str = "rlock-client";
    const WAITS: &str = "server queue, all callers on one connection";
    const SETTINGS: &str = "one client for all callers; lease from the workload (30 s), renewed";

    type Caller = RlockCaller;

    async fn open(workload: &Workload) -> anyhow::Result<Self> {
        Ok(Self(Client::connect(&workload.url).await?))
    }

    async fn caller(&self, workload: &Workload) -> anyhow::Result<RlockCaller> {
        Ok(RlockCaller {
            client: self.0.clone(),
            terms: Terms::new().lease(workload.lease()).unwrap(),
            held: None,
        })
    }
}

/// The Rust client, its holds bound to its connection.
pub(crate) struct Bound(Client);

impl Peer for Bound {
    const NAME: &str = "rlock-rust-bind";
    const TITLE: &str = "rlock, Rust client, bound";
    const CRATE: &str = "rlock-client";
    const WAITS: &str = Rlock::WAITS;
    const SETTINGS: &str =
        "as rlock; Terms::bound(400 ms): the hold ends 400 ms after its connection";

    type Caller = RlockCaller;

    async fn open(workload: &Workload) -> anyhow::Result<Self> {
        Ok(Self(Client::connect(&workload.url).await?))
    }

    async fn caller(&self, workload: &Workload) -> anyhow::Result<RlockCaller> {
        Ok(RlockCaller {
            client: self.0.clone(),
            terms: Terms::new()
                .lease(workload.lease())
                .unwrap()
                .bound(GRACE)
                .unwrap(),
            held: None,
        })
    }
}

pub(crate) struct RlockCaller {
    client: Client,
    terms: Terms,
    held: Option<Guard>,
}

impl Caller for RlockCaller {
    async fn acquire(&mut self, key: &str) -> anyhow::Result<()> {
        let mutex = self.client.mutex(key).with(self.terms);
        self.held = Some(mutex.lock().await?);
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        Ok(self
            .held
            .take()
            .context("nothing is held")?
            .release()
            .await?)
    }
}

/// The bare commands, as any Redis client can send them.
pub(crate) struct Raw(redis::Client);

impl Peer for Raw {
    const NAME: &str = "rlock-raw";
    const TITLE: &str = "RLOCK.ACQUIRE … WAIT, RLOCK.RELEASE";
    const CRATE: &str = "rlock-client";
    const WAITS: &str = "server queue";
    const SETTINGS: &str = "the bare commands of the module by the redis crate, a connection for each caller; nothing is renewed";

    type Caller = RawCaller;

    async fn open(workload: &Workload) -> anyhow::Result<Self> {
        Ok(Self(redis::Client::open(workload.url.as_str())?))
    }

    async fn caller(&self, workload: &Workload) -> anyhow::Result<RawCaller> {
        RawCaller::new(&self.0, workload, false).await
    }
}

/// The bare commands, the hold bound to the connection.
pub(crate) struct RawBound(redis::Client);

impl Peer for RawBound {
    const NAME: &str = "rlock-raw-bind";
    const TITLE: &str = "RLOCK.ACQUIRE … WAIT … BIND 0, RLOCK.RELEASE";
    const CRATE: &str = "rlock-client";
    const WAITS: &str = Raw::WAITS;
    const SETTINGS: &str = "as the bare commands; BIND 0: the hold ends with its connection";

    type Caller = RawCaller;

    async fn open(workload: &Workload) -> anyhow::Result<Self> {
        Ok(Self(redis::Client::open(workload.url.as_str())?))
    }

    async fn caller(&self, workload: &Workload) -> anyhow::Result<RawCaller> {
        RawCaller::new(&self.0, workload, true).await
    }
}

pub(crate) struct RawCaller {
    connection: MultiplexedConnection,
    owner: String,
    lease_ms: u64,
    bound: bool,
    key: String,
}

impl RawCaller {
    async fn new(client: &redis::Client, workload: &Workload, bound: bool) -> anyhow::Result<Self> {
        static CALLERS: AtomicU32 = AtomicU32::new(0);
        let number = CALLERS.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            connection: patient(client).await?,
            owner: format!("{}:{number}", std::process::id()),
            lease_ms: workload.lease().as_millis() as u64,
            bound,
            key: String::new(),
        })
    }
}

impl Caller for RawCaller {
    async fn acquire(&mut self, key: &str) -> anyhow::Result<()> {
        key.clone_into(&mut self.key);
        let mut acquire = cmd("RLOCK.ACQUIRE");
        acquire
            .arg(key)
            .arg(&self.owner)
            .arg(self.lease_ms)
            .arg("WAIT")
            .arg(0);
        if self.bound {
            acquire.arg("BIND").arg(0);
        }
        let fence: Option<u64> = acquire.query_async(&mut self.connection).await?;
        ensure!(
            fence.is_some(),
            "the wait for {key} was ended by somebody else"
        );
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let mut release = cmd("RLOCK.RELEASE");
        release.arg(&self.key).arg(&self.owner);
        let left: Option<u64> = release.query_async(&mut self.connection).await?;
        ensure!(left.is_some(), "{} was no longer held", self.key);
        Ok(())
    }
}
