//! One line of the list of contended locks.

use redis::Value;
use serde::Serialize;

use crate::readable::{milliseconds, printable};
use crate::reply::Fields;

/// A lock that somebody waits for, of the reply to `RLOCK.LIST`.
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

    pub(crate) fn read(value: &Value) -> Self {
        let fields = Fields(value);
        Self {
            key_bytes: fields.bytes("key").to_owned(),
            key: fields.text("key"),
            mode: fields.text("mode"),
            holders: fields.number("holders"),
            waiters: fields.number("waiters"),
            oldest_wait_ms: fields.number("oldest-wait-ms"),
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
