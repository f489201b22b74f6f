//! What bound holds need to know of their connections: which graces there are,
//! and which connections have ended.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::sync::lock;

/// The graces of the bound holds there are, each with how many have it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    graces: Mutex<BTreeMap<Duration, usize>>,
    changed: Notify,
    /// The number of the last connection that has ended.
    over: AtomicU64,
}

impl Pulse {
    /// Notes a hold with that grace; one that is not bound has none.
    pub(crate) fn add(&self, grace: Option<Duration>) {
        let Some(grace) = grace.filter(|grace| !grace.is_zero()) else {
            return;
        };
        let mut graces = lock(&self.graces);
        let is_shortest = graces
            .keys()
            .next()
            .is_none_or(|shortest| grace < *shortest);
        *graces.entry(grace).or_default() += 1;
        if is_shortest {
            self.changed.notify_one();
        }
    }

    pub(crate) fn remove(&self, grace: Option<Duration>) {
        let Some(grace) = grace else { return };
        let mut graces = lock(&self.graces);
        if let Some(count) = graces.get_mut(&grace) {
            *count -= 1;
            if *count == 0 {
                graces.remove(&grace);
            }
        }
    }

    /// The shortest grace; `None` if nothing is bound.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        lock(&self.graces).keys().next().copied()
    }

    /// Waits until a grace has been added that is shorter than all others.
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
