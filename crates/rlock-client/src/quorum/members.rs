//! The members of a quorum: what is known of each server, and whether it may
//! take part.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rlock_engine::endpoint::{Check, Endpoint, Greeting, Limits};
use rlock_engine::engine::claims::Owner;
use rlock_engine::engine::instant::Instant;
use rlock_engine::error::{Error, Failure};
use rlock_engine::servers::Servers;
use rlock_engine::wire::inspect::fields;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::client_builder::ClientBuilder;
use crate::pump::{lock, now};
use crate::quorum::hold::{Name, Turn};
use crate::quorum::plan::majority;

/// How long a connection is quiet at most while somebody waits there.
const QUIET: Duration = Duration::from_secs(1);
/// For how long a connection may be gone before waiting elsewhere is better.
const BRIEFLY: Duration = Duration::from_millis(50);

/// All members, and what their locks work with together.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) all: Vec<Arc<Member>>,
    /// The shortest startup grace of those that were met first, and whose it
    /// is; none if any will do.
    shortest_grace: Option<(Duration, String)>,
    any_grace: bool,
    pub(crate) limits: Limits,
    pub(crate) runtime: Handle,
    pub(crate) turns: Mutex<HashMap<Name, Weak<Turn>>>,
    /// Holds that ended while what they ask was polled, on another thread, which
    /// drops it in a moment.
    pub(crate) unheard: AtomicUsize,
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) client: Client,
    record: Arc<Mutex<Record>>,
}

/// What is known of a member, by its last connection.
#[derive(Debug)]
struct Record {
    address: String,
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
    refused: Option<Error>,
}

impl Members {
    /// Connects to a majority of `servers`, and begins to connect to the others.
    pub(crate) async fn connect(
        servers: Vec<Servers>,
        settings: &ClientBuilder,
        any_grace: bool,
    ) -> Result<(Self, Vec<JoinHandle<()>>), Error> {
        let addresses = servers.iter().flat_map(Servers::addresses);
        let files = addresses.map(|address| Record::of(address.to_string()));
        let files: Vec<_> = files.map(|record| Arc::new(Mutex::new(record))).collect();
        let (mut all, mut tasks) = (Vec::new(), Vec::new());
        for (server, record) in servers.into_iter().zip(&files) {
            let others = files.iter().filter(|other| !Arc::ptr_eq(other, record));
            let check = check(Arc::clone(record), others.map(Arc::clone).collect());
            let (client, task) = settings.clone().begin(server, check)?;
            client.inner.state.set_quiet(QUIET);
            let record = Arc::clone(record);
            all.push(Arc::new(Member { client, record }));
            tasks.push(task);
        }
        let mut members = Self {
            all,
            shortest_grace: None,
            any_grace,
            limits: settings.limits,
            runtime: Handle::current(),
            turns: Mutex::default(),
            unheard: AtomicUsize::new(0),
        };
        members.meet().await?;
        let graces = members.all.iter();
        let graces = graces.filter_map(|member| Some((member.grace()?, member.address())));
        members.shortest_grace = graces.min().filter(|_| !any_grace);
        Ok((members, tasks))
    }

    /// Waits for the first connections: of a majority, and for a while for those
    /// of the others.
    async fn meet(&self) -> Result<(), Error> {
        let has_enough = || self.count(Member::is_connected) >= self.majority();
        let mut rest: FuturesUnordered<_> = self.all.iter().map(|it| it.met()).collect();
        let mut failures = Vec::new();
        loop {
            let limit = self.limits.response / if has_enough() { 4 } else { 1 };
            match tokio::time::timeout(limit, rest.next()).await {
                Ok(Some(failure)) => failures.extend(failure),
                Ok(None) | Err(_) => break,
            }
        }
        let refused = |it: &Arc<Member>| lock(&it.record).refused.clone();
        if let Some(refused) = self.all.iter().find_map(refused) {
            return Err(refused);
        }
        let mut failures = failures.into_iter().map(Error::Connect);
        if let Some(lasting) = failures.find(|error| !error.is_transient()) {
            return Err(lasting);
        }
        if has_enough() {
            return Ok(());
        }
        let what = "fewer than a majority of the members answer";
        let why = |it: &Member| it.why_not(None).or_else(|| Some("connected".into()));
        Err(Error::Connect(self.failure(what, why)))
    }

    fn count(&self, is_meant: impl Fn(&Member) -> bool) -> usize {
        self.all.iter().filter(|member| is_meant(member)).count()
    }

    pub(crate) fn majority(&self) -> usize {
        majority(self.all.len())
    }

    /// Whether a member can be asked for a lock with that lease now. Those that
    /// were too slow are left alone only where the others are a majority.
    pub(crate) fn usable(&self, lease: Option<Duration>) -> impl Fn(&Member) -> bool + use<> {
        let lease = lease.filter(|_| !self.any_grace);
        let is_quick = |it: &Member| it.why_not(lease).is_none() && !it.was_slow();
        let has_enough = self.count(is_quick) >= self.majority();
        move |it| it.why_not(lease).is_none() && !(has_enough && it.was_slow())
    }

    /// Whether a lease is over before that member grants after a crash.
    pub(crate) fn outlives(&self, member: &Member, lease: Duration) -> bool {
        self.any_grace || member.grace().is_none_or(|grace| grace >= lease)
    }

    pub(crate) fn check_grace(&self, lease: Duration) -> Result<(), Error> {
        match &self.shortest_grace {
            Some((grace, address)) if *grace < lease => Err(Error::Member {
                address: address.clone(),
                reason: format!(
                    "its `rlock.startup-grace-ms` is {}, below the lease of {} ms, so after a \
                     crash it may grant what is still held: raise it, set `appendonly yes` and \
                     `appendfsync always`, or call `QuorumBuilder::any_grace`",
                    grace.as_millis(),
                    lease.as_millis(),
                ),
            }),
            _ => Ok(()),
        }
    }

    /// The error of a call that has begun then, and was not answered by enough;
    /// `refusals` is what some have refused.
    pub(crate) fn unavailable(
        &self,
        begun: Instant,
        lease: Duration,
        refusals: &[(Arc<Member>, Error)],
    ) -> Error {
        let lease = (!self.any_grace).then_some(lease);
        let why = |it: &Member| {
            let slow = || it.was_slow().then(|| "it is too slow".to_owned());
            let refusal = || {
                let mut refusals = refusals.iter();
                let known = refusals.find(|(known, _)| std::ptr::eq(Arc::as_ptr(known), it))?;
                Some(known.1.to_string())
            };
            it.why_not(lease).or_else(slow).or_else(refusal)
        };
        Error::Unavailable {
            waited: now() - begun,
            source: Some(self.failure("too few members of the quorum answer", why)),
        }
    }

    fn failure(&self, what: &str, why: impl Fn(&Member) -> Option<String>) -> Failure {
        let members = self.all.iter();
        let why = members.filter_map(|it| Some(format!("{}: {}", it.address(), why(it)?)));
        let why: Vec<_> = why.collect();
        Failure::Io(format!("{what}: {}", why.join("; ")))
    }

    /// Another owner for each call. The members' engines remember nothing of it:
    /// the fence of each grant is raised at a majority anyway.
    pub(crate) fn next_owner(&self) -> Owner {
        let first = self.all.first();
        first.map_or_else(
            || Owner::numbered("quorum", 0),
            |it| it.client.inner.next_owner(),
        )
    }
}

impl Member {
    pub(crate) fn address(&self) -> String {
        lock(&self.record).address.clone()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.inner.state.is_connected()
    }

    /// Whether it will never be connected again, because its runtime is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.inner.state.read(Endpoint::is_closed)
    }

    /// Why it cannot be asked for a lock with that lease now. A grace that is
    /// too short counts unless none is demanded.
    fn why_not(&self, lease: Option<Duration>) -> Option<String> {
        if !self.is_connected() {
            let why = self.client.inner.state.last_failure();
            return Some(why.map_or("no connection".to_owned(), |why| why.to_string()));
        }
        let (now, record) = (now(), lock(&self.record));
        match lease {
            Some(lease) if record.grace.is_some_and(|grace| grace < lease) => {
                Some(format!("its grace is below {lease:?}"))
            }
            _ if now < record.grants_from => {
                let left = record.grants_from - now;
                Some(format!("it grants nothing for {left:?} after its start"))
            }
            _ => None,
        }
    }

    /// For how long it grants nothing after a start; none if it forgets nothing,
    /// or has not been met.
    fn grace(&self) -> Option<Duration> {
        let record = lock(&self.record);
        record.grace.filter(|_| !record.run_id.is_empty())
    }

    /// How long it may take for an answer that others could give.
    fn answer_timeout(&self, lease: Duration) -> Duration {
        answer_timeout(self.client.inner.state.limits, lease)
    }

    /// Has it left alone for as long as it was waited for; for twice as long as
    /// the last time if it has not answered since, but not beyond the limit of a
    /// response.
    fn is_slow(&self, lease: Duration) {
        let (now, waited) = (now(), self.answer_timeout(lease));
        let mut record = lock(&self.record);
        // Several calls may have waited at the same time.
        if record.slow_until <= now {
            record.slow_for = (record.slow_for * 2)
                .max(waited)
                .min(self.client.inner.state.limits.response);
            record.slow_until = now + record.slow_for;
        }
    }

    /// It has answered in time.
    pub(crate) fn is_quick(&self) {
        lock(&self.record).slow_for = Duration::ZERO;
    }

    /// Whether it was too slow a short time ago.
    fn was_slow(&self) -> bool {
        now() < lock(&self.record).slow_until
    }

    /// Where it stands among those that are waited for at `key`: the same for
    /// all clients, by whatever name they know it, and another one for each key.
    pub(crate) fn rank(&self, key: &[u8]) -> (bool, u64) {
        let record = lock(&self.record);
        (
            record.run_id.is_empty(),
            mixed(record.run_id.as_bytes(), key),
        )
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

    /// What `answer` gives; none if it does not come in time, or the connection
    /// is gone.
    pub(crate) async fn in_time<F: Future>(&self, lease: Duration, answer: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            answer = answer => Some(answer),
            () = self.gone() => None,
            () = late(self.answer_timeout(lease)) => {
                self.is_slow(lease);
                None
            }
        }
    }

    /// Waits until a heartbeat is not answered in time.
    pub(crate) async fn silent(&self, lease: Duration) {
        let (begun, limit) = (now(), self.answer_timeout(lease));
        loop {
            let last = self.client.inner.state.known_good().max(begun);
            let left = (QUIET + limit).saturating_sub(now() - last);
            if left.is_zero() {
                return self.is_slow(lease);
            }
            late(left).await;
        }
    }

    /// Waits until it has been reached, or could not be; why not.
    async fn met(&self) -> Option<Failure> {
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

impl Record {
    fn of(address: String) -> Self {
        let never = Instant::from_nanos(0);
        Self {
            address,
            run_id: String::new(),
            replication_id: String::new(),
            grace: None,
            grants_from: never,
            slow_until: never,
            slow_for: Duration::ZERO,
            refused: None,
        }
    }

    /// Notes what a member says of itself; why it may not take part.
    fn read(&mut self, now: Instant, greeting: &Greeting) -> Option<Error> {
        let field = |name: &str| {
            let field = fields(&greeting.info).find(|(known, _)| *known == name);
            field.map_or_else(String::new, |(_, value)| value.to_owned())
        };
        let setting = |name: &str| {
            let mut pairs = greeting.settings.iter().flatten();
            let pair = pairs.find(|(known, _)| known == name);
            pair.map(|(_, value)| value.as_str())
        };
        let left = field("rlock_grace_left_ms");
        (self.run_id, self.replication_id) = (field("run_id"), field("master_replid"));
        self.grants_from = now + Duration::from_millis(left.parse().unwrap_or(0));
        (self.slow_until, self.slow_for) = (Instant::from_nanos(0), Duration::ZERO);
        let is_durable = setting("appendonly") == Some("yes")
            && setting("appendfsync") == Some("always")
            && setting("no-appendfsync-on-rewrite") == Some("no");
        let grace = setting("rlock.startup-grace-ms").and_then(|ms| ms.parse().ok());
        // Where the server does not say it, it may be nothing.
        self.grace = (!is_durable).then(|| Duration::from_millis(grace.unwrap_or(0)));
        if left.is_empty() {
            return Some(self.refusal(Error::ModuleMissing.to_string()));
        }
        (field("role") != "master").then(|| self.refusal("it is a replica".to_owned()))
    }

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

/// Looks at a member by each new connection to it.
fn check(own: Arc<Mutex<Record>>, others: Vec<Arc<Mutex<Record>>>) -> Check {
    Arc::new(move |now, greeting| {
        let mut refused = lock(&own).read(now, greeting);
        // One at a time is locked: two that are compared with each other at once
        // both see it.
        for other in &others {
            if refused.is_none() {
                let theirs = lock(other).ids();
                refused = theirs.and_then(|theirs| lock(&own).is_like(&theirs));
            }
        }
        lock(&own).refused.clone_from(&refused);
        refused.map_or(Ok(()), |why| Err(why.to_string()))
    })
}

/// How long a member may take for an answer that others could give.
pub(crate) fn answer_timeout(limits: Limits, lease: Duration) -> Duration {
    let limit = (limits.response / 4).min(lease / 10);
    limit.max(Duration::from_millis(5))
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
