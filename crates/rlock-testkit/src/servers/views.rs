//! A lock in `RLOCK.INFO`, in `RLOCK.LIST` and in its hash, parsed.

use std::collections::BTreeMap;

use redis::Value;

use crate::Server;
use crate::client::{Client, text};

/// A lock as `RLOCK.INFO` shows it.
#[derive(Debug)]
pub struct Lock {
    pub mode: String,
    pub fence: Option<i64>,
    pub holders: Vec<Holder>,
    pub queued: i64,
    pub waiters: Vec<Waiter>,
}

/// One of its holders.
#[derive(Debug)]
pub struct Holder {
    pub owner: String,
    pub count: i64,
    pub permits: i64,
    pub lease_left_ms: i64,
    pub fence: Option<i64>,
    pub is_bound: bool,
}

/// One of its waiters.
#[derive(Debug)]
pub struct Waiter {
    pub owner: String,
    pub waited_ms: i64,
    /// None without a limit, and for a kept place.
    pub wait_left_ms: Option<i64>,
    /// The connection that waits; none for a kept place.
    pub client_id: Option<i64>,
    /// None while the owner waits in the place.
    pub kept_left_ms: Option<i64>,
}

impl Lock {
    pub fn owners(&self) -> Vec<&str> {
        let mut owners: Vec<_> = self.holders.iter().map(|it| it.owner.as_str()).collect();
        owners.sort_unstable();
        owners
    }

    pub fn waiting(&self) -> Vec<&str> {
        self.waiters.iter().map(|it| it.owner.as_str()).collect()
    }

    pub fn waiter(&self, owner: &str) -> Option<&Waiter> {
        self.waiters.iter().find(|it| it.owner == owner)
    }

    pub fn holder(&self, owner: &str) -> Option<&Holder> {
        self.holders.iter().find(|it| it.owner == owner)
    }
}

impl Client {
    /// A lock in the selected database.
    #[track_caller]
    pub fn lock(&self, key: &str) -> Lock {
        let answer = self.call(&["RLOCK.INFO", key]);
        let fields = fields(&answer);
        Lock {
            mode: text(&fields["mode"]),
            fence: number(&fields["fence"]),
            holders: items(&fields["holders"]).iter().map(holder).collect(),
            queued: number(&fields["queued"]).expect("it is a number"),
            waiters: items(&fields["waiters"]).iter().map(waiter).collect(),
        }
    }

    /// The fields of a hash.
    #[track_caller]
    pub fn hash(&self, key: &str) -> BTreeMap<String, String> {
        let answer = self.call(&["HGETALL", key]);
        let fields = fields(&answer).into_iter();
        fields.map(|(name, value)| (name, text(&value))).collect()
    }

    /// The locks in `RLOCK.LIST`, each as `key mode holders waiters`.
    #[track_caller]
    pub fn listed(&self, line: &str) -> Vec<String> {
        let shown = |lock: &Value| {
            let fields = fields(lock);
            let field = |name: &str| text(&fields[name]);
            ["key", "mode", "holders", "waiters"].map(field).join(" ")
        };
        items(&self.call(&crate::client::words(line)))
            .iter()
            .map(shown)
            .collect()
    }
}

impl Server {
    /// A lock in database 0.
    #[track_caller]
    pub fn lock(&self, key: &str) -> Lock {
        self.connection().lock(key)
    }

    /// The holders of a lock in database 0, sorted by name.
    #[track_caller]
    pub fn owners(&self, key: &str) -> Vec<String> {
        let lock = self.lock(key);
        lock.owners().into_iter().map(str::to_owned).collect()
    }

    /// The fields of a hash in database 0.
    #[track_caller]
    pub fn hash(&self, key: &str) -> BTreeMap<String, String> {
        self.connection().hash(key)
    }
}

/// The pairs of a map, in either protocol.
pub fn fields(value: &Value) -> BTreeMap<String, Value> {
    match value {
        Value::Map(pairs) => pairs
            .iter()
            .map(|(name, value)| (text(name), value.clone()))
            .collect(),
        Value::Array(flat) => flat
            .chunks_exact(2)
            .map(|pair| (text(&pair[0]), pair[1].clone()))
            .collect(),
        other => panic!("no map, but {}", text(other)),
    }
}

fn items(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items.clone(),
        other => panic!("no list, but {}", text(other)),
    }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

fn holder(value: &Value) -> Holder {
    let fields = fields(value);
    let count = |name: &str| number(&fields[name]).expect("it is a number");
    Holder {
        owner: text(&fields["owner"]),
        count: count("count"),
        permits: count("permits"),
        lease_left_ms: count("lease-left-ms"),
        fence: number(&fields["fence"]),
        is_bound: count("bound") == 1,
    }
}

fn waiter(value: &Value) -> Waiter {
    let fields = fields(value);
    Waiter {
        owner: text(&fields["owner"]),
        waited_ms: number(&fields["waited-ms"]).expect("it is a number"),
        wait_left_ms: number(&fields["wait-left-ms"]),
        client_id: number(&fields["client-id"]),
        kept_left_ms: number(&fields["kept-left-ms"]),
    }
}
