//! One lock: who holds it and who waits for it.

use redis::Value;
use serde::Serialize;

use crate::readable::{milliseconds, milliseconds_or, printable, table};
use crate::reply::Fields;

/// The reply to `RLOCK.INFO`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LockInfo {
    pub(crate) key: String,
    pub(crate) mode: String,
    pub(crate) fence: Option<u64>,
    pub(crate) holders: Vec<Holder>,
    pub(crate) queued: u64,
    pub(crate) waiters: Vec<Waiter>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Holder {
    pub(crate) owner: String,
    pub(crate) count: u64,
    pub(crate) permits: u64,
    pub(crate) lease_left_ms: u64,
    pub(crate) fence: Option<u64>,
    pub(crate) bound: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Waiter {
    pub(crate) owner: String,
    pub(crate) mode: String,
    pub(crate) waited_ms: u64,
    pub(crate) wait_left_ms: Option<u64>,
    pub(crate) client_id: u64,
}

impl LockInfo {
    pub(crate) fn read(key: &[u8], reply: &Value) -> Self {
        let fields = Fields(reply);
        Self {
            key: String::from_utf8_lossy(key).into_owned(),
            mode: fields.text("mode"),
            fence: fields.optional("fence"),
            holders: fields.list("holders").iter().map(Holder::read).collect(),
            queued: fields.number("queued"),
            waiters: fields.list("waiters").iter().map(Waiter::read).collect(),
        }
    }

    /// What it says in words and tables.
    pub(crate) fn words(&self) -> String {
        let mut words = format!("{}: {}", printable(&self.key), self.mode);
        if let Some(fence) = self.fence {
            words.push_str(&format!(", fence {fence}"));
        }
        words.push_str(&format!(", {} queued\n", self.queued));
        if !self.holders.is_empty() {
            words.push_str(&format!("\n{}\n", self.holder_table()));
        }
        if !self.waiters.is_empty() {
            words.push_str(&format!("\n{}\n", self.waiter_table()));
        }
        words
    }

    /// Who holds the lock.
    pub(crate) fn holder_table(&self) -> String {
        let mut holders = table(&Holder::HEADER, &[1, 2, 3]);
        holders.add_rows(self.holders.iter().map(Holder::row));
        holders.trim_fmt()
    }

    fn waiter_table(&self) -> String {
        let mut waiters = table(&Waiter::HEADER, &[0, 5]);
        let rows = self.waiters.iter().zip(1..);
        waiters.add_rows(rows.map(|(waiter, place)| waiter.row(place)));
        waiters.trim_fmt()
    }
}

impl Holder {
    pub(crate) const HEADER: [&str; 6] =
        ["HOLDER", "COUNT", "PERMITS", "LEASE LEFT", "FENCE", "BOUND"];

    fn read(value: &Value) -> Self {
        let fields = Fields(value);
        Self {
            owner: fields.text("owner"),
            count: fields.number("count"),
            permits: fields.number("permits"),
            lease_left_ms: fields.number("lease-left-ms"),
            fence: fields.optional("fence"),
            bound: fields.number("bound") != 0,
        }
    }

    pub(crate) fn row(&self) -> [String; 6] {
        let fence = self.fence.map(|fence| fence.to_string());
        [
            printable(&self.owner),
            self.count.to_string(),
            self.permits.to_string(),
            milliseconds(self.lease_left_ms),
            fence.unwrap_or_else(|| "none".to_owned()),
            if self.bound { "yes" } else { "no" }.to_owned(),
        ]
    }
}

impl Waiter {
    pub(crate) const HEADER: [&str; 6] =
        ["PLACE", "WAITER", "MODE", "WAITED", "WAIT LEFT", "CLIENT"];

    fn read(value: &Value) -> Self {
        let fields = Fields(value);
        Self {
            owner: fields.text("owner"),
            mode: fields.text("mode"),
            waited_ms: fields.number("waited-ms"),
            wait_left_ms: fields.optional("wait-left-ms"),
            client_id: fields.number("client-id"),
        }
    }

    pub(crate) fn row(&self, place: u64) -> [String; 6] {
        [
            place.to_string(),
            printable(&self.owner),
            self.mode.clone(),
            milliseconds(self.waited_ms),
            milliseconds_or(self.wait_left_ms, "no limit"),
            self.client_id.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reply_leaves_out_is_none_or_empty() {
        let text = |text: &str| Value::BulkString(text.into());
        let holder = Value::Array(vec![
            text("owner"),
            text("ann"),
            text("count"),
            Value::Int(1),
        ]);
        let reply = Value::Array(vec![
            text("mode"),
            text("exclusive"),
            text("holders"),
            Value::Array(vec![holder, Value::Nil]),
        ]);
        let info = LockInfo::read(b"k", &reply);
        assert_eq!((info.mode.as_str(), info.fence), ("exclusive", None));
        assert_eq!((info.queued, info.waiters.len()), (0, 0));
        assert_eq!(
            (info.holders[0].owner.as_str(), info.holders[0].count),
            ("ann", 1)
        );
        assert!(info.words().contains("ann"));
    }
}
