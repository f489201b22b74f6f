//! The lock libraries, and what is common to them.

use anyhow::bail;
use serde_json::{Value, json};

use crate::Workload;
use crate::modes;
use crate::redis_peers::{Blpop, Rslock, SetNx};
use crate::rlock_peers::{Bound, Raw, RawBound, Rlock};

/// A lock library. It connects once for the whole program.
pub(crate) trait Peer: Sized {
    const NAME: &str;
    const TITLE: &str;
    /// The crate whose version counts.
    const CRATE: &str;
    const WAITS: &str;
    const SETTINGS: &str;

    type Caller: Caller;

    async fn open(workload: &Workload) -> anyhow::Result<Self>;

    async fn caller(&self, workload: &Workload) -> anyhow::Result<Self::Caller>;
}

/// One user of a lock, who acquires and releases one lock at a time.
pub(crate) trait Caller: Send + 'static {
    /// What has to be there before anybody can acquire `key`; it is called by
    /// one process only.
    fn prepare(&mut self, _key: &str) -> impl Future<Output = anyhow::Result<()>> + Send {
        async { Ok(()) }
    }

    fn acquire(&mut self, key: &str) -> impl Future<Output = anyhow::Result<()>> + Send;

    fn release(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

macro_rules! peers {
    ($($peer:ty),* $(,)?) => {
        /// What `--list` prints.
        pub(crate) fn list() -> Value {
            json!([$(describe::<$peer>()),*])
        }

        pub(crate) async fn run(name: &str, workload: Workload) -> anyhow::Result<()> {
            $(if name == <$peer>::NAME {
                return modes::run::<$peer>(workload).await;
            })*
            bail!("--peer is {name:?}: it must be one of {:?}", [$(<$peer>::NAME),*])
        }
    };
}

peers!(Rslock, Rlock, Bound, Raw, RawBound, SetNx, Blpop);

fn describe<P: Peer>() -> Value {
    json!({
        "name": P::NAME,
        "title": P::TITLE,
        "version": version(P::CRATE),
        "language": "Rust",
        "waits": P::WAITS,
        "settings": P::SETTINGS,
    })
}

/// The version that this program was built with.
fn version(of: &str) -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let package = lock.split("[[package]]").find(|package| {
        package
            .lines()
            .any(|line| line == format!("name = \"{of}\""))
    });
    let line = package.and_then(|package| package.lines().find(|line| line.starts_with("version")));
    line.and_then(|line| line.split('"').nth(1))
        .unwrap_or("unknown")
}
