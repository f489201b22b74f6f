//! How often a connection has to be known to be there, for bound holds and for
//! those who wait; and which connections have ended.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::sync::lock;

/// The graces of the bound holds there are, each with how many have it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    graces: Mutex<BTreeMap<Duration, usize>>,
    /// The leases that are waited for, each with how many wait.
    leases: Mutex<BTreeMap<Duration, usize>>,
    changed: Notify,
    /// The number of the last connection that has ended.
    over: AtomicU64,
}

impl Pulse {
    /// Notes a hold with that grace; one that is not bound has none.
    pub(crate) fn add(&self, grace: Option<Duration>) {
        if let Some(grace) = grace.filter(|grace| !grace.is_zero())
            && count(&self.graces, grace)
        {
            self.changed.notify_one();
        }
    }

    pub(crate) fn remove(&self, grace: Option<Duration>) {
        if let Some(grace) = grace {
            uncount(&self.graces, grace);
        }
    }

    /// Notes that somebody waits for a lease as long as that, until the answer
    /// is dropped.
    pub(crate) fn wait(self: &Arc<Self>, lease: Duration) -> Waiting {
        if count(&self.leases, lease) {
            self.changed.notify_one();
        }
        let pulse = Arc::clone(self);
        Waiting { pulse, lease }
    }

    /// The shortest grace; `None` if nothing is bound.
    pub(crate) fn shortest_grace(&self) -> Option<Duration> {
        lock(&self.graces).keys().next().copied()
    }

    /// The shortest lease that is waited for; `None` if nobody waits.
    pub(crate) fn shortest_lease(&self) -> Option<Duration> {
        lock(&self.leases).keys().next().copied()
    }

    /// Waits until a grace or lease has been added that is shorter than the others.
    pub(crate) async fn shortened(&self) {
        self.changed.notified().await;
    }

    /// Notes that a connection has ended, before anybody is told.
    pub(crate) fn set_over(&self, link: u64) {
        self.over.store(link, Ordering::SeqCst);
    }

    /// Whether the connection of that number has ended.
    pub(crate) fn is_over(&self, link: u64) -> bool {
        link <= self.over.load(Ordering::SeqCst)
    }
}

/// Somebody who waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pulse: Arc<Pulse>,
    lease: Duration,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        uncount(&self.pulse.leases, self.lease);
    }
}

/// Counts one more of that length; whether it is shorter than all others.
fn count(all: &Mutex<BTreeMap<Duration, usize>>, length: Duration) -> bool {
    let mut all = lock(all);
    let shortest = all.keys().next().copied();
    *all.entry(length).or_default() += 1;
    shortest.is_none_or(|shortest| length < shortest)
}

fn uncount(all: &Mutex<BTreeMap<Duration, usize>>, length: Duration) {
    let mut all = lock(all);
    if let Some(count) = all.get_mut(&length) {
        *count -= 1;
        if *count == 0 {
            all.remove(&length);
        }
    }
}
