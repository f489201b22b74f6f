//! Calls and guards, by the numbers that the host gives them.
//!
//! One type, whole: every event of the host and every action of the endpoint
//! passes through it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use rlock_engine::endpoint::{
    Action, Change, ConnectionId, Endpoint, Event, Limits, Note, Outcome as Resolved, Settings, To,
};
use rlock_engine::engine::claims::{self, Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::node::{Node, slot_of};
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Ask, Queueing, Terms, Value, lease_ms, whole_ms_or_zero};
use rlock_engine::engine::{self, Event as Engine, Id, Outcome, pause};
use rlock_engine::error::{Error, Loss};
use rlock_engine::servers::Servers;
use rlock_engine::wire::resp::{Command, Frame};
use rlock_engine::wire::{inspect, replies, requests};

use crate::format::{Data, Fence, Malformed, NONE, Reader, VERSION, Writer};
use crate::meaning::queueing;
use crate::messages::{self, Configuration, Leader, Level, Owner as Named, Owning, Wanted};

/// A client without sockets and without a clock.
pub struct Machine {
    endpoint: Endpoint,
    /// How long questions are retried.
    retry: Duration,
    /// The prefix of the owners that this machine creates.
    id: String,
    owners: u64,
    /// Whether the single server is a node of a cluster, once it has reported
    /// that.
    is_cluster: Option<bool>,
    calls: BTreeMap<u64, Call>,
    /// The call of each part in progress.
    parts: BTreeMap<Id, u64>,
    guards: BTreeMap<u64, Guard>,
    /// The guards of each hold. Several guards of one owner may share a hold.
    of_holds: BTreeMap<Id, Vec<u64>>,
    /// Calls that continue at that moment.
    pauses: BTreeSet<(Instant, u64)>,
    random: u64,
}

/// What a caller waits for.
enum Call {
    Lock(Box<Locking>),
    /// A guard becomes exclusive.
    Upgrade {
        guard: u64,
        queueing: Queueing,
    },
    /// Several answers become one: their number, and the first error.
    Done {
        left: usize,
        error: Option<Error>,
    },
    Question {
        left: usize,
        answers: Vec<Frame>,
    },
    /// A single question for the leader.
    Leader,
    /// Receives each change of the leader, until it is abandoned.
    Observer,
}

/// A call for one lock or several.
struct Locking {
    owner: Owner,
    /// In their order.
    keys: Vec<Arc<[u8]>>,
    ask: Ask,
    /// The value to publish with it.
    value: Option<Value>,
    terms: Terms,
    queueing: Queueing,
    deadline: Option<Instant>,
    /// Whether one request can ask for all keys; unknown until the server has
    /// reported whether it is in a cluster.
    is_one_request: Option<bool>,
    grants: Vec<Grant>,
    attempts: u32,
}

/// The grant of one request.
struct Grant {
    proof: Arc<Proof>,
    ask: Ask,
    /// The request.
    part: Id,
}

/// What a caller holds.
struct Guard {
    grants: Vec<Grant>,
    is_over: bool,
}

impl Machine {
    /// A client with this `configuration`. It sends nothing before its first
    /// event.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration, as a text for the user.
    pub fn new(configuration: &[u8]) -> Result<Self, String> {
        let reader = &mut Reader::new(configuration);
        Self::configured(reader)
            .map_err(|malformed| malformed.to_string())?
            .map_err(|error| error.to_string())
    }

    fn configured(reader: &mut Reader<'_>) -> Result<Result<Self, Error>, Malformed> {
        // What comes after the version depends on it.
        if reader.clone().get::<u32>()? != VERSION {
            return Err(Malformed("it is of another version"));
        }
        let configuration = reader.get()?;
        reader.end()?;
        Ok(Self::with(&configuration))
    }

    fn with(configuration: &Configuration<'_>) -> Result<Self, Error> {
        let Configuration { url, name, .. } = *configuration;
        let servers: Servers = url.parse()?;
        servers.check()?;
        let hex = |bytes: &[u8]| {
            bytes.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        };
        let (first, second) = configuration.seed.split_at(16);
        let id = match name {
            "" => hex(first),
            name => format!("{name}:{}", hex(first)),
        };
        let random = first.first_chunk().copied().map_or(0, u64::from_le_bytes);
        let defaults = Limits::default();
        let limits = Limits {
            response: configuration.response.unwrap_or(defaults.response),
            retry: configuration.retry.unwrap_or(defaults.retry),
            replication: configuration.replication.unwrap_or(defaults.replication),
        };
        let settings = Settings {
            limits,
            name: (!name.is_empty()).then(|| name.to_owned()),
            library: (
                configuration.library.to_owned(),
                configuration.library_version.to_owned(),
            ),
            channel: hex(second),
            seed: random,
            ..Settings::default()
        };
        settings.check()?;
        Ok(Self {
            retry: limits.retry,
            endpoint: Endpoint::new(servers, settings),
            id,
            owners: 0,
            is_cluster: None,
            calls: BTreeMap::new(),
            parts: BTreeMap::new(),
            guards: BTreeMap::new(),
            of_holds: BTreeMap::new(),
            pauses: BTreeSet::new(),
            random,
        })
    }

    /// Handles an event, and returns the next deadline and the actions, in
    /// `buffer`. `now` is in nanoseconds of a monotonic clock. If possible, the
    /// clock should also run while the machine is suspended.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if the host has made a mistake. Nothing has changed then.
    pub fn handle(
        &mut self,
        now: u64,
        event: &[u8],
        buffer: Vec<u8>,
    ) -> Result<Vec<u8>, Malformed> {
        let now = Instant::from_nanos(now);
        let mut reader = Reader::new(event);
        let event = messages::Event::read(&mut reader)?;
        reader.end()?;
        let mut output = Writer::new(buffer);
        // The place for the deadline.
        output.put(&NONE);
        self.take(now, event, &mut output)?;
        loop {
            while let Some(action) = self.endpoint.poll_action() {
                self.carry_out(now, action, &mut output);
            }
            match self.pauses.first().copied() {
                Some(first) if first.0 <= now => {
                    self.pauses.remove(&first);
                    self.go_on(now, first.1, &mut output);
                }
                _ => break,
            }
        }
        let pause = self.pauses.first().map(|(due, _)| *due);
        let deadlines = self.endpoint.next_deadline().into_iter().chain(pause);
        if let Some(deadline) = deadlines.min() {
            output.set_first(deadline.nanos());
        }
        Ok(output.into_bytes())
    }

    /// How many nanoseconds from `now` a guard stays valid if nothing more
    /// arrives; zero if it is over.
    #[must_use]
    pub fn remaining(&self, guard: u64, now: u64) -> u64 {
        let now = Instant::from_nanos(now);
        let left = |grant: &Grant| match (grant.proof.loss(now), grant.proof.valid_until()) {
            (None, Some(until)) => u64::try_from((until - now).as_nanos()).unwrap_or(u64::MAX),
            _ => 0,
        };
        let grants = self.guards.get(&guard).map(|guard| &guard.grants);
        let left = grants.and_then(|grants| grants.iter().map(left).min());
        left.unwrap_or(0)
    }

    /// Whether nobody waits or holds anything, and nothing is left to clean up.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_idle = self.calls.is_empty() && self.parts.is_empty() && self.pauses.is_empty();
        let is_free = self.guards.is_empty() && self.of_holds.is_empty();
        is_idle && is_free && self.endpoint.engine().is_empty()
    }

    fn take(
        &mut self,
        now: Instant,
        event: messages::Event<'_>,
        output: &mut Writer,
    ) -> Result<(), Malformed> {
        match event.starts() {
            Some(call) if self.calls.contains_key(&call) || self.guards.contains_key(&call) => {
                Err(Malformed("a number is used twice"))
            }
            Some(_) => self.begin(now, event, output),
            None => {
                self.handle_without_call(now, event, output);
                Ok(())
            }
        }
    }

    /// Begins a call of any kind. One match has them all, so that the kinds are seen together.
    fn begin(
        &mut self,
        now: Instant,
        event: messages::Event<'_>,
        output: &mut Writer,
    ) -> Result<(), Malformed> {
        use messages::Event as Begun;
        match event {
            Begun::Connect { call } => {
                let part = self.part(call);
                self.await_done(call, 1);
                self.endpoint.handle(now, Event::Start { call: part });
            }
            Begun::Lock {
                call,
                wanted,
                wait,
                terms,
            } => {
                let locking = self.locking(now, wanted, wait, &terms, None);
                self.ask(now, call, locking, output);
            }
            Begun::Campaign {
                call,
                wanted,
                wait,
                terms,
                value,
            } => {
                if wanted.keys.len() > 1 || wanted.mode.mode != messages::Access::Exclusive {
                    return Err(Malformed("a campaign is for one key, alone"));
                }
                let locking = self.locking(now, wanted, wait, &terms, Some(value));
                self.ask(now, call, locking, output);
            }
            Begun::Release { call, guard, least } => {
                self.release(now, call, guard, least, output);
            }
            Begun::Upgrade { call, guard, wait } => {
                self.upgrade(now, call, guard, queueing(wait), output);
            }
            Begun::Extend { call, guard, lease } => {
                self.change(now, call, guard, output, |part, hold| {
                    let lease = lease_ms("lease", lease)?;
                    let call = part;
                    Ok(Engine::Extend { call, hold, lease })
                });
            }
            Begun::Downgrade { call, guard } => self.downgrade(now, call, guard, output),
            Begun::Question {
                call,
                key,
                words,
                changes,
                limit,
            } => self.question(now, call, key, &words, (changes, limit), output)?,
            Begun::Metrics { call } => {
                let metrics = self.endpoint.engine().metrics();
                let numbers = [
                    metrics.grants,
                    metrics.waits,
                    metrics.losses,
                    metrics.late_renewals,
                    metrics.reconnects,
                ];
                let frame = |it| Frame::Integer(i64::try_from(it).unwrap_or(i64::MAX));
                output.answered(call, &numbers.map(frame));
            }
            Begun::Proclaim { call, guard, value } => {
                let value = Value::new(value);
                if let Some(Err(error)) = self.guards.get(&guard).map(Guard::check_alone) {
                    output.failed(call, &error);
                    return Ok(());
                }
                self.change(now, call, guard, output, |call, hold| {
                    let value = value.clone()?;
                    Ok(Engine::Proclaim { call, hold, value })
                });
            }
            Begun::Observe { call, key } => {
                let (observer, key) = (self.part(call), key.into());
                self.calls.insert(call, Call::Observer);
                self.endpoint.handle(now, Event::Observe { observer, key });
            }
            Begun::Leader { call, key } => {
                let event = Event::Question {
                    call: self.part(call),
                    command: requests::info(key),
                    to: To::Key(key.into()),
                    changes: false,
                    limit: Some(self.retry),
                };
                self.calls.insert(call, Call::Leader);
                self.endpoint.handle(now, event);
            }
            Begun::Flush { call } => {
                let flush = self.part(call);
                self.await_done(call, 1);
                let event = Event::Call(Engine::Flush { flush });
                self.endpoint.handle(now, event);
            }
            // The others start no call.
            _ => {}
        }
        Ok(())
    }

    /// Handles an event that starts no call.
    fn handle_without_call(
        &mut self,
        now: Instant,
        event: messages::Event<'_>,
        output: &mut Writer,
    ) {
        use messages::Event as Told;
        let event = match event {
            Told::Opened { connection } => Event::Opened {
                connection: ConnectionId::of_number(connection),
            },
            Told::Received { connection, bytes } => Event::Received {
                connection: ConnectionId::of_number(connection),
                bytes: bytes.0,
            },
            Told::Ended {
                connection,
                failure,
                text,
            } => Event::Ended {
                connection: ConnectionId::of_number(connection),
                failure: failure.with(text),
            },
            Told::LeaveAll {} => {
                self.end_pauses(output);
                Event::Call(Engine::LeaveAll)
            }
            Told::Closed {} => Event::Closed,
            Told::Tick {} => Event::Tick,
            Told::Abandon { call } => return self.abandon(now, call),
            Told::Leave { guard } => return self.leave(now, guard, false),
            Told::Untaken { guard } => return self.leave(now, guard, true),
            // The others start calls.
            _ => return,
        };
        self.endpoint.handle(now, event);
    }

    /// Ends the calls of which the endpoint knows nothing: they hold nothing now.
    fn end_pauses(&mut self, output: &mut Writer) {
        for (_, call) in std::mem::take(&mut self.pauses) {
            self.calls.remove(&call);
            output.failed(call, &Error::Closed);
        }
    }

    /// Begins a call for locks, unless its arguments are wrong.
    fn ask(
        &mut self,
        now: Instant,
        call: u64,
        locking: Result<Locking, Error>,
        output: &mut Writer,
    ) {
        match locking {
            Ok(locking) => {
                self.calls.insert(call, Call::Lock(Box::new(locking)));
                self.go_on(now, call, output);
            }
            Err(error) => output.failed(call, &error),
        }
    }

    fn locking(
        &mut self,
        now: Instant,
        wanted: Wanted<'_>,
        wait: Option<Duration>,
        terms: &messages::Terms,
        value: Option<&[u8]>,
    ) -> Result<Locking, Error> {
        let Wanted { owner, keys, mode } = wanted;
        let mut keys: Vec<Arc<[u8]>> = keys.into_iter().map(Arc::from).collect();
        keys.sort_unstable();
        let owner = match owner {
            Named {
                owner: Owning::New, ..
            } => {
                self.owners += 1;
                let owner = Owner::numbered(&self.id, self.owners);
                // Several keys may be released and asked for again.
                match keys.len() {
                    1 => owner,
                    _ => owner.reusable(),
                }
            }
            Named {
                owner: Owning::Activity,
                activity,
                ..
            } => Owner::new(format!("{}:a{activity}", self.id))?,
            Named { name, .. } => Owner::new(name)?,
        };
        let (ask, queueing, terms) = (mode.ask()?, queueing(wait)?, terms.terms()?);
        let value = value.map(Value::new).transpose()?;
        claims::check_keys(&keys)?;
        if keys.len() > 1 {
            terms.check_for_several()?;
            ask.check_for_several()?;
        }
        let slot = |key: &Arc<[u8]>| slot_of(key);
        let is_one_slot = keys.iter().map(slot).max() == keys.iter().map(slot).min();
        Ok(Locking {
            owner,
            keys,
            ask,
            value,
            terms,
            queueing,
            deadline: match queueing {
                Queueing::AtMost(wait) => Some(now + wait),
                Queueing::Try | Queueing::Unlimited => None,
            },
            is_one_request: is_one_slot.then_some(true),
            grants: Vec::new(),
            attempts: 0,
        })
    }

    /// A number for a new part of a call.
    fn part(&mut self, call: u64) -> Id {
        let part = self.endpoint.next_id();
        self.parts.insert(part, call);
        part
    }

    fn await_done(&mut self, call: u64, left: usize) {
        let error = None;
        self.calls.insert(call, Call::Done { left, error });
    }

    /// Takes the next step of a call for locks.
    fn go_on(&mut self, now: Instant, call: u64, output: &mut Writer) {
        let Some(Call::Lock(locking)) = self.calls.get_mut(&call) else {
            return;
        };
        if self.endpoint.is_cluster() {
            self.is_cluster = Some(true);
        }
        let known = self.is_cluster.map(|it| !it);
        let is_one_request = locking.is_one_request.or(known);
        let Some(queueing) = locking.rest(now) else {
            return self.refuse(now, call, output);
        };
        let Some(is_one_request) = is_one_request else {
            let limit = match queueing {
                Queueing::Try => Some(self.retry),
                Queueing::AtMost(wait) => Some(wait),
                Queueing::Unlimited => None,
            };
            let part = self.part(call);
            // Every user may send `HELLO`.
            let event = Event::Question {
                call: part,
                to: To::Node(Node::default()),
                command: requests::hello(),
                changes: false,
                limit,
            };
            return self.endpoint.handle(now, event);
        };
        locking.is_one_request = Some(is_one_request);
        let Some(claims) = locking.next_claims(is_one_request) else {
            return self.grant(now, call, output);
        };
        let (ask, value, terms) = (locking.ask, locking.value.clone(), locking.terms);
        let part = self.part(call);
        let event = Engine::Ask {
            call: part,
            claims,
            ask,
            value,
            terms,
            queueing,
        };
        self.endpoint.handle(now, Event::Call(event));
    }

    /// Everything is granted, unless the first grants were lost meanwhile.
    fn grant(&mut self, now: Instant, call: u64, output: &mut Writer) {
        let Some(Call::Lock(mut locking)) = self.calls.remove(&call) else {
            return;
        };
        let grants = std::mem::take(&mut locking.grants);
        if grants.len() == 1 || grants.iter().all(|it| it.proof.is_live(now)) {
            let guard = Guard {
                grants,
                is_over: false,
            };
            return self.keep_guard(now, call, call, guard, output);
        }
        self.give_back(now, grants);
        let is_over = locking.deadline.is_some_and(|deadline| deadline <= now);
        if locking.queueing == Queueing::Try || is_over {
            return messages::Action::Refused { call }.write(output);
        }
        // The lease may be shorter than the time to take all of them.
        self.random = self
            .random
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(1);
        let due = now + pause(locking.attempts, self.random >> 33);
        locking.attempts += 1;
        self.calls.insert(call, Call::Lock(locking));
        self.pauses.insert((due, call));
    }

    fn refuse(&mut self, now: Instant, call: u64, output: &mut Writer) {
        if let Some(Call::Lock(locking)) = self.calls.remove(&call) {
            self.give_back(now, locking.grants);
            messages::Action::Refused { call }.write(output);
        }
    }

    fn give_back(&mut self, now: Instant, grants: Vec<Grant>) {
        for Grant { proof, ask, .. } in grants {
            let hold = proof.hold;
            let event = Engine::Leave { hold, ask };
            self.endpoint.handle(now, Event::Call(event));
        }
    }

    /// Returns a guard to its caller.
    fn keep_guard(
        &mut self,
        now: Instant,
        call: u64,
        number: u64,
        mut guard: Guard,
        output: &mut Writer,
    ) {
        guard.show(call, number, output);
        // It may have been lost while the call waited for replicas and nobody had
        // it.
        if let Some(why) = guard.grants.iter().find_map(|it| it.proof.loss(now)) {
            guard.is_over = true;
            let (guard, why) = (number, why.into());
            messages::Action::Over { guard, why }.write(output);
        }
        for grant in &guard.grants {
            let guards = self.of_holds.entry(grant.proof.hold).or_default();
            guards.push(number);
        }
        self.guards.insert(number, guard);
    }

    fn remove_guard(&mut self, number: u64) -> Option<Guard> {
        let guard = self.guards.remove(&number)?;
        for grant in &guard.grants {
            if let Some(guards) = self.of_holds.get_mut(&grant.proof.hold) {
                guards.retain(|it| *it != number);
                if guards.is_empty() {
                    self.of_holds.remove(&grant.proof.hold);
                }
            }
        }
        Some(guard)
    }

    /// A guard ends, and nobody waits for the outcome; or its caller never
    /// received it.
    fn leave(&mut self, now: Instant, guard: u64, is_untaken: bool) {
        let Some(guard) = self.remove_guard(guard) else {
            return;
        };
        for Grant { proof, ask, part } in guard.grants {
            let (hold, call) = (proof.hold, part);
            let event = match is_untaken {
                true => Engine::Untaken { call, hold, ask },
                false => Engine::Leave { hold, ask },
            };
            self.endpoint.handle(now, Event::Call(event));
        }
    }

    fn release(
        &mut self,
        now: Instant,
        call: u64,
        guard: u64,
        least: Option<Duration>,
        output: &mut Writer,
    ) {
        let Some(grants) = self.guards.get(&guard).map(|guard| &guard.grants) else {
            return output.failed(call, &Error::Lost(Loss::Released));
        };
        if let Some(least) = least {
            let granted = grants.iter().map(|it| it.proof.granted).max();
            match whole_ms_or_zero("least", least) {
                Ok(least) => self.keep_until(now, guard, granted.unwrap_or(now) + least),
                Err(error) => {
                    let left = Duration::from_nanos(self.remaining(guard, now.nanos()));
                    self.keep_until(now, guard, now + left);
                    self.leave(now, guard, false);
                    return output.failed(call, &error);
                }
            }
        }
        let grants = self.remove_guard(guard).map(|guard| guard.grants);
        let grants = grants.unwrap_or_default();
        self.await_done(call, grants.len());
        for Grant { proof, ask, .. } in grants {
            let (hold, call) = (proof.hold, self.part(call));
            let release = Engine::Release { call, hold, ask };
            self.endpoint.handle(now, Event::Call(release));
        }
    }

    /// When the last guard of these holds ends, the server keeps them until then.
    fn keep_until(&mut self, now: Instant, guard: u64, until: Instant) {
        let grants = self.guards.get(&guard).map_or(&[][..], |it| &it.grants);
        for Grant { proof, .. } in grants {
            let keep = Engine::Keep {
                hold: proof.hold,
                until,
            };
            self.endpoint.handle(now, Event::Call(keep));
        }
    }

    fn change(
        &mut self,
        now: Instant,
        call: u64,
        guard: u64,
        output: &mut Writer,
        event: impl Fn(Id, Id) -> Result<engine::Event, Error>,
    ) {
        let Some(guard) = self.guards.get(&guard) else {
            return output.failed(call, &Error::Lost(Loss::Released));
        };
        let holds: Vec<Id> = guard.grants.iter().map(|it| it.proof.hold).collect();
        self.await_done(call, holds.len());
        for hold in holds {
            let part = self.part(call);
            match event(part, hold) {
                Ok(event) => self.endpoint.handle(now, Event::Call(event)),
                Err(error) => self.part_is_done(part, Some(error), output),
            }
        }
    }

    fn downgrade(&mut self, now: Instant, call: u64, guard: u64, output: &mut Writer) {
        match self.guards.get_mut(&guard).map(Guard::one) {
            Some(Err(error)) => return output.failed(call, &error),
            // The server answers nil to this, as for a lost hold.
            Some(Ok(grant)) if grant.ask == Ask::Shared => {
                return match grant.proof.end_of(now) {
                    None => messages::Action::Done { call }.write(output),
                    Some(loss) => output.failed(call, &Error::Lost(loss)),
                };
            }
            Some(Ok(grant)) => grant.ask = Ask::Shared,
            None => {}
        }
        self.change(now, call, guard, output, |call, hold| {
            Ok(Engine::Downgrade { call, hold })
        });
    }

    fn upgrade(
        &mut self,
        now: Instant,
        call: u64,
        guard: u64,
        queueing: Result<Queueing, Error>,
        output: &mut Writer,
    ) {
        let grant = || {
            let queueing = queueing?;
            let guard = self.guards.get_mut(&guard);
            let grant = guard.ok_or(Error::Lost(Loss::Released))?.one()?;
            match grant.proof.end_of(now) {
                None => Ok((grant, queueing)),
                Some(loss) => Err(Error::Lost(loss)),
            }
        };
        let (grant, queueing) = match grant() {
            Ok(granted) => granted,
            Err(error) => return output.failed(call, &error),
        };
        let claims = grant.proof.claims.clone();
        self.calls.insert(call, Call::Upgrade { guard, queueing });
        let part = self.part(call);
        let event = Engine::Ask {
            call: part,
            claims,
            ask: Ask::Exclusive,
            value: None,
            // The engine uses the terms of the existing hold.
            terms: Terms::default(),
            queueing,
        };
        self.endpoint.handle(now, Event::Call(event));
    }

    /// Asks the server of a key, or every server if the key is empty.
    fn question(
        &mut self,
        now: Instant,
        call: u64,
        key: &[u8],
        words: &[&[u8]],
        (changes, limit): (bool, Option<Duration>),
        output: &mut Writer,
    ) -> Result<(), Malformed> {
        let (name, rest) = words.split_first().ok_or(Malformed("it has no command"))?;
        let name = std::str::from_utf8(name).map_err(|_| Malformed("it has no command"))?;
        let mut command = Command::new(name);
        for word in rest {
            command.arg(word);
        }
        let servers: Vec<To> = match key {
            [] => self.endpoint.nodes().into_iter().map(To::Node).collect(),
            key => vec![To::Key(key.into())],
        };
        if servers.is_empty() {
            output.answered(call, &[]);
            return Ok(());
        }
        let (left, answers) = (servers.len(), Vec::new());
        self.calls.insert(call, Call::Question { left, answers });
        for to in servers {
            let part = self.part(call);
            let event = Event::Question {
                call: part,
                to,
                command: command.clone(),
                changes,
                limit: Some(limit.unwrap_or(self.retry)),
            };
            self.endpoint.handle(now, event);
        }
        Ok(())
    }

    /// Nobody waits for a call any more.
    fn abandon(&mut self, now: Instant, call: u64) {
        let Some(call_ended) = self.calls.remove(&call) else {
            return;
        };
        self.pauses.retain(|(_, paused)| *paused != call);
        let parts: Vec<Id> = self
            .parts
            .iter()
            .filter(|it| *it.1 == call)
            .map(|it| *it.0)
            .collect();
        for part in parts {
            self.parts.remove(&part);
            let event = match call_ended {
                Call::Observer => Event::Unobserve { observer: part },
                _ => Event::Call(Engine::Abandon { call: part }),
            };
            self.endpoint.handle(now, event);
        }
        if let Call::Lock(locking) = call_ended {
            self.give_back(now, locking.grants);
        }
    }

    fn carry_out(&mut self, now: Instant, action: Action, output: &mut Writer) {
        match action {
            Action::Connect {
                connection,
                address,
            } => output.connect(connection, &address),
            Action::Write { connection } => {
                let mut bytes = Vec::new();
                self.endpoint.take_output(connection, &mut bytes);
                if !bytes.is_empty() {
                    let (connection, bytes) = (connection.number(), Data(&bytes));
                    messages::Action::Write { connection, bytes }.write(output);
                }
            }
            Action::Close { connection } => {
                let connection = connection.number();
                messages::Action::Close { connection }.write(output);
            }
            Action::Resolve { call, outcome } => self.resolved(now, call, outcome, output),
            Action::Over { proof, why } => self.over(&proof, why, output),
            Action::Observed { observer, change } => self.observed(observer, change, output),
            Action::Flushed { flush, failed } => self.part_is_done(flush, failed, output),
            Action::Note(note) => {
                let (level, text) = described(&note);
                messages::Action::Note { level, text: &text }.write(output);
            }
        }
    }

    fn over(&mut self, proof: &Proof, why: Loss, output: &mut Writer) {
        for number in self.of_holds.get(&proof.hold).into_iter().flatten() {
            if let Some(guard) = self.guards.get_mut(number).filter(|it| !it.is_over) {
                guard.is_over = true;
                let (guard, why) = (*number, why.into());
                messages::Action::Over { guard, why }.write(output);
            }
        }
    }

    fn observed(&mut self, part: Id, change: Result<Change, Error>, output: &mut Writer) {
        let Some(call) = self.parts.get(&part).copied() else {
            return;
        };
        match change {
            Ok(Change { leader, missed, .. }) => {
                let leader = leader.as_ref().map(|it| Leader {
                    fence: Fence(it.fence),
                    value: &it.value,
                    owner: "",
                    time_left: None,
                });
                messages::Action::Leader {
                    call,
                    leader,
                    missed,
                }
                .write(output);
            }
            Err(error) => {
                self.parts.remove(&part);
                self.calls.remove(&call);
                output.failed(call, &error);
            }
        }
    }

    /// A part of a call has its outcome.
    fn resolved(&mut self, now: Instant, part: Id, outcome: Resolved, output: &mut Writer) {
        let Some(call) = self.parts.get(&part).copied() else {
            return;
        };
        let is_of_locks = matches!(
            self.calls.get(&call),
            Some(Call::Lock(_) | Call::Upgrade { .. })
        );
        match outcome {
            Resolved::Answer(frame) if is_of_locks => {
                self.parts.remove(&part);
                self.greeted(now, call, &frame, output);
            }
            Resolved::Answer(frame) => self.answered(part, call, frame, output),
            Resolved::Lock(Outcome::Granted(proof)) => {
                self.parts.remove(&part);
                self.granted(now, part, call, proof, output);
            }
            Resolved::Lock(Outcome::Refused) if is_of_locks => {
                self.parts.remove(&part);
                self.refused(now, call, output);
            }
            Resolved::Failed(error) | Resolved::Lock(Outcome::Failed(error)) if is_of_locks => {
                self.parts.remove(&part);
                self.fail(now, call, &error, output);
            }
            Resolved::Failed(error) | Resolved::Lock(Outcome::Failed(error)) => {
                self.part_is_done(part, Some(error), output);
            }
            Resolved::Lock(Outcome::Done | Outcome::Refused) => {
                self.part_is_done(part, None, output);
            }
        }
    }

    /// The server has reported whether it is in a cluster.
    fn greeted(&mut self, now: Instant, call: u64, hello: &Frame, output: &mut Writer) {
        match replies::is_cluster(hello) {
            Ok(is_cluster) => {
                self.is_cluster = Some(is_cluster);
                self.go_on(now, call, output);
            }
            Err(error) => self.fail(now, call, &error, output),
        }
    }

    fn answered(&mut self, part: Id, call: u64, frame: Frame, output: &mut Writer) {
        self.parts.remove(&part);
        if let Some(Call::Leader) = self.calls.get(&call) {
            self.calls.remove(&call);
            return match inspect::info(&frame) {
                Ok(info) => {
                    let leader = info.leader();
                    let leader = leader.as_ref().map(|it| Leader {
                        fence: Fence(it.fence),
                        value: &it.value,
                        owner: &it.owner,
                        time_left: Some(it.time_left),
                    });
                    let missed = false;
                    messages::Action::Leader {
                        call,
                        leader,
                        missed,
                    }
                    .write(output);
                }
                Err(error) => output.failed(call, &error),
            };
        }
        let Some(Call::Question { left, answers }) = self.calls.get_mut(&call) else {
            return;
        };
        answers.push(frame);
        *left -= 1;
        if *left == 0 {
            output.answered(call, answers);
            self.calls.remove(&call);
        }
    }

    fn granted(
        &mut self,
        now: Instant,
        part: Id,
        call: u64,
        proof: Arc<Proof>,
        output: &mut Writer,
    ) {
        match self.calls.get_mut(&call) {
            Some(Call::Lock(locking)) => {
                let ask = locking.ask;
                locking.grants.push(Grant { proof, ask, part });
                self.go_on(now, call, output);
            }
            Some(Call::Upgrade { guard, .. }) => {
                let guard = *guard;
                self.calls.remove(&call);
                let ask = Ask::Exclusive;
                self.upgraded(now, call, guard, Grant { proof, ask, part }, output);
            }
            _ => {}
        }
    }

    /// The new grant replaces the guard's shared one.
    fn upgraded(
        &mut self,
        now: Instant,
        call: u64,
        number: u64,
        grant: Grant,
        output: &mut Writer,
    ) {
        let Some(before) = self.remove_guard(number) else {
            // The guard was released meanwhile.
            output.failed(call, &Error::Lost(Loss::Released));
            let (hold, ask, call) = (grant.proof.hold, grant.ask, grant.part);
            let event = Engine::Untaken { call, hold, ask };
            return self.endpoint.handle(now, Event::Call(event));
        };
        self.give_back(now, before.grants);
        let guard = Guard {
            grants: vec![grant],
            is_over: false,
        };
        self.keep_guard(now, call, number, guard, output);
    }

    /// Not granted in time.
    fn refused(&mut self, now: Instant, call: u64, output: &mut Writer) {
        match self.calls.get(&call) {
            // The server never answers so to a request without a limit.
            Some(Call::Lock(it)) if it.queueing == Queueing::Unlimited => {
                self.go_on(now, call, output);
            }
            Some(Call::Upgrade { guard, queueing }) => {
                let (guard, queueing) = (*guard, *queueing);
                self.calls.remove(&call);
                match queueing {
                    Queueing::Unlimited => self.upgrade(now, call, guard, Ok(queueing), output),
                    Queueing::Try | Queueing::AtMost(_) => {
                        messages::Action::Refused { call }.write(output);
                    }
                }
            }
            _ => self.refuse(now, call, output),
        }
    }

    fn fail(&mut self, now: Instant, call: u64, error: &Error, output: &mut Writer) {
        if let Some(Call::Lock(locking)) = self.calls.remove(&call) {
            self.give_back(now, locking.grants);
        }
        output.failed(call, error);
    }

    /// A part has ended, of a call that ends with its last part.
    fn part_is_done(&mut self, part: Id, failed: Option<Error>, output: &mut Writer) {
        let Some(call) = self.parts.remove(&part) else {
            return;
        };
        let left = match self.calls.get_mut(&call) {
            Some(Call::Done { left, error }) => {
                *error = error.take().or(failed);
                *left -= 1;
                *left
            }
            Some(Call::Question { .. } | Call::Leader) => {
                self.calls.remove(&call);
                return output.failed(call, &failed.unwrap_or(Error::Closed));
            }
            _ => return,
        };
        if left == 0
            && let Some(Call::Done { error, .. }) = self.calls.remove(&call)
        {
            match error {
                None => messages::Action::Done { call }.write(output),
                Some(error) => output.failed(call, &error),
            }
        }
    }
}

impl Locking {
    /// How the next request waits; none if no time is left.
    fn rest(&self, now: Instant) -> Option<Queueing> {
        match self.deadline.map(|deadline| deadline - now) {
            None => Some(self.queueing),
            Some(Duration::ZERO) => None,
            Some(left) => Queueing::at_most(left).ok(),
        }
    }

    /// The next request's keys; none if everything is granted.
    fn next_claims(&self, is_one_request: bool) -> Option<Claims> {
        let (key, rest) = self.keys.get(self.grants.len()..)?.split_first()?;
        match is_one_request {
            true if self.grants.is_empty() => Some(Claims::new(self.owner.clone(), key, rest)),
            true => None,
            false => Some(Claims::new(self.owner.clone(), key, &[])),
        }
    }
}

impl Guard {
    /// Its grant, if it can be exclusive or shared: a single key, without
    /// permits.
    fn one(&mut self) -> Result<&mut Grant, Error> {
        match self.grants.as_mut_slice() {
            [grant] if grant.proof.claims.is_single() => match grant.ask {
                Ask::Exclusive | Ask::Shared => Ok(grant),
                permits @ Ask::Permits { .. } => Err(not_of_mode(permits, "exclusive or shared")),
            },
            _ => Err(not_of_mode(Ask::Shared, "exclusive for several keys")),
        }
    }

    /// Checks that it has a single key, exclusively, so that a value can be
    /// published.
    fn check_alone(&self) -> Result<(), Error> {
        match self.grants.as_slice() {
            [grant] if grant.proof.claims.is_single() => match grant.ask {
                Ask::Exclusive => Ok(()),
                other => Err(not_of_mode(other, "exclusive, to publish a value")),
            },
            _ => Err(Error::OutOfRange {
                argument: "keys",
                value: "several".to_owned(),
                limit: "1 key, to publish a value".into(),
            }),
        }
    }

    fn show(&self, call: u64, number: u64, output: &mut Writer) {
        let mut fences = Vec::new();
        for grant in &self.grants {
            let fence = Fence(grant.proof.fence());
            fences.extend(grant.proof.claims.keys().map(|key| (key, fence)));
        }
        let owner = self.grants.first().map(|it| it.proof.claims.owner());
        let owner = owner.map_or("", Owner::as_str);
        let guard = number;
        messages::Action::Granted {
            call,
            guard,
            owner,
            fences,
        }
        .write(output);
    }
}

fn not_of_mode(ask: Ask, limit: &'static str) -> Error {
    Error::OutOfRange {
        argument: "mode",
        value: format!("{ask:?}"),
        limit: limit.into(),
    }
}

/// A connection's event, for a log.
fn described(note: &Note) -> (Level, String) {
    let warning = note.warning().unwrap_or_default();
    match note {
        Note::NotConnected { is_news: true, .. }
        | Note::NoRoutes { is_news: true, .. }
        | Note::NotRenewed { .. }
        | Note::NotReleased { .. } => (Level::Warning, warning),
        Note::Connected { address } => (
            Level::Information,
            format!("connected to the server at {address}"),
        ),
        Note::NotConnected { failure, .. } => (
            Level::Debug,
            format!("no connection to the server yet: {failure}"),
        ),
        Note::Lost { address } => (
            Level::Warning,
            format!("connection to the server at {address} lost"),
        ),
        Note::Silent => (Level::Warning, "the connection is silent".to_owned()),
        Note::NamedElsewhere => (
            Level::Information,
            "the Sentinels name another server".to_owned(),
        ),
        Note::UnknownMessage(message) => {
            let message = String::from_utf8_lossy(message);
            (Level::Warning, format!("unknown message: {message}"))
        }
        Note::NoRoutes { failure, .. } => (Level::Debug, failure.to_string()),
    }
}
