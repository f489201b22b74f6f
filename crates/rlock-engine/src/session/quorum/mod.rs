//! One lock on several independent servers, held by a majority of them.
//!
//! A [`Quorum`] is used as a [`Session`](super::Session): the same calls,
//! actions and events, for exclusive locks of one key. It has a session for each
//! member. The number of a connection carries its member.
//!
//! - here: calls and guards, and the turns of one owner at one key; one type,
//!   whole, because the end of a call may pass a turn on and end a hold;
//! - `plan`: what one contender does next;
//! - `seats`: carries that out: what is held at each member, and what it is asked;
//! - `hold`: what is held by a majority, and looks after it;
//! - `members`: what is known of each server, and whether it may take part;
//! - `question`, `timers`: how long an answer is waited for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::{ConnectionId, Endpoint, Event, Note, Settings};
use crate::engine::Id;
use crate::engine::claims::{Claims, Name, Table, check_key};
use crate::engine::instant::{Instant, LateChecks};
use crate::engine::proof::Proof;
use crate::engine::terms::{Ask, Queueing, Terms, lease_ms, whole_ms_or_zero};
use crate::error::{Error, Failure, Loss};
use crate::servers::Servers;
use crate::session::guards::Proofs;
use crate::session::{Action, Call, Lock, Occurrence, Outcome};

mod hold;
mod members;
mod plan;
mod question;
mod seats;
mod timers;

use hold::Hold;
use members::{Happened, Members, answer_timeout};
use plan::Step;
use question::{Answer, By, Limit, Part};
use seats::{End, Seats, Wait};
use timers::Timer;

/// A client of several servers without sockets and without a clock; see the
/// documentation of this module.
pub struct Quorum {
    members: Members,
    calls: BTreeMap<Id, Progress>,
    turns: Table<Name, Turn>,
    holds: BTreeMap<Id, Hold>,
    /// The hold of each guard.
    guards: Table<Id, Id>,
    /// Whether the first connections have been waited for, and were enough.
    is_met: bool,
    /// Whether nothing more is acquired.
    is_leaving: bool,
    actions: VecDeque<Action>,
}

/// What is known of a call.
enum Progress {
    Connect(Meeting),
    /// It waits for the first connections.
    Early(Box<(Lock, Wait)>),
    Lock(Box<Locking>),
    Extend(Asked, Id),
    Release(Asked),
    Flush(Asked),
}

/// The first connections.
struct Meeting {
    /// The members that have neither connected nor failed to.
    unmet: BTreeSet<usize>,
    late_checks: LateChecks,
    failures: Vec<Failure>,
}

/// Several members are asked for the same.
struct Asked {
    begun: Instant,
    lease: Duration,
    questions: BTreeSet<Id>,
    /// Those of members that do not count, and how many have nothing of it any more.
    others: BTreeSet<Id>,
    cleared: usize,
    /// Whether it stays taken for a while: who has nothing of it does not help.
    is_kept: bool,
    done: usize,
    /// How many did not answer what was asked.
    silent: usize,
    /// The error of each question.
    failures: BTreeMap<Id, Error>,
}

/// A call for a lock.
struct Locking {
    claims: Claims,
    terms: Terms,
    /// As it was called.
    waited: Wait,
    /// How the attempts ask now.
    wait: Wait,
    attempts: u32,
    late_checks: LateChecks,
    stage: Stage,
}

enum Stage {
    /// Another call of its owner for its key comes first.
    Turn,
    /// The lease of the whole is set again.
    Again(Asked, Id),
    Asking(Seats),
    /// Before the next attempt; what some members refused in the last one.
    Pause(Vec<(usize, Error)>),
}

/// The calls of one owner for one key take turns.
#[derive(Default)]
struct Turn {
    caller: Option<Id>,
    waiting: VecDeque<Id>,
    /// What the owner holds.
    hold: Option<Id>,
}

impl Quorum {
    /// A client of these servers, whose settings their caller has
    /// [checked](Settings::check). It does nothing before its first input. Unless
    /// leases above the startup grace of a member are allowed by `any_grace`,
    /// they are refused.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`]: these are not 3, 5, 7 or 9 servers.
    pub fn new(members: Vec<(Servers, Settings)>, any_grace: bool) -> Result<Self, Error> {
        if !(3..=9).contains(&members.len()) || members.len().is_multiple_of(2) {
            return Err(Error::OutOfRange {
                argument: "members",
                value: format!("{} servers", members.len()),
                limit: "3, 5, 7 or 9: an even number survives no more failures than the odd number below".into(),
            });
        }
        Ok(Self {
            members: Members::new(members, any_grace),
            calls: BTreeMap::new(),
            turns: Table::default(),
            holds: BTreeMap::new(),
            guards: Table::default(),
            is_met: false,
            is_leaving: false,
            actions: VecDeque::new(),
        })
    }

    /// The connections of the first member.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        self.members.first().endpoint()
    }

    /// Whether nothing is left to clean up at any member.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.members.is_clean()
    }

    /// The next action; none until the next input.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to send [`Event::Tick`], unless another input comes before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.members.next_deadline()
    }

    /// Exchanges the output of a connection for `empty`.
    pub fn take_output(&mut self, mut connection: ConnectionId, empty: &mut Vec<u8>) {
        if let Some(session) = self.members.at(&mut connection) {
            session.take_output(connection, empty);
        }
    }

    /// Whether nobody waits or holds anything, and nothing is left to clean up.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_free = self.turns.is_empty() && self.holds.is_empty() && self.guards.is_empty();
        self.calls.is_empty() && is_free && self.members.is_empty()
    }

    /// Whether a call or a guard has this number, so that no other call can have it.
    #[must_use]
    pub fn is_known(&self, number: Id) -> bool {
        self.calls.contains_key(&number) || self.guards.contains_key(&number)
    }

    /// For how long a majority holds what a guard has if nothing more arrives;
    /// zero if it is over.
    #[must_use]
    pub fn remaining(&self, guard: Id, now: Instant) -> Duration {
        self.hold_of(guard)
            .map_or(Duration::ZERO, |hold| hold.remaining(now))
    }

    /// Takes an event of a connection or of time.
    pub fn handle(&mut self, now: Instant, mut event: Event<'_>) {
        match &mut event {
            Event::Opened { connection }
            | Event::Received { connection, .. }
            | Event::Ended { connection, .. } => {
                if let Some(session) = self.members.at(connection) {
                    session.handle(now, event);
                }
            }
            Event::Closed => self.close(now),
            _ => self.members.tick(now),
        }
        self.settle(now);
    }

    /// Begins a call with this number, which no earlier call had. A call that is
    /// for a single server only fails.
    pub fn call(&mut self, now: Instant, call: Id, begun: Call) {
        match begun {
            Call::Flush => self.flush(now, call),
            _ if self.members.is_closed() => {
                let mut error = Error::Closed;
                if let Call::Release { guard, .. } = begun {
                    let loss = self.hold_of(guard).and_then(|it| it.proof.loss(now));
                    error = loss.map_or(error, Error::Lost);
                    self.leave(now, guard);
                }
                self.fail(call, error);
            }
            Call::Connect => self.connect(now, call),
            Call::Lock(lock) => self.lock(now, call, lock),
            Call::Extend { guard, lease } => self.extend(now, call, guard, lease),
            Call::Release { guard, least } => self.release(now, call, guard, least),
            other => self.fail(call, not_of_quorum(&other)),
        }
        self.settle(now);
    }

    /// Nobody waits for a call any more.
    pub fn abandon(&mut self, now: Instant, call: Id) {
        self.forget(now, call);
        self.settle(now);
    }

    /// A guard ends, and nobody waits for the outcome.
    pub fn leave(&mut self, now: Instant, guard: Id) {
        if let Some(hold) = self.guards.remove(&guard) {
            self.give_up(now, guard, hold);
        }
        self.settle(now);
    }

    /// The same for a guard that its caller never received.
    pub fn untaken(&mut self, now: Instant, guard: Id) {
        self.leave(now, guard);
    }

    /// Has the end of a guard leave the lock taken until `least` after its grant.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] above 30 days. The guard has ended then, and its lock
    /// becomes free when its lease ends.
    pub fn keep(&mut self, now: Instant, guard: Id, least: Duration) -> Result<(), Error> {
        let Some(hold) = self
            .guards
            .get(&guard)
            .and_then(|it| self.holds.get_mut(it))
        else {
            return Ok(());
        };
        let least = whole_ms_or_zero("least", least);
        hold.keep(match &least {
            Ok(least) => hold.proof.granted + *least,
            Err(_) => hold.proof.valid_until().unwrap_or(now),
        });
        if least.is_err() {
            self.leave(now, guard);
        }
        least.map(|_| ())
    }

    /// Acquires nothing more: calls for locks end with [`Error::Closed`], and all
    /// guards are released.
    pub fn leave_all(&mut self, now: Instant) {
        self.is_leaving = true;
        let turns = self.turns.values_mut();
        turns.for_each(|turn| turn.waiting.clear());
        let calls = self.calls.iter();
        let locking = calls.filter(|(_, it)| matches!(it, Progress::Early(_) | Progress::Lock(_)));
        for call in locking.map(|(call, _)| *call).collect::<Vec<_>>() {
            self.forget(now, call);
            self.fail(call, Error::Closed);
        }
        for hold in self.holds.keys().copied().collect::<Vec<_>>() {
            // Its guards say why it was lost: the process may have been stopped for longer
            // than a lease.
            if self.look_at(now, hold) {
                self.over(hold, Loss::Released);
                let contacts = self.end(now, hold);
                self.members.leave_all(now, contacts);
            }
        }
        self.members.each(|session| session.leave_all(now));
        self.settle(now);
    }

    /// Counts again for how long a majority holds what a guard has. Only the proofs
    /// of the parts know of the connections to which they are bound.
    pub fn look(&mut self, now: Instant, guard: Id) {
        if let Some(hold) = self.guards.get(&guard).copied() {
            self.look_at(now, hold);
            self.settle(now);
        }
    }

    /// Whether the parts of a guard end with their connections.
    #[must_use]
    pub fn is_bound(&self, guard: Id) -> bool {
        let is_bound = |(_, part): (usize, &Part)| part.proof.is_bound();
        self.hold_of(guard)
            .is_some_and(|it| it.terms.bound.is_some() || it.parts().any(is_bound))
    }

    /// The addresses of the members that hold what a guard has, and for how long
    /// each does for certain.
    #[must_use]
    pub fn holding(&self, now: Instant, guard: Id) -> Vec<(String, Duration)> {
        let held = self.hold_of(guard).filter(|it| it.proof.is_live(now));
        let parts = held.into_iter().flat_map(Hold::parts);
        let parts = parts.map(|(member, part)| (member, part.proof.remaining(now)));
        let live = parts.filter(|(_, remaining)| !remaining.is_zero());
        live.map(|(member, remaining)| (self.members.address(member), remaining))
            .collect()
    }

    fn hold_of(&self, guard: Id) -> Option<&Hold> {
        self.holds.get(self.guards.get(&guard)?)
    }

    fn resolve(&mut self, call: Id, outcome: Outcome) {
        if call.number() < Id::OF_ENGINE {
            self.actions.push_back(Action::Resolve { call, outcome });
        }
    }

    fn fail(&mut self, call: Id, error: Error) {
        self.resolve(call, Outcome::Failed(error));
    }

    /// Tells the guards of a hold that it ends, unless they know of its loss.
    fn over(&mut self, hold: Id, why: Loss) {
        let hold = self.holds.get(&hold).filter(|it| !it.is_reported);
        for guard in hold.into_iter().flat_map(|it| it.guards.iter().copied()) {
            if self.guards.contains_key(&guard) {
                self.actions.push_back(Action::Over { guard, why });
            }
        }
    }

    fn ended(&mut self, proof: Arc<Proof>, why: Loss) {
        self.actions.push_back(Action::Ended { proof, why });
    }

    /// Nothing more happens. As with one server, guards stay what they are until
    /// their lease ends, unless all were released before.
    fn close(&mut self, now: Instant) {
        self.is_leaving = true;
        let turns = self.turns.values_mut();
        turns.for_each(|turn| turn.waiting.clear());
        for call in self.calls.keys().copied().collect::<Vec<_>>() {
            self.forget(now, call);
            self.fail(call, Error::Closed);
        }
        self.members
            .each(|session| session.handle(now, Event::Closed));
        // What is bound ends sooner.
        for hold in self.holds.keys().copied().collect::<Vec<_>>() {
            if self.look_at(now, hold)
                && let Some(it) = self.holds.get(&hold)
            {
                let proof = Arc::clone(&it.proof);
                self.actions.push_back(Action::Wake { proof });
            }
        }
    }

    /// Carries out what the members' sessions ask for, and what is due.
    fn settle(&mut self, now: Instant) {
        loop {
            if let Some(happened) = self.members.poll(now, &mut self.actions) {
                match happened {
                    Happened::Answered(by, question, answer) => {
                        self.answered(now, by, question, answer);
                    }
                    Happened::Changed(member) => self.changed(now, member),
                    Happened::Lost(hold) => self.tend(now, hold),
                    // Nothing else extends its proof during a stall.
                    Happened::Renewed(hold) => {
                        if let Some(hold) = self.holds.get(&hold) {
                            hold.extend(now);
                        }
                    }
                }
            } else if let Some((due, timer)) = self.members.timers.pop(now) {
                self.fire(now, due, timer);
            } else {
                return;
            }
        }
    }

    fn fire(&mut self, now: Instant, due: Instant, timer: Timer) {
        match timer {
            Timer::Gone(member) => {
                for question in self.members.gone(member) {
                    if let Some(by) = self.members.forget(now, question) {
                        self.answered(now, by, question, Answer::Gone);
                    }
                }
                // They may wait for others only.
                let calls = self.calls.iter();
                let waits = |it: &Progress| matches!(it, Progress::Release(_) | Progress::Flush(_));
                let waiting = calls.filter(|(_, it)| waits(it)).map(|(call, _)| *call);
                for call in waiting.collect::<Vec<_>>() {
                    self.go_on(now, call);
                }
            }
            Timer::Question(question) => {
                if let Some(answer) = self.members.question_is_due(now, question)
                    && let Some(by) = self.members.forget(now, question)
                {
                    self.answered(now, by, question, answer);
                }
            }
            Timer::Hold(hold) => self.tend(now, hold),
            Timer::Call(call) => self.call_is_due(now, due, call),
        }
    }

    fn answered(&mut self, now: Instant, by: By, question: Id, answer: Answer) {
        match by {
            By::Hold(hold) => {
                if let Some(it) = self.holds.get_mut(&hold) {
                    it.answered(now, &mut self.members, question, answer);
                    self.tend(now, hold);
                }
            }
            By::Seat(call) => {
                if let Some(Progress::Lock(locking)) = self.calls.get_mut(&call)
                    && let Stage::Asking(seats) = &mut locking.stage
                    && let Some(end) = seats.answered(now, &mut self.members, question, answer)
                {
                    self.attempt_ends(now, call, Some(end));
                }
            }
            By::Call(call) => {
                if let Some(asked) = self.calls.get_mut(&call).and_then(Progress::asked) {
                    asked.answered(question, answer);
                    self.go_on(now, call);
                }
            }
        }
    }

    fn call_is_due(&mut self, now: Instant, due: Instant, call: Id) {
        let late_checks = match self.calls.get_mut(&call) {
            Some(Progress::Connect(meeting)) => Some(&mut meeting.late_checks),
            Some(Progress::Lock(locking)) if matches!(locking.stage, Stage::Asking(_)) => {
                Some(&mut locking.late_checks)
            }
            _ => None,
        };
        if let Some(again) = late_checks.and_then(|it| it.again(due, now)) {
            return self.due(call, Some(again));
        }
        match self.calls.get(&call) {
            Some(Progress::Connect(_)) => self.meeting_ends(now, call),
            Some(Progress::Early(_)) => self.enter_early(now, call),
            Some(Progress::Lock(locking)) => match &locking.stage {
                Stage::Turn if self.has_turn(call, &locking.claims) => self.takes_turn(now, call),
                Stage::Turn => {
                    self.forget(now, call);
                    self.resolve(call, Outcome::Refused);
                }
                Stage::Again(..) => {}
                Stage::Asking(_) => self.attempt_ends(now, call, None),
                Stage::Pause(refusals) => match locking.wait.end.is_some_and(|end| end <= now) {
                    true => {
                        let refusals = refusals.clone();
                        self.attempts_end(now, call, &refusals);
                    }
                    false => self.attempt(now, call),
                },
            },
            Some(_) => self.go_on(now, call),
            None => {}
        }
    }

    fn has_turn(&self, call: Id, claims: &Claims) -> bool {
        let turn = self.turns.get(&name(claims));
        turn.is_some_and(|turn| turn.caller == Some(call))
    }

    fn due(&mut self, call: Id, due: Option<Instant>) {
        self.members.timers.set(Timer::Call(call), due);
    }

    /// Ends a call, and leaves nothing behind.
    fn forget(&mut self, now: Instant, call: Id) {
        self.due(call, None);
        match self.calls.remove(&call) {
            Some(Progress::Lock(locking)) => self.ends(now, call, *locking),
            Some(
                Progress::Extend(asked, _) | Progress::Release(asked) | Progress::Flush(asked),
            ) => asked.forget(now, &mut self.members),
            Some(Progress::Connect(_) | Progress::Early(_)) | None => {}
        }
    }

    /// A call for a lock is over: what it has asked, and its turn.
    fn ends(&mut self, now: Instant, call: Id, locking: Locking) {
        match locking.stage {
            Stage::Again(asked, hold) => {
                asked.forget(now, &mut self.members);
                self.give_up(now, call, hold);
            }
            Stage::Asking(seats) => self.members.leave_all(now, seats.contacts),
            Stage::Turn | Stage::Pause(_) => {}
        }
        let name = name(&locking.claims);
        let Some(turn) = self.turns.get_mut(&name) else {
            return;
        };
        turn.waiting.retain(|waiting| *waiting != call);
        if turn.caller == Some(call) {
            turn.caller = turn.waiting.pop_front();
            if let Some(next) = turn.caller {
                // Not at once: each of thousands could end within the one before.
                return self.due(next, Some(now));
            }
        }
        self.turn_may_end(&name);
    }

    fn turn_may_end(&mut self, name: &Name) {
        let turn = self.turns.get(name);
        if turn.is_some_and(|turn| turn.caller.is_none() && turn.hold.is_none()) {
            self.turns.remove(name);
        }
    }

    fn connect(&mut self, now: Instant, call: Id) {
        let meeting = Meeting {
            unmet: (0..self.members.count()).collect(),
            late_checks: LateChecks::default(),
            failures: Vec::new(),
        };
        self.calls.insert(call, Progress::Connect(meeting));
        self.members
            .each(|session| session.handle(now, Event::Begin));
        self.due(call, Some(now + self.members.limits.response));
        for member in 0..self.members.count() {
            if self.members.is_connected(member) {
                self.meets(now, call, member);
            }
        }
    }

    fn changed(&mut self, now: Instant, member: usize) {
        self.members.changed(now, member);
        let failure = self.members.failure_of(member);
        if failure.is_none() && !self.members.is_connected(member) {
            return;
        }
        for call in self.calls.keys().copied().collect::<Vec<_>>() {
            self.meets(now, call, member);
        }
    }

    /// A member has connected, or failed to, and a call may wait for that.
    fn meets(&mut self, now: Instant, call: Id, member: usize) {
        let failure = self.members.failure_of(member);
        if let Some(Progress::Connect(meeting)) = self.calls.get_mut(&call)
            && meeting.unmet.remove(&member)
        {
            meeting.failures.extend(failure);
            let is_over = meeting.unmet.is_empty();
            let limit = self.members.limits.response;
            let limit = limit / if self.has_enough() { 4 } else { 1 };
            self.due(
                call,
                Some(now + if is_over { Duration::ZERO } else { limit }),
            );
        }
    }

    fn has_enough(&self) -> bool {
        let connected = (0..self.members.count()).filter(|it| self.members.is_connected(*it));
        connected.count() >= self.members.majority()
    }

    /// It has waited for the first connections: of a majority, and for a while
    /// for those of the others.
    fn meeting_ends(&mut self, now: Instant, call: Id) {
        let Some(Progress::Connect(meeting)) = self.calls.remove(&call) else {
            return;
        };
        let mut failures = meeting.failures.into_iter().map(Error::Connect);
        let lasting = failures.find(|error| !error.is_transient());
        let outcome = match self.members.refused().or(lasting) {
            Some(error) => Outcome::Failed(error),
            None if self.has_enough() => {
                self.members.have_been_met();
                self.is_met = true;
                Outcome::Done
            }
            None => Outcome::Failed(self.members.too_few(now)),
        };
        let calls = self.calls.iter();
        let early = calls.filter(|(_, it)| matches!(it, Progress::Early(_)));
        for early in early.map(|(call, _)| *call).collect::<Vec<_>>() {
            match &outcome {
                Outcome::Failed(error) if !error.is_transient() => {
                    self.forget(now, early);
                    self.fail(early, error.clone());
                }
                // As at any later time, it is for its wait to see who answers.
                _ => self.enter_early(now, early),
            }
        }
        self.resolve(call, outcome);
    }

    fn lock(&mut self, now: Instant, call: Id, lock: Lock) {
        let is_plain = lock.value.is_none() && lock.terms.replicas == 0;
        let is_meant = lock.ask == Ask::Exclusive && lock.claims.is_single() && is_plain;
        let checked = match is_meant {
            true => check_key(lock.claims.key()),
            false => Err(not_of_quorum(&Call::Lock(lock.clone()))),
        };
        if let Err(error) = checked {
            return self.fail(call, error);
        }
        if self.is_leaving {
            return self.fail(call, Error::Closed);
        }
        let wait = Wait::new(now, lock.queueing, self.members.limits.retry);
        if self.is_met {
            return self.enter(now, call, lock, wait);
        }
        let early = Progress::Early(Box::new((lock, wait)));
        self.calls.insert(call, early);
        self.due(call, wait.end);
        // Another call that connects may be abandoned.
        let own = Id::of_number(Id::OF_ENGINE);
        if !self.calls.contains_key(&own) {
            self.connect(now, own);
        }
    }

    /// A call that came before the first connections begins.
    fn enter_early(&mut self, now: Instant, call: Id) {
        self.due(call, None);
        if let Some(Progress::Early(early)) = self.calls.remove(&call) {
            let (lock, wait) = *early;
            self.enter(now, call, lock, wait);
        }
    }

    /// A call for a lock begins, once the first connections have been waited for.
    fn enter(&mut self, now: Instant, call: Id, lock: Lock, wait: Wait) {
        if let Err(error) = self.members.check_grace(lock.terms.lease) {
            return self.fail(call, error);
        }
        let turn = self.turns.entry(name(&lock.claims)).or_default();
        if turn.caller.is_some() && lock.queueing == Queueing::Try {
            return self.resolve(call, Outcome::Refused);
        }
        let is_first = *turn.caller.get_or_insert(call) == call;
        if !is_first {
            turn.waiting.push_back(call);
        }
        let locking = Locking {
            claims: lock.claims,
            terms: lock.terms,
            waited: wait,
            wait,
            attempts: 0,
            late_checks: LateChecks::default(),
            stage: Stage::Turn,
        };
        self.calls.insert(call, Progress::Lock(Box::new(locking)));
        match is_first {
            true => self.takes_turn(now, call),
            false => self.due(call, wait.end),
        }
    }

    /// It is the turn of that call. What its owner holds is entered again, after
    /// the lease of the whole was set again: of all parts that can be reached,
    /// except those at a member that might grant again what it forgets.
    fn takes_turn(&mut self, now: Instant, call: Id) {
        let Some(Progress::Lock(locking)) = self.calls.get(&call) else {
            return;
        };
        let turn = self.turns.get(&name(&locking.claims));
        let hold = turn.and_then(|turn| turn.hold);
        let Some(hold) = hold else {
            return self.attempt(now, call);
        };
        if !self.look_at(now, hold) {
            self.leave_parts(now, hold);
            return self.attempt(now, call);
        }
        let Some(it) = self.holds.get_mut(&hold) else {
            return;
        };
        it.guards.push(call);
        let (fence, terms) = (it.proof.fence(), it.rest_of_terms(now));
        let mut asked = Asked::begin(now, terms.lease);
        for contact in it.contacts.iter().filter(|it| it.counted().is_some()) {
            if self.members.outlives(contact.member, terms.lease) {
                let by = By::Call(call);
                asked
                    .questions
                    .extend(contact.raise(now, &mut self.members, by, (fence, terms)));
            }
        }
        if let Some(Progress::Lock(locking)) = self.calls.get_mut(&call) {
            locking.stage = Stage::Again(asked, hold);
        }
        self.due(call, None);
        self.go_on(now, call);
    }

    /// What several members are asked may have been answered by enough.
    fn go_on(&mut self, now: Instant, call: Id) {
        let (quorum, limits) = (self.members.majority(), self.members.limits);
        let Some(progress) = self.calls.get_mut(&call) else {
            return;
        };
        let (is_release, is_flush) = (
            matches!(progress, Progress::Release(_)),
            matches!(progress, Progress::Flush(_)),
        );
        let Some(asked) = progress.asked() else {
            return;
        };
        let mut is_enough = asked.done >= quorum && !is_flush;
        if is_release {
            // It waits only for those that answer soon, and only if a majority may.
            is_enough = asked.free() >= quorum;
            // Those that do not count may have more to clean up, for as long as a lease.
            let end = asked.begun + limits.retry;
            let open = match end <= now {
                true => asked.counted_questions(),
                false => asked.questions.len(),
            };
            let is_possible = asked.free() + open >= quorum;
            let soon = asked.begun + answer_timeout(limits, asked.lease);
            let usable = self.members.usable(now, None);
            let is_usable = |member| usable.get(member) == Some(&true);
            let is_last = soon <= now || !self.members.asked(&asked.questions).any(is_usable);
            let due = match is_enough {
                true => Some(soon).filter(|_| !is_last),
                false => Some(end).filter(|end| *end > now),
            };
            self.members.timers.set(Timer::Call(call), due);
            is_enough = is_enough && is_last || !is_possible;
        }
        if is_flush {
            // What cannot be reached keeps nobody out, who cannot reach it either.
            let is_free = self.members.count() - asked.questions.len() >= quorum;
            let mut asked = self.members.asked(&asked.questions);
            is_enough = is_free && !asked.any(|member| self.members.is_at_hand(member));
        }
        let is_enough = is_enough || asked.questions.is_empty();
        if !is_enough {
            return;
        }
        self.due(call, None);
        match self.calls.remove(&call) {
            Some(Progress::Extend(asked, hold)) => self.extend_ends(now, call, asked, hold),
            Some(Progress::Release(asked)) => self.release_ends(now, call, asked),
            Some(Progress::Flush(mut asked)) => {
                let failed = asked.failures.pop_first();
                asked.forget(now, &mut self.members);
                self.resolve(
                    call,
                    failed.map_or(Outcome::Done, |it| Outcome::Failed(it.1)),
                );
            }
            Some(Progress::Lock(mut locking)) => {
                let Stage::Again(asked, hold) = std::mem::replace(&mut locking.stage, Stage::Turn)
                else {
                    return;
                };
                asked.forget(now, &mut self.members);
                if self.look_at(now, hold) {
                    return self.grant(now, call, *locking, hold);
                }
                self.calls.insert(call, Progress::Lock(locking));
                self.give_up(now, call, hold);
                self.leave_parts(now, hold);
                self.attempt(now, call);
            }
            _ => {}
        }
    }

    /// Asks for the lock.
    fn attempt(&mut self, now: Instant, call: Id) {
        let Some(Progress::Lock(locking)) = self.calls.get_mut(&call) else {
            return;
        };
        let (wanted, wait) = ((&locking.claims, locking.terms), locking.wait);
        let (mut seats, steps) = Seats::begin(now, &self.members, call, wanted, wait);
        let end = seats.go_on(now, &mut self.members, steps);
        locking.stage = Stage::Asking(seats);
        self.due(call, wait.end);
        if let Some(end) = end {
            self.attempt_ends(now, call, Some(end));
        }
    }

    /// An attempt is over; none if its time is. At the end of a wait it looks
    /// whether the lock is free after all: the gate may have hung.
    fn attempt_ends(&mut self, now: Instant, call: Id, end: Option<End>) {
        let Some(Progress::Lock(mut locking)) = self.calls.remove(&call) else {
            return;
        };
        let Stage::Asking(mut seats) = std::mem::replace(&mut locking.stage, Stage::Turn) else {
            return;
        };
        let is_try = locking.wait.queueing == Queueing::Try;
        let is_last = locking.wait.queueing != locking.waited.queueing;
        let has_waited = is_last || seats.queued_at.is_some();
        if let Some(Ok(Step::Hold(fence))) = end
            && let Some(hold) = Hold::begin(now, &mut self.members, call, &mut seats, fence)
        {
            self.holds.insert(call, hold);
            let turn = self.turns.entry(name(&locking.claims)).or_default();
            turn.hold = Some(call);
            self.grant(now, call, *locking, call);
            return self.tend(now, call);
        }
        self.members.leave_all(now, seats.contacts);
        let outcome = match end {
            Some(Err(error)) => Some(Outcome::Failed(error)),
            Some(Ok(Step::Refuse)) if locking.wait.queueing != Queueing::Unlimited => {
                Some(Outcome::Refused)
            }
            None if has_waited && is_try => Some(Outcome::Refused),
            None if has_waited => {
                let limit = 2 * answer_timeout(self.members.limits, locking.terms.lease);
                locking.wait = Wait::new(now, Queueing::Try, limit);
                self.calls.insert(call, Progress::Lock(locking));
                return self.attempt(now, call);
            }
            _ => None,
        };
        if let Some(outcome) = outcome {
            self.due(call, None);
            self.resolve(call, outcome);
            return self.ends(now, call, *locking);
        }
        let again = now + self.members.pause_after(&mut locking.attempts);
        let is_over = is_last || locking.wait.end.is_some_and(|end| end <= now);
        if is_over {
            self.calls.insert(call, Progress::Lock(locking));
            return self.attempts_end(now, call, &seats.refusals);
        }
        self.due(
            call,
            Some(locking.wait.end.map_or(again, |end| end.min(again))),
        );
        locking.stage = Stage::Pause(seats.refusals);
        self.calls.insert(call, Progress::Lock(locking));
    }

    /// Too few members have answered to the end.
    fn attempts_end(&mut self, now: Instant, call: Id, refusals: &[(usize, Error)]) {
        if let Some(Progress::Lock(locking)) = self.calls.get(&call) {
            let (begun, lease) = (locking.waited.begun, locking.terms.lease);
            let error = self.members.unavailable(now, begun, lease, refusals);
            self.forget(now, call);
            self.fail(call, error);
        }
    }

    /// Hands a guard of a hold to its caller.
    fn grant(&mut self, now: Instant, call: Id, mut locking: Locking, hold: Id) {
        self.due(call, None);
        if let Some(it) = self.holds.get(&hold) {
            self.guards.insert(call, hold);
            let (guard, proofs) = (call, Proofs::of_one(&it.proof));
            self.resolve(call, Outcome::Granted { guard, proofs });
        }
        locking.stage = Stage::Turn;
        self.ends(now, call, locking);
    }

    /// Looks whether a majority holds; false if it is lost, and then its parts are left
    /// as soon as the margin is over.
    fn look_at(&mut self, now: Instant, hold: Id) -> bool {
        let Some(it) = self.holds.get_mut(&hold) else {
            return false;
        };
        if it.look(now) {
            return true;
        }
        let is_news = !it.is_reported;
        let proof = Arc::clone(&it.proof);
        let due = Some(it.leave_at(now)).filter(|due| *due > now);
        self.members.timers.set(Timer::Hold(hold), due);
        if due.is_none() {
            self.leave_parts(now, hold);
        }
        if let Some(why) = proof.loss(now).filter(|_| is_news) {
            self.over(hold, why);
            self.ended(proof, why);
        }
        if let Some(it) = self.holds.get_mut(&hold) {
            it.is_reported = true;
        }
        false
    }

    /// Nothing is left of a lost hold but its guards.
    fn leave_parts(&mut self, now: Instant, hold: Id) {
        if let Some(it) = self.holds.get_mut(&hold) {
            let contacts = std::mem::take(&mut it.contacts);
            self.members.leave_all(now, contacts);
        }
    }

    fn tend(&mut self, now: Instant, hold: Id) {
        let it = self.holds.get_mut(&hold);
        if let Some(again) = it.and_then(|it| it.late_check(now)) {
            return self.members.timers.set(Timer::Hold(hold), Some(again));
        }
        if self.look_at(now, hold)
            && let Some(it) = self.holds.get_mut(&hold)
        {
            let due = it.tend(now, &mut self.members);
            self.members.timers.set(Timer::Hold(hold), due);
            if let Some((since, left)) = it.risk(now) {
                let claims = it.claims.clone();
                let note = Note::AtRisk {
                    claims,
                    since,
                    left,
                };
                self.actions.push_back(Action::Note(note));
                let guards = it.guards.iter().filter(|it| self.guards.contains_key(it));
                let risks = guards.map(|guard| Occurrence::at_risk(*guard, &it.claims, left));
                self.actions.extend(risks);
            }
        }
    }

    /// One guard less; the end of a hold if it was the last.
    fn give_up(&mut self, now: Instant, guard: Id, hold: Id) {
        if self.is_last_guard(guard, hold) {
            let contacts = self.end(now, hold);
            self.members.leave_all(now, contacts);
        }
    }

    fn is_last_guard(&mut self, guard: Id, hold: Id) -> bool {
        self.holds.get_mut(&hold).is_some_and(|it| {
            it.guards.retain(|it| *it != guard);
            it.guards.is_empty()
        })
    }

    /// Ends a hold on purpose; what is left of it, the gate first.
    fn end(&mut self, now: Instant, hold: Id) -> Vec<seats::Contact> {
        let Some(mut it) = self.holds.remove(&hold) else {
            return Vec::new();
        };
        self.members.timers.set(Timer::Hold(hold), None);
        let contacts = it.end(now, &mut self.members);
        let name = name(&it.claims);
        if let Some(turn) = self.turns.get_mut(&name) {
            turn.hold = turn.hold.filter(|known| *known != hold);
            self.turn_may_end(&name);
        }
        self.ended(it.proof, Loss::Released);
        contacts
    }

    /// Has all parts last for at least `lease` from now, except those at a
    /// member that might grant again what it forgets.
    fn extend(&mut self, now: Instant, call: Id, guard: Id, lease: Duration) {
        let lease = lease_ms("lease", lease).and_then(|lease| {
            self.members.check_grace(lease)?;
            Ok(lease)
        });
        let hold = self.guards.get(&guard).copied();
        let (lease, hold) = match (lease, hold) {
            (Ok(lease), Some(hold)) => (lease, hold),
            (Err(error), _) => return self.fail(call, error),
            (_, None) => return self.fail(call, Error::Lost(Loss::Released)),
        };
        let mut asked = Asked::begin(now, lease);
        let is_held = self.look_at(now, hold);
        let held = self.holds.get(&hold).filter(|_| is_held);
        for (member, part) in held.into_iter().flat_map(Hold::parts) {
            if self.members.outlives(member, lease) {
                let extend = Call::Extend {
                    guard: part.guard,
                    lease,
                };
                let (by, limit) = ((member, By::Call(call)), (Limit::Unlimited, lease));
                asked
                    .questions
                    .insert(self.members.ask(now, by, limit, extend));
            }
        }
        self.calls.insert(call, Progress::Extend(asked, hold));
        self.go_on(now, call);
    }

    fn extend_ends(&mut self, now: Instant, call: Id, mut asked: Asked, hold: Id) {
        let failure = asked.failures.pop_first();
        let (begun, lease, done) = (asked.begun, asked.lease, asked.done);
        asked.forget(now, &mut self.members);
        self.look_at(now, hold);
        let Some(it) = self.holds.get_mut(&hold) else {
            let released = match self.is_leaving {
                true => Error::Closed,
                false => Error::Lost(Loss::Released),
            };
            return self.fail(call, released);
        };
        if let Some(loss) = it.proof.end_of(now) {
            return self.fail(call, Error::Lost(loss));
        }
        if done < self.members.majority() {
            let unavailable = || self.members.unavailable(now, begun, lease, &[]);
            let error = failure.map_or_else(unavailable, |it| it.1);
            return self.fail(call, error);
        }
        it.terms.lease = it.terms.lease.max(lease);
        self.resolve(call, Outcome::Done);
    }

    /// Releases all parts, if it is the last guard.
    fn release(&mut self, now: Instant, call: Id, guard: Id, least: Option<Duration>) {
        if let Some(least) = least
            && let Err(error) = self.keep(now, guard, least)
        {
            return self.fail(call, error);
        }
        let Some(hold) = self.guards.remove(&guard) else {
            return self.fail(call, Error::Lost(Loss::Released));
        };
        self.look_at(now, hold);
        // The end of the client releases it.
        let Some(it) = self.holds.get(&hold) else {
            return self.fail(call, Error::Closed);
        };
        let (loss, lease, is_kept) = (it.proof.loss(now), it.terms.lease, it.is_kept(now));
        // That needs no answer, and other guards see it by themselves.
        if let Some(loss) = loss {
            self.give_up(now, guard, hold);
            return self.fail(call, Error::Lost(loss));
        }
        if !self.is_last_guard(guard, hold) {
            return self.resolve(call, Outcome::Done);
        }
        let mut asked = Asked::begin(now, lease);
        asked.is_kept = is_kept;
        // The rest is asked first, and the gate last.
        for mut contact in self.end(now, hold).into_iter().rev() {
            let is_other = contact.counted().is_none();
            if is_other && is_kept {
                contact.leave(now, &mut self.members);
                continue;
            }
            let part = contact.part.take();
            contact.leave(now, &mut self.members);
            let question = match part {
                Some(part) => self
                    .members
                    .release(now, contact.member, By::Call(call), &part),
                // It may have something all the same: nobody knows until that is withdrawn.
                None => self.members.flush(now, contact.member, call),
            };
            asked.questions.insert(question);
            if is_other {
                asked.others.insert(question);
            }
        }
        self.calls.insert(call, Progress::Release(asked));
        self.go_on(now, call);
    }

    fn release_ends(&mut self, now: Instant, call: Id, mut asked: Asked) {
        let (quorum, free) = (self.members.majority(), asked.free());
        asked
            .failures
            .retain(|_, error| !matches!(error, Error::Lost(_)));
        let silent = asked.silent + asked.counted_questions() + asked.failures.len();
        let outcome = if asked.done + silent < quorum {
            Outcome::Failed(Error::Lost(Loss::EndedByServer))
        } else if free >= quorum {
            Outcome::Done
        } else {
            let failure = asked.failures.pop_first().map(|it| it.1);
            let silent = || self.members.unavailable(now, asked.begun, asked.lease, &[]);
            Outcome::Failed(failure.unwrap_or_else(silent))
        };
        asked.forget(now, &mut self.members);
        self.resolve(call, outcome);
    }

    /// Waits until nothing is left to clean up at a majority, and at all members that
    /// can be reached.
    fn flush(&mut self, now: Instant, call: Id) {
        let mut asked = Asked::begin(now, Duration::ZERO);
        for member in 0..self.members.count() {
            asked
                .questions
                .insert(self.members.flush(now, member, call));
        }
        self.calls.insert(call, Progress::Flush(asked));
        self.go_on(now, call);
    }
}

impl Progress {
    fn asked(&mut self) -> Option<&mut Asked> {
        match self {
            Self::Extend(asked, _) | Self::Release(asked) | Self::Flush(asked) => Some(asked),
            Self::Lock(locking) => match &mut locking.stage {
                Stage::Again(asked, _) => Some(asked),
                _ => None,
            },
            Self::Connect(_) | Self::Early(_) => None,
        }
    }
}

impl Asked {
    fn begin(now: Instant, lease: Duration) -> Self {
        Self {
            begun: now,
            lease,
            questions: BTreeSet::new(),
            others: BTreeSet::new(),
            cleared: 0,
            is_kept: false,
            done: 0,
            silent: 0,
            failures: BTreeMap::new(),
        }
    }

    fn answered(&mut self, question: Id, answer: Answer) {
        self.questions.remove(&question);
        let is_other = self.others.remove(&question);
        match answer {
            Answer::Done | Answer::Failed(Error::Lost(Loss::EndedByServer)) if is_other => {
                self.cleared += 1;
            }
            _ if is_other => {}
            Answer::Done => self.done += 1,
            Answer::Failed(error) => drop(self.failures.insert(question, error)),
            _ => self.silent += 1,
        }
    }

    /// How many members that count have not answered.
    fn counted_questions(&self) -> usize {
        self.questions.len() - self.others.len()
    }

    /// How many members have released it, or have nothing of it.
    fn free(&self) -> usize {
        // What is over by the clock here may last at its server for the margin.
        let is_ended = |it: &&Error| matches!(it, Error::Lost(Loss::EndedByServer));
        let lost = self.failures.values().filter(is_ended).count();
        self.done + if self.is_kept { 0 } else { self.cleared + lost }
    }

    fn forget(self, now: Instant, members: &mut Members) {
        for question in self.questions {
            members.forget(now, question);
        }
    }
}

fn name(claims: &Claims) -> Name {
    let mut names = claims.names();
    names.next().cloned().unwrap_or_else(|| Name::new(b""))
}

fn not_of_quorum(call: &Call) -> Error {
    let value = match call {
        Call::Lock(_) => "a lock that is shared, or has permits, several keys, a value or replicas",
        Call::Upgrade { .. } => "an upgrade",
        Call::Downgrade { .. } => "a downgrade",
        Call::ReleasePermits { .. } => "a release of permits",
        Call::Question { .. } => "a question to a server",
        Call::Proclaim { .. } | Call::Leader { .. } | Call::Observe { .. } => "for an election",
        _ => "not for callers",
    };
    Error::OutOfRange {
        argument: "call",
        value: value.to_owned(),
        limit: "for an exclusive lock of one key, as for all locks of a quorum".into(),
    }
}

/// What errors call the addresses of the members.
const MEMBERS: [&str; 9] = [
    "members[0]",
    "members[1]",
    "members[2]",
    "members[3]",
    "members[4]",
    "members[5]",
    "members[6]",
    "members[7]",
    "members[8]",
];

/// Reads the addresses of the members.
///
/// # Errors
///
/// [`Error::OutOfRange`] for an address that is not of one server; it names the
/// member, from `members[0]` on.
pub fn read<S>(servers: impl IntoIterator<Item = S>) -> Result<Vec<Servers>, Error>
where
    S: TryInto<Servers>,
    Error: From<S::Error>,
{
    let names = MEMBERS.into_iter().chain(std::iter::repeat("members"));
    let servers = servers.into_iter().zip(names).map(|(servers, name)| {
        let of_member = |mut error| {
            if let Error::OutOfRange { argument, .. } = &mut error
                && *argument == "url"
            {
                *argument = name;
            }
            error
        };
        match servers.try_into().map_err(Error::from).map_err(of_member)? {
            one @ Servers::One { .. } => Ok(one),
            Servers::Sentinels { .. } | Servers::Cluster { .. } => Err(Error::OutOfRange {
                argument: name,
                value: "not of one server".to_owned(),
                limit: "redis://, rediss:// or redis+unix://, as a member is one master".into(),
            }),
        }
    });
    servers.collect()
}
