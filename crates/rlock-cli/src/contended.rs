//! One line of the list of contended locks.

use serde::Serialize;

use crate::readable::{milliseconds, printable, whole_ms};

/// A lock with places in its queue, in the words of the JSON output.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Contended {
    /// As the server has it, for asking about it.
    #[serde(skip)]
    pub(crate) key_bytes: Vec<u8>,
    pub(crate) key: String,
    pub(crate) mode: String,
    pub(crate) holders: u64,
    pub(crate) waiters: u64,
    pub(crate) oldest_wait_ms: u64,
}

impl Contended {
    pub(crate) const HEADER: [&str; 5] = ["KEY", "MODE", "HOLDERS", "WAITERS", "OLDEST WAIT"];

    pub(crate) fn new(lock: rlock_client::Contended) -> Self {
        Self {
            key: String::from_utf8_lossy(&lock.key).into_owned(),
            key_bytes: lock.key,
            mode: lock.mode.to_string(),
            holders: lock.holders,
            waiters: lock.waiters,
            oldest_wait_ms: whole_ms(lock.oldest_wait),
        }
    }

    pub(crate) fn row(&self) -> [String; 5] {
        [
            printable(&self.key),
            self.mode.clone(),
            self.holders.to_string(),
            self.waiters.to_string(),
            milliseconds(self.oldest_wait_ms),
        ]
    }
}
