//! One lock: who holds it and who waits for it.

use serde::Serialize;

use crate::readable::{milliseconds, milliseconds_or, printable, table, whole_ms};

/// What the server says about a lock, in the words of the JSON output.
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
    /// None for a kept place.
    pub(crate) client_id: Option<u64>,
    /// None while somebody waits in it.
    pub(crate) kept_left_ms: Option<u64>,
}

impl LockInfo {
    pub(crate) fn new(key: &[u8], info: rlock_client::Info) -> Self {
        Self {
            key: String::from_utf8_lossy(key).into_owned(),
            mode: info.mode.to_string(),
            fence: info.fence,
            holders: info.holders.into_iter().map(Holder::new).collect(),
            queued: info.queued,
            waiters: info.waiters.into_iter().map(Waiter::new).collect(),
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

    fn new(holder: rlock_client::Holder) -> Self {
        Self {
            owner: holder.owner,
            count: holder.count,
            permits: holder.permits,
            lease_left_ms: whole_ms(holder.lease_left),
            fence: holder.fence,
            bound: holder.is_bound,
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

    fn new(waiter: rlock_client::Waiter) -> Self {
        Self {
            owner: waiter.owner,
            mode: waiter.mode.to_string(),
            waited_ms: whole_ms(waiter.waited),
            wait_left_ms: waiter.wait_left.map(whole_ms),
            client_id: waiter.client_id,
            kept_left_ms: waiter.kept_left.map(whole_ms),
        }
    }

    pub(crate) fn row(&self, place: u64) -> [String; 6] {
        let wait_left = match self.kept_left_ms {
            Some(left) => format!("kept {}", milliseconds(left)),
            None => milliseconds_or(self.wait_left_ms, "no limit"),
        };
        let client = self.client_id.map(|id| id.to_string());
        [
            place.to_string(),
            printable(&self.owner),
            self.mode.clone(),
            milliseconds(self.waited_ms),
            wait_left,
            client.unwrap_or_else(|| "none".to_owned()),
        ]
    }
}
