//! The members of a quorum: what is known of each server, and whether it may
//! take part.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rlock_engine::endpoint::{Check, Endpoint, Greeting};
use rlock_engine::engine::instant::Instant;
use rlock_engine::error::{Error, Failure};
use rlock_engine::servers::Servers;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::client_builder::ClientBuilder;
use crate::pump::{lock, now};

/// How long a connection is quiet at most while somebody waits there.
const QUIET: Duration = Duration::from_secs(1);
/// For how long a connection may be gone before waiting elsewhere is better.
const BRIEFLY: Duration = Duration::from_millis(50);

/// What is known of all members; each is looked at on every new connection.
pub(crate) type Files = Arc<Vec<Mutex<File>>>;

/// What is known of a member, by its last connection.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) address: String,
    /// What it calls itself since its last start; empty before it was met.
    run_id: String,
    replication_id: String,
    /// For how long it grants nothing after a start; none if it forgets
    /// nothing.
    grace: Option<Duration>,
    /// When it begins to grant.
    grants_from: Instant,
    /// Until when it is left alone, as it was too slow, and for how long.
    slow_until: Instant,
    slow_for: Duration,
    /// Why it may not take part.
    pub(crate) refused: Option<Error>,
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) client: Client,
    pub(crate) address: String,
    files: Files,
    number: usize,
}

impl Member {
    /// Begins to connect to each of `servers`.
    pub(crate) fn begin(
        servers: Vec<Servers>,
        settings: &ClientBuilder,
    ) -> Result<(Vec<Self>, Vec<JoinHandle<()>>), Error> {
        let addresses = servers.iter().flat_map(Servers::addresses);
        let addresses: Vec<_> = addresses.map(ToString::to_string).collect();
        let files = addresses.iter().cloned().map(File::of).map(Mutex::new);
        let files: Files = Arc::new(files.collect());
        let begin = |((number, server), address)| {
            let check = check(Arc::clone(&files), number);
            let (client, task) = settings.clone().begin(server, check)?;
            client.inner.state.set_quiet(QUIET);
            let member = Self {
                client,
                address,
                files: Arc::clone(&files),
                number,
            };
            Ok((member, task))
        };
        servers
            .into_iter()
            .enumerate()
            .zip(addresses)
            .map(begin)
            .collect()
    }

    fn file<T>(&self, look: impl FnOnce(&mut File) -> T) -> Option<T> {
        self.files
            .get(self.number)
            .map(|file| look(&mut lock(file)))
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.inner.state.is_connected()
    }

    /// Whether it will never be connected again, as its runtime is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.inner.state.look(Endpoint::is_closed)
    }

    /// Why it cannot be asked for a lock with that lease now. A grace that is
    /// too short counts unless none is demanded.
    pub(crate) fn why_not(&self, lease: Option<Duration>) -> Option<String> {
        if !self.is_connected() {
            let why = self.client.inner.state.last_failure();
            return Some(why.map_or("no connection".to_owned(), |why| why.to_string()));
        }
        let now = now();
        self.file(|file| match lease {
            Some(lease) if file.is_grace_below(lease) => {
                Some(format!("its grace is below {lease:?}"))
            }
            _ if now < file.grants_from => {
                let left = file.grants_from - now;
                Some(format!("it grants nothing for {left:?} after its start"))
            }
            _ => None,
        })
        .flatten()
    }

    /// For how long it grants nothing after a start; none if it forgets nothing,
    /// or has not been met.
    pub(crate) fn grace(&self) -> Option<Duration> {
        let grace = |file: &mut File| file.grace.filter(|_| !file.run_id.is_empty());
        self.file(grace).flatten()
    }

    pub(crate) fn refused(&self) -> Option<Error> {
        self.file(|file| file.refused.clone()).flatten()
    }

    /// Has it left alone for as long as it was waited for; for twice as long as
    /// the last time if it has not answered since, but not beyond `limit`.
    pub(crate) fn is_slow(&self, waited: Duration, limit: Duration) {
        let now = now();
        self.file(|file| {
            // Several calls may have waited at the same time.
            if file.slow_until <= now {
                file.slow_for = (file.slow_for * 2).max(waited).min(limit);
                file.slow_until = now + file.slow_for;
            }
        });
    }

    /// It has answered in time.
    pub(crate) fn is_quick(&self) {
        self.file(|file| file.slow_for = Duration::ZERO);
    }

    /// Whether it was too slow a short time ago.
    pub(crate) fn was_slow(&self) -> bool {
        self.file(|file| now() < file.slow_until).unwrap_or(false)
    }

    /// Where it stands among those that are waited for at `key`: the same for
    /// all clients, by whatever name they know it, and another one for each key.
    pub(crate) fn rank(&self, key: &[u8]) -> (bool, u64) {
        let rank = |file: &mut File| (file.run_id.is_empty(), mixed(file.run_id.as_bytes(), key));
        self.file(rank).unwrap_or((true, 0))
    }

    /// Waits until its connection is gone for more than a moment.
    pub(crate) async fn gone(&self) {
        let mut connections = self.client.inner.state.changes();
        loop {
            if !self.is_connected() {
                tokio::time::sleep(BRIEFLY).await;
                if !self.is_connected() {
                    return;
                }
            }
            if connections.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until no sign of life that was asked for has come for `limit`.
    pub(crate) async fn silent(&self, limit: Duration) {
        let begun = now();
        loop {
            let last = self.client.inner.state.known_good().max(begun);
            let left = (QUIET + limit).saturating_sub(now() - last);
            if left.is_zero() {
                return;
            }
            late(left).await;
        }
    }

    /// Waits until it has been reached, or could not be; why not.
    pub(crate) async fn met(&self) -> Option<Failure> {
        let mut connections = self.client.inner.state.changes();
        loop {
            let failure = self.client.inner.state.last_failure();
            if self.is_connected() || failure.is_some() {
                return failure;
            }
            connections.changed().await.ok()?;
        }
    }
}

impl File {
    fn of(address: String) -> Self {
        Self {
            address,
            run_id: String::new(),
            replication_id: String::new(),
            grace: None,
            grants_from: Instant::from_nanos(0),
            slow_until: Instant::from_nanos(0),
            slow_for: Duration::ZERO,
            refused: None,
        }
    }

    fn is_grace_below(&self, lease: Duration) -> bool {
        self.grace.is_some_and(|grace| grace < lease)
    }
}

/// Looks at a member by each new connection to it.
fn check(files: Files, number: usize) -> Check {
    Arc::new(move |now, said| {
        let Some(own) = files.get(number) else {
            return Ok(());
        };
        let mut refused = read(&mut lock(own), now, said);
        // One at a time is locked: two that are compared with each other at once
        // both see it.
        for (other, file) in files.iter().enumerate() {
            if other != number && refused.is_none() {
                let theirs = lock(file).ids();
                refused = theirs.and_then(|theirs| lock(own).is_like(&theirs));
            }
        }
        lock(own).refused.clone_from(&refused);
        refused.map_or(Ok(()), |why| Err(why.to_string()))
    })
}

/// Notes what a member says of itself; why it may not take part.
fn read(file: &mut File, now: Instant, said: &Greeting) -> Option<Error> {
    let field = |name: &str| {
        let mut lines = said.info.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    };
    let setting = |name: &str| {
        let mut pairs = said.settings.iter().flatten();
        let pair = pairs.find(|(known, _)| known == name);
        pair.map(|(_, value)| value.as_str())
    };
    let left = field("rlock_grace_left_ms");
    (file.run_id, file.replication_id) = (field("run_id"), field("master_replid"));
    file.grants_from = now + Duration::from_millis(left.parse().unwrap_or(0));
    (file.slow_until, file.slow_for) = (Instant::from_nanos(0), Duration::ZERO);
    let durable = [
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("no-appendfsync-on-rewrite", "no"),
    ];
    let forgets = !durable
        .iter()
        .all(|(name, value)| setting(name) == Some(value));
    let grace = setting("rlock.startup-grace-ms").and_then(|ms| ms.parse().ok());
    // Where the server does not say it, it may be nothing.
    file.grace = forgets.then(|| Duration::from_millis(grace.unwrap_or(0)));
    if left.is_empty() {
        return Some(file.refusal(Error::ModuleMissing.to_string()));
    }
    (field("role") != "master").then(|| file.refusal("it is a replica".to_owned()))
}

impl File {
    /// Its address and what it is known by, if it takes part.
    fn ids(&self) -> Option<[String; 3]> {
        let takes_part = self.refused.is_none() && !self.run_id.is_empty();
        let ids = [&self.address, &self.run_id, &self.replication_id];
        takes_part.then(|| ids.map(Clone::clone))
    }

    /// Why it may not take part beside another member.
    fn is_like(&self, [other, run_id, replication_id]: &[String; 3]) -> Option<Error> {
        if *run_id == self.run_id {
            return Some(self.refusal(format!("it is the same server as {other}")));
        }
        let is_copy = *replication_id == self.replication_id;
        is_copy.then(|| self.refusal(format!("it is or was a replica together with {other}")))
    }

    fn refusal(&self, reason: String) -> Error {
        let address = self.address.clone();
        Error::Member { address, reason }
    }
}

/// Waits for that time. If this process itself comes too late, it waits as long
/// again: the answer may be here, and not read.
pub(crate) async fn late(time: Duration) {
    let due = now() + time;
    tokio::time::sleep(time).await;
    tokio::time::sleep(now() - due).await;
}

/// A number that has no order in common with others of the same key or name.
fn mixed(name: &[u8], key: &[u8]) -> u64 {
    // FNV-1a, and the end of splitmix64.
    let bytes = name.iter().chain(key);
    let hash = bytes.fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}
