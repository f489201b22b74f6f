//! The members of a quorum: what is known of each server, whether it may take
//! part, and what it is asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::endpoint::{Check, ConnectionId, Event, Greeting, Limits, Note, Settings};
use crate::engine::Id;
use crate::engine::claims::Table;
use crate::engine::instant::Instant;
use crate::engine::node::Node;
use crate::error::{Error, Failure};
use crate::servers::Servers;
use crate::session::quorum::plan::majority;
use crate::session::quorum::question::{Answer, By, Limit, Part, Question};
use crate::session::quorum::seats::Contact;
use crate::session::quorum::timers::{Timer, Timers};
use crate::session::{Action, Call, Outcome, Session};
use crate::wire::inspect::fields;

/// How long a connection is quiet at most while somebody waits there.
pub(super) const QUIET: Duration = Duration::from_secs(1);
/// For how long a connection may be gone before waiting elsewhere is better.
const BRIEFLY: Duration = Duration::from_millis(50);
/// The number of a connection carries its member.
const PLACES: u64 = 16;

/// All members, and what each is asked.
pub(super) struct Members {
    /// At least one.
    sessions: Vec<Session>,
    /// Written by the checks of new connections, too.
    records: Records,
    /// The shortest startup grace of those that were met first, and whose it
    /// is; none if any will do.
    shortest_grace: Option<(Duration, String)>,
    any_grace: bool,
    pub(super) limits: Limits,
    questions: BTreeMap<Id, Question>,
    /// The members whose sessions may have actions, in the order of their inputs: so the
    /// gate is left last.
    told: VecDeque<usize>,
    /// For whom each part is held.
    parts: Table<Id, By>,
    last: u64,
    pub(super) timers: Timers,
}

type Records = Arc<Mutex<Vec<Record>>>;

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

/// What the sessions of the members report.
pub(super) enum Happened {
    /// A question is over.
    Answered(By, Id, Answer),
    /// A connection opens, ends, or fails to open.
    Changed(usize),
    /// What is held of a hold is lost.
    Lost(Id),
    /// What is held of a hold is valid for longer.
    Renewed(Id),
}

impl Members {
    pub(super) fn new(members: Vec<(Servers, Settings)>, any_grace: bool) -> Self {
        let addresses = members.iter().flat_map(|(servers, _)| servers.addresses());
        let records = addresses.map(|address| Record::of(address.to_string()));
        let records = Arc::new(Mutex::new(records.collect()));
        let first = members.first().map(|(_, settings)| settings);
        let limits = first.map_or_else(Limits::default, |settings| settings.limits);
        let begin = |(place, (servers, settings))| {
            let check = Some(check(Arc::clone(&records), place));
            let mut session = Session::new(servers, Settings { check, ..settings });
            session.endpoint_mut().set_quiet(QUIET);
            session.endpoint_mut().tell_renewals();
            session
        };
        Self {
            sessions: members.into_iter().enumerate().map(begin).collect(),
            records,
            shortest_grace: None,
            any_grace,
            limits,
            questions: BTreeMap::new(),
            told: VecDeque::new(),
            parts: Table::default(),
            last: 0,
            timers: Timers::default(),
        }
    }

    pub(super) fn first(&self) -> &Session {
        &self.sessions[0]
    }

    pub(super) fn is_clean(&self) -> bool {
        let mut sessions = self.sessions.iter();
        sessions.all(Session::is_clean)
    }

    /// The session of that connection, which gets the number that it has there.
    pub(super) fn at(&mut self, connection: &mut ConnectionId) -> Option<&mut Session> {
        let number = connection.number();
        *connection = ConnectionId::of_number(number / PLACES);
        let place = usize::try_from(number % PLACES).ok()?;
        self.tell(place)
    }

    /// The session of a member, to give it something to do.
    fn tell(&mut self, member: usize) -> Option<&mut Session> {
        let session = self.sessions.get_mut(member)?;
        if self.told.back() != Some(&member) {
            self.told.push_back(member);
        }
        Some(session)
    }

    pub(super) fn each(&mut self, tell: impl FnMut(&mut Session)) {
        self.sessions.iter_mut().for_each(tell);
        self.told.extend(0..self.sessions.len());
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let sessions = self.sessions.iter().filter_map(Session::next_deadline);
        sessions.chain(self.timers.first()).min()
    }

    /// Passes the time to those that have something to do.
    pub(super) fn tick(&mut self, now: Instant) {
        for (member, session) in self.sessions.iter_mut().enumerate() {
            if session.next_deadline().is_some_and(|due| due <= now) {
                session.handle(now, Event::Tick);
                self.told.push_back(member);
            }
        }
    }

    /// Passes on what the members' sessions ask for, up to what concerns the
    /// quorum.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        actions: &mut VecDeque<Action>,
    ) -> Option<Happened> {
        while let Some(place) = self.told.front().copied() {
            while let Some(mut action) = self.sessions.get_mut(place)?.poll_action() {
                match action {
                    Action::Connect {
                        ref mut connection, ..
                    }
                    | Action::Write { ref mut connection }
                    | Action::Close { ref mut connection } => {
                        let number = connection.number() * PLACES + place as u64;
                        *connection = ConnectionId::of_number(number);
                    }
                    Action::Resolve { call, outcome } => {
                        match self.resolved(now, place, call, outcome) {
                            None => continue,
                            answered => return answered,
                        }
                    }
                    Action::Over { guard, .. } => match self.parts.get(&guard) {
                        Some(By::Hold(hold)) => return Some(Happened::Lost(*hold)),
                        _ => continue,
                    },
                    Action::Note(
                        Note::Connected { .. } | Note::NotConnected { .. } | Note::Lost { .. },
                    ) => {
                        actions.push_back(action);
                        return Some(Happened::Changed(place));
                    }
                    // The lock is at risk and lost only with its majority.
                    Action::Note(Note::AtRisk { .. })
                    | Action::Occurred { .. }
                    | Action::Ended { .. }
                    | Action::Wake { .. } => continue,
                    Action::Note(_) | Action::Observed { .. } => {}
                }
                actions.push_back(action);
            }
            let endpoint = self.sessions.get_mut(place)?.endpoint_mut();
            while let Some(part) = endpoint.next_renewed() {
                if let Some(By::Hold(hold)) = self.parts.get(&part) {
                    return Some(Happened::Renewed(*hold));
                }
            }
            self.told.pop_front();
        }
        None
    }

    fn resolved(
        &mut self,
        now: Instant,
        place: usize,
        id: Id,
        outcome: Outcome,
    ) -> Option<Happened> {
        let question = self.questions.remove(&id);
        self.timers.set(Timer::Question(id), None);
        let answer = match outcome {
            Outcome::Granted { guard, proofs } => {
                let Some(question) = &question else {
                    // Nobody asks any more.
                    self.tell(place)?.untaken(now, guard);
                    return None;
                };
                self.parts.insert(guard, question.by);
                let proof = Arc::clone(proofs.first());
                Answer::Granted(Part { guard, proof })
            }
            Outcome::Refused => Answer::Refused,
            Outcome::Failed(error) => Answer::Failed(error),
            _ => Answer::Done,
        };
        let question = question?;
        let is_taken = matches!(answer, Answer::Granted(_) | Answer::Refused);
        if is_taken && matches!(question.limit, Limit::Try) {
            self.record(place, |record| record.slow_for = Duration::ZERO);
        }
        Some(Happened::Answered(question.by, id, answer))
    }

    /// Asks a member, for somebody; the number of the question.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        (member, by): (usize, By),
        (limit, lease): (Limit, Duration),
        call: Call,
    ) -> Id {
        self.last += 1;
        let id = Id::of_number(self.last);
        let answer_timeout = answer_timeout(self.limits, lease);
        let question = Question::new(now, (member, by), (limit, lease), answer_timeout);
        self.timers.set(Timer::Question(id), question.due());
        self.questions.insert(id, question);
        self.changed(now, member);
        if let Some(session) = self.tell(member) {
            session.call(now, id, call);
        }
        id
    }

    /// Has a question, or a part, belong to somebody else.
    pub(super) fn pass_on(&mut self, id: Id, to: By) {
        let question = self.questions.get_mut(&id).map(|question| &mut question.by);
        question
            .into_iter()
            .chain(self.parts.get_mut(&id))
            .for_each(|by| *by = to);
    }

    /// Ends a question; whose it was.
    pub(super) fn forget(&mut self, now: Instant, id: Id) -> Option<By> {
        let question = self.questions.remove(&id)?;
        self.timers.set(Timer::Question(id), None);
        self.tell(question.member)?.abandon(now, id);
        Some(question.by)
    }

    /// Leaves nothing at these; the gate is left last.
    pub(super) fn leave_all(&mut self, now: Instant, contacts: Vec<Contact>) {
        for mut contact in contacts.into_iter().rev() {
            contact.leave(now, self);
        }
    }

    /// Ends a part, and waits for nothing.
    pub(super) fn leave(&mut self, now: Instant, member: usize, part: &Part) {
        self.parts.remove(&part.guard);
        if let Some(session) = self.tell(member) {
            session.leave(now, part.guard);
        }
    }

    /// Has the end of a part leave it taken until then.
    pub(super) fn keep_until(&mut self, now: Instant, member: usize, part: &Part, until: Instant) {
        if let Some(session) = self.tell(member) {
            session.keep_until(now, part.guard, until);
        }
    }

    /// Asks a member to release a part.
    pub(super) fn release(&mut self, now: Instant, member: usize, by: By, part: &Part) -> Id {
        self.parts.remove(&part.guard);
        let (guard, least) = (part.guard, None);
        let limit = (Limit::Unlimited, Duration::ZERO);
        self.ask(now, (member, by), limit, Call::Release { guard, least })
    }

    /// Asks a member to clean up.
    pub(super) fn flush(&mut self, now: Instant, member: usize, call: Id) -> Id {
        let limit = (Limit::Unlimited, Duration::ZERO);
        self.ask(now, (member, By::Call(call)), limit, Call::Flush)
    }

    /// A connection of a member has opened or ended, perhaps.
    pub(super) fn changed(&mut self, now: Instant, member: usize) {
        let due = match self.is_connected(member) {
            true => None,
            false => Some(
                self.timers
                    .due(Timer::Gone(member))
                    .unwrap_or(now + BRIEFLY),
            ),
        };
        self.timers.set(Timer::Gone(member), due);
    }

    /// The questions that end now, as their member has been gone for a while.
    pub(super) fn gone(&self, member: usize) -> Vec<Id> {
        let questions = self.questions.iter();
        let gone = questions.filter(|(_, it)| it.member == member && it.limit != Limit::Unlimited);
        gone.map(|(id, _)| *id).collect()
    }

    /// The end of a question whose time may be over.
    pub(super) fn question_is_due(&mut self, now: Instant, id: Id) -> Option<Answer> {
        let question = self.questions.get_mut(&id)?;
        let (member, lease) = (question.member, question.lease);
        let session = self.sessions.get(member)?;
        let known_good = session.endpoint().engine().known_good(Node::default());
        let answer = question.end(now, known_good);
        self.timers.set(Timer::Question(id), question.due());
        if matches!(answer, Some(Answer::Gone)) {
            self.is_slow(now, member, lease);
        }
        answer
    }

    /// The pause after an attempt; it grows with each attempt.
    pub(super) fn pause_after(&mut self, attempts: &mut u32) -> Duration {
        let before = *attempts;
        *attempts = before.saturating_add(1);
        self.sessions[0].endpoint_mut().pause(before)
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        lock(&self.records)
    }

    fn record<T>(&self, member: usize, read: impl FnOnce(&mut Record) -> T) -> Option<T> {
        self.records().get_mut(member).map(read)
    }

    pub(super) fn count(&self) -> usize {
        self.sessions.len()
    }

    pub(super) fn majority(&self) -> usize {
        majority(self.count())
    }

    pub(super) fn address(&self, member: usize) -> String {
        self.record(member, |it| it.address.clone())
            .unwrap_or_default()
    }

    pub(super) fn is_connected(&self, member: usize) -> bool {
        let session = self.sessions.get(member);
        session.is_some_and(|it| it.endpoint().is_connected(Node::default()))
    }

    /// Whether a member is connected, or no attempt to connect again has failed yet.
    pub(super) fn is_at_hand(&self, member: usize) -> bool {
        self.is_connected(member) || self.failure_of(member).is_none()
    }

    /// The members that are asked these.
    pub(super) fn asked<'a>(
        &'a self,
        questions: &'a BTreeSet<Id>,
    ) -> impl Iterator<Item = usize> + 'a {
        let questions = questions.iter();
        questions.filter_map(|question| Some(self.questions.get(question)?.member))
    }

    /// Why a member is not connected, once that is known.
    pub(super) fn failure_of(&self, member: usize) -> Option<Failure> {
        self.sessions.get(member)?.endpoint().failure().cloned()
    }

    pub(super) fn is_closed(&self) -> bool {
        let mut sessions = self.sessions.iter();
        sessions.all(|session| session.endpoint().is_closed())
    }

    /// Why a member may not take part, if one may not.
    pub(super) fn refused(&self) -> Option<Error> {
        self.records().iter().find_map(|it| it.refused.clone())
    }

    /// Demands of all leases that those who were met now outlive them.
    pub(super) fn have_been_met(&mut self) {
        let graces = (0..self.count()).filter_map(|it| Some((self.grace(it)?, self.address(it))));
        let shortest = graces.min();
        self.shortest_grace = shortest.filter(|_| !self.any_grace);
    }

    /// Which members can be asked for a lock with that lease now. Those that
    /// were too slow are left alone only where the others are a majority.
    pub(super) fn usable(&self, now: Instant, lease: Option<Duration>) -> Vec<bool> {
        let lease = lease.filter(|_| !self.any_grace);
        let is_usable = |it| self.why_not(now, it, lease).is_none();
        let is_quick = |it| is_usable(it) && !self.was_slow(now, it);
        let all = 0..self.count();
        let quick: Vec<_> = all.clone().map(is_quick).collect();
        match quick.iter().filter(|it| **it).count() >= self.majority() {
            true => quick,
            false => all.map(is_usable).collect(),
        }
    }

    /// Whether a lease is over before that member grants after a crash.
    pub(super) fn outlives(&self, member: usize, lease: Duration) -> bool {
        self.any_grace || self.grace(member).is_none_or(|grace| grace >= lease)
    }

    pub(super) fn check_grace(&self, lease: Duration) -> Result<(), Error> {
        match &self.shortest_grace {
            Some((grace, address)) if *grace < lease => Err(Error::Member {
                address: address.clone(),
                reason: format!(
                    "its `rlock.startup-grace-ms` is {}, below the lease of {} ms, so after a \
                     crash it may grant what is still held: raise it, set `appendonly yes` and \
                     `appendfsync always`, or allow any grace",
                    grace.as_millis(),
                    lease.as_millis(),
                ),
            }),
            _ => Ok(()),
        }
    }

    /// The error of a call that has begun then, and was not answered by enough;
    /// `refusals` is what some have refused.
    pub(super) fn unavailable(
        &self,
        now: Instant,
        begun: Instant,
        lease: Duration,
        refusals: &[(usize, Error)],
    ) -> Error {
        let lease = (!self.any_grace).then_some(lease);
        let why = |it| {
            let slow = || self.was_slow(now, it).then(|| "it is too slow".to_owned());
            let refusal = || {
                let known = refusals.iter().find(|(known, _)| *known == it)?;
                Some(known.1.to_string())
            };
            self.why_not(now, it, lease).or_else(slow).or_else(refusal)
        };
        let source = match (0..self.count()).any(|it| why(it).is_some()) {
            true => self.failure("too few members of the quorum answer", why),
            // Each may have been about to.
            false => Failure::TimedOut("too few members of the quorum answered in time".into()),
        };
        Error::Unavailable {
            waited: now - begun,
            source: Some(source),
        }
    }

    pub(super) fn too_few(&self, now: Instant) -> Error {
        let what = "fewer than a majority of the members answer";
        let why = |it| {
            self.why_not(now, it, None)
                .or_else(|| Some("connected".into()))
        };
        Error::Connect(self.failure(what, why))
    }

    fn failure(&self, what: &str, why: impl Fn(usize) -> Option<String>) -> Failure {
        let why = (0..self.count())
            .filter_map(|it| Some(format!("{}: {}", self.address(it), why(it)?)))
            .collect::<Vec<_>>();
        Failure::Io(format!("{what}: {}", why.join("; ")))
    }

    /// Why a member cannot be asked for a lock with that lease now. A grace that
    /// is too short counts unless none is demanded.
    fn why_not(&self, now: Instant, member: usize, lease: Option<Duration>) -> Option<String> {
        if !self.is_connected(member) {
            let reason = |why: Failure| why.reason(&self.address(member));
            let why = self.failure_of(member).map(reason);
            return Some(why.unwrap_or_else(|| "no connection".to_owned()));
        }
        self.record(member, |record| match lease {
            Some(lease) if record.grace.is_some_and(|grace| grace < lease) => {
                Some(format!("its grace is below {lease:?}"))
            }
            _ if now < record.grants_from => {
                let left = record.grants_from - now;
                Some(format!("it grants nothing for {left:?} after its start"))
            }
            _ => None,
        })?
    }

    /// For how long a member grants nothing after a start; none if it forgets
    /// nothing, or has not been met.
    fn grace(&self, member: usize) -> Option<Duration> {
        self.record(member, |it| it.grace.filter(|_| !it.run_id.is_empty()))?
    }

    /// Has a member left alone for as long as it was waited for; for twice as
    /// long as the last time if it has not answered since, but not beyond the
    /// limit of a response.
    fn is_slow(&self, now: Instant, member: usize, lease: Duration) {
        let (waited, limit) = (answer_timeout(self.limits, lease), self.limits.response);
        self.record(member, |record| {
            // Several calls may have waited at the same time.
            if record.slow_until <= now {
                record.slow_for = (record.slow_for * 2).max(waited).min(limit);
                record.slow_until = now + record.slow_for;
            }
        });
    }

    /// Whether a member was too slow a short time ago.
    fn was_slow(&self, now: Instant, member: usize) -> bool {
        self.record(member, |it| now < it.slow_until) == Some(true)
    }

    /// Where a member stands among those that are waited for at `key`: the same
    /// for all clients, by whatever name they know it, and another one for each
    /// key.
    pub(super) fn rank(&self, member: usize, key: &[u8]) -> Option<(bool, u64)> {
        self.record(member, |it| {
            (it.run_id.is_empty(), mixed(it.run_id.as_bytes(), key))
        })
    }

    /// Whether nothing is asked, held, or left to clean up.
    pub(super) fn is_empty(&self) -> bool {
        let is_idle = self.questions.is_empty() && self.parts.is_empty();
        is_idle && self.sessions.iter().all(Session::is_empty)
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

    /// Why it may not take part beside another member that does.
    fn is_like(&self, other: &Self) -> Option<Error> {
        if other.refused.is_some() || other.run_id.is_empty() {
            return None;
        }
        let address = &other.address;
        if other.run_id == self.run_id {
            return Some(self.refusal(format!("it is the same server as {address}")));
        }
        let is_copy = other.replication_id == self.replication_id;
        is_copy.then(|| self.refusal(format!("it is or was a replica together with {address}")))
    }

    fn refusal(&self, reason: String) -> Error {
        let address = self.address.clone();
        Error::Member { address, reason }
    }
}

/// Locks, even after a panic elsewhere: no state here is inconsistent then.
fn lock(records: &Mutex<Vec<Record>>) -> MutexGuard<'_, Vec<Record>> {
    records.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at a member by each new connection to it.
fn check(records: Records, place: usize) -> Check {
    Arc::new(move |now, greeting| {
        let mut records = lock(&records);
        let Some(own) = records.get_mut(place) else {
            return Ok(());
        };
        let refused = own.read(now, greeting);
        let own = records.get(place);
        let others = records.iter().enumerate().filter(|(it, _)| *it != place);
        let mut likenesses = others.filter_map(|(_, other)| own?.is_like(other));
        let refused = refused.or_else(|| likenesses.next());
        if let Some(own) = records.get_mut(place) {
            own.refused.clone_from(&refused);
        }
        match refused {
            None => Ok(()),
            Some(Error::Member { reason, .. }) => Err(reason),
            Some(other) => Err(other.to_string()),
        }
    })
}

/// How long a member may take for an answer that others could give.
pub(super) fn answer_timeout(limits: Limits, lease: Duration) -> Duration {
    let limit = (limits.response / 4).min(lease / 10);
    limit.max(Duration::from_millis(5))
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
