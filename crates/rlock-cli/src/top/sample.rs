//! What one look at the server shows.

use std::time::{Instant, SystemTime};

use serde::Serialize;

use crate::contended::Contended;
use crate::counters::{Counters, Rates};
use crate::failure::Failure;
use crate::lock_info::LockInfo;
use crate::readable::whole_ms;
use crate::server::Server;

/// One look, and what has changed since the one before.
#[derive(Debug, Serialize)]
pub(super) struct Sample {
    /// This machine's clock, in milliseconds since 1970.
    pub(super) at_ms: u64,
    /// What the rates are measured over.
    pub(super) interval_ms: u64,
    pub(super) counters: Counters,
    pub(super) per_second: Rates,
    pub(super) locks: Vec<Contended>,
}

/// Looks again and again.
pub(super) struct Sampler {
    server: Server,
    /// How many locks to ask for.
    locks: u16,
    before: Counters,
    looked: Instant,
}

impl Sampler {
    /// Looks for the first time.
    pub(super) async fn start(mut server: Server, locks: u16) -> Result<Self, Failure> {
        server.list(1).await?;
        let before = server.counters().await?;
        let looked = Instant::now();
        Ok(Self {
            server,
            locks,
            before,
            looked,
        })
    }

    /// Looks once more.
    pub(super) async fn next(&mut self) -> Result<Sample, Failure> {
        let counters = self.server.counters().await?;
        let (before, elapsed) = (&self.before, self.looked.elapsed());
        let per_second = counters.rates(before, elapsed);
        self.looked = Instant::now();
        self.before = counters.clone();
        Ok(Sample {
            at_ms: now_ms(),
            interval_ms: whole_ms(elapsed),
            counters,
            per_second,
            locks: self.server.list(self.locks).await?,
        })
    }

    /// Looks at one lock.
    pub(super) async fn lock(&mut self, key: &[u8]) -> Result<LockInfo, Failure> {
        self.server.info(key).await
    }

    /// The server's name.
    pub(super) fn shown(&self) -> &str {
        &self.server.address.shown
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    whole_ms(since.unwrap_or_default())
}
