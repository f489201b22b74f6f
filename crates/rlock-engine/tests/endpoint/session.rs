//! A session: what becomes of its calls and guards.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rlock_engine::endpoint::{ConnectionId, Event, Settings};
use rlock_engine::engine::Id;
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::terms::{Ask, Queueing, Terms, Value};
use rlock_engine::error::Failure;
use rlock_engine::session::{Action, Call, Lock, Machine, Occurrence, Outcome};
use rlock_engine::wire::resp::Command;

use crate::observers::info;
use crate::played::{commands, push, usual};

const MINUTE: Queueing = Queueing::AtMost(Duration::from_secs(60));
const HELLO: &str = "%2\r\n+role\r\n+master\r\n+mode\r\n+";

/// A session with one server. Its calls are numbered from 1, and their owner is `o`.
struct Client {
    machine: Machine,
    now: Instant,
    connection: Option<ConnectionId>,
    unanswered: VecDeque<String>,
    lines: Vec<String>,
    occurred: Vec<String>,
    calls: u64,
}

impl Client {
    fn connected() -> Self {
        let settings = Settings {
            channel: "c".to_owned(),
            seed: 1,
            ..Settings::default()
        };
        let mut it = Self {
            machine: Machine::of("redis://h:1".parse().unwrap(), settings).unwrap(),
            now: Instant::from_nanos(1_000_000_000),
            connection: None,
            unanswered: VecDeque::new(),
            lines: Vec::new(),
            occurred: Vec::new(),
            calls: 0,
        };
        it.machine.listen();
        it.calls(Call::Connect);
        assert!(it.machine.is_known(Id::of_number(1)));
        it.greeted();
        assert_eq!(it.last(), "1 done");
        assert!(it.machine.is_empty());
        it
    }

    /// The connection opens, and is greeted.
    fn greeted(&mut self) {
        let connection = self.connection.unwrap();
        self.handle(Event::Opened { connection });
        let is_for_a_lock = |asked: &String| asked.starts_with("RLOCK.RENEW");
        while !self.unanswered.front().is_none_or(is_for_a_lock) {
            let asked = self.unanswered.pop_front().unwrap();
            self.receives(usual(1, &asked));
        }
    }

    fn reconnects(&mut self) {
        let (connection, failure) = (self.connection.unwrap(), Failure::Io("cut".to_owned()));
        self.unanswered.clear();
        self.handle(Event::Ended {
            connection,
            failure,
        });
        self.passes(20);
        self.greeted();
    }

    /// The server has said whether it is in a cluster.
    fn connected_to(mode: &str) -> Self {
        let mut it = Self::connected();
        it.locks(&["a", "b"], Ask::Exclusive);
        assert_eq!(it.did(), ["HELLO"]);
        it.answers("HELLO", format!("{HELLO}{mode}\r\n"));
        it
    }

    /// `a` and `b` are held by call 2, each by itself.
    fn holds_two() -> Self {
        let mut it = Self::connected_to("cluster");
        it.answers("RLOCK.ACQUIRE a o 30000", ":7\r\n");
        it.answers("RLOCK.ACQUIRE b o 30000", ":8\r\n");
        assert_eq!(it.last(), "2 granted 7 8");
        it
    }

    /// `k` is held by call 2 under fence 7.
    fn holds(ask: Ask) -> Self {
        let mut it = Self::connected();
        it.locks(&["k"], ask);
        it.answers("RLOCK.ACQUIRE k o", ":7\r\n");
        assert_eq!(it.last(), "2 granted 7");
        it
    }

    fn handle(&mut self, event: Event<'_>) {
        self.machine.handle(self.now, event);
        self.listen();
    }

    fn calls(&mut self, call: Call) {
        self.calls += 1;
        let number = Id::of_number(self.calls);
        self.machine.call(self.now, number, call);
        self.listen();
    }

    /// Something happens that is no call.
    fn does<T>(&mut self, what: impl FnOnce(&mut Machine, Instant) -> T) -> T {
        let result = what(&mut self.machine, self.now);
        self.listen();
        result
    }

    fn locks(&mut self, keys: &[&str], ask: Ask) {
        self.locks_on(keys, ask, Terms::new(), MINUTE);
    }

    fn locks_on(&mut self, keys: &[&str], ask: Ask, terms: Terms, queueing: Queueing) {
        let keys = keys.iter().map(|key| key.as_bytes().into()).collect();
        self.calls(Call::Lock(Lock {
            claims: Claims::checked(Owner::new("o").unwrap(), keys).unwrap(),
            ask,
            value: None,
            terms,
            queueing,
        }));
    }

    fn asks_all(&mut self) {
        self.calls(Call::Question {
            to: None,
            command: Command::new("RLOCK.COUNTERS"),
            changes: false,
            limit: None,
        });
    }

    fn abandons(&mut self, call: u64) {
        self.does(|it, now| it.abandon(now, Id::of_number(call)));
    }

    fn drops(&mut self, guard: u64) {
        self.does(|it, now| it.leave(now, Id::of_number(guard)));
    }

    /// The server reports a loss.
    fn loses(&mut self, fence: u64, key: &str) {
        self.hears(&format!("lost {fence} o {key}"));
    }

    fn hears(&mut self, message: &str) {
        let channel = format!("rlock:client:c:{}", self.connection.unwrap().number());
        self.receives(push(&["message", &channel, message]));
    }

    fn receives(&mut self, bytes: impl AsRef<[u8]>) {
        let (connection, bytes) = (self.connection.unwrap(), bytes.as_ref());
        self.handle(Event::Received { connection, bytes });
    }

    /// Answers the oldest command without an answer, which must be this one.
    fn answers(&mut self, command: &str, reply: impl AsRef<[u8]>) {
        let asked = self.unanswered.pop_front().unwrap_or_default();
        assert!(asked.starts_with(command), "{asked} is not {command}");
        self.receives(reply);
    }

    fn answers_all(&mut self, reply: &str) {
        while !self.unanswered.is_empty() {
            self.answers("", reply);
        }
    }

    fn passes(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while let Some(due) = self.machine.next_deadline()
            && due <= end
        {
            self.now = due;
            self.handle(Event::Tick);
        }
        self.now = end;
    }

    /// What has happened since the last call.
    fn occurred(&mut self) -> Vec<String> {
        std::mem::take(&mut self.occurred)
    }

    /// What was done since the last call.
    fn did(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    fn last(&mut self) -> String {
        self.did().pop().unwrap()
    }

    fn listen(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            let line = match action {
                Action::Connect { connection, .. } => {
                    self.connection = Some(connection);
                    continue;
                }
                Action::Write { connection } => {
                    self.sent(connection);
                    continue;
                }
                Action::Resolve { call, outcome } => {
                    format!("{} {}", call.number(), outcome_text(call, outcome))
                }
                Action::Over { guard, why } => format!("over {}: {why}", guard.number()),
                Action::Observed { call, change } => {
                    let fence = change.leader.map(|leader| leader.fence);
                    format!("{} observes {fence:?}", call.number())
                }
                Action::Occurred { guard, occurrence } => {
                    self.occurred.push(occurrence_text(guard, &occurrence));
                    continue;
                }
                _ => continue,
            };
            self.lines.push(line);
        }
    }

    fn sent(&mut self, connection: ConnectionId) {
        let mut output = Vec::new();
        self.machine.take_output(connection, &mut output);
        for words in commands(&output) {
            self.lines.push(words.clone());
            self.unanswered.push_back(words);
        }
    }
}

fn occurrence_text(guard: Option<Id>, it: &Occurrence) -> String {
    let guard = guard.map(|guard| format!("{} ", guard.number()));
    let keys = it
        .keys()
        .map(|key| String::from_utf8_lossy(key).into_owned());
    let words = [
        it.kind.as_str().to_owned(),
        it.outcome.to_owned(),
        format!("{:?}", it.duration),
        keys.collect::<Vec<_>>().join(","),
        it.text.clone(),
    ];
    let words = words.iter().filter(|word| !word.is_empty());
    guard.unwrap_or_default() + &words.cloned().collect::<Vec<_>>().join(" ")
}

fn outcome_text(call: Id, outcome: Outcome) -> String {
    match outcome {
        Outcome::Granted { guard, proofs } => {
            let fences = proofs.iter().map(|proof| format!(" {}", proof.fence()));
            let fences: String = fences.collect();
            match guard == call {
                true => format!("granted{fences}"),
                false => format!("granted{fences} to {}", guard.number()),
            }
        }
        Outcome::Refused => "refused".to_owned(),
        Outcome::Done => "done".to_owned(),
        Outcome::Answer(frame) => format!("{frame:?}"),
        Outcome::Answers(answers) => format!("{answers:?}"),
        Outcome::Leader(leader) => format!("leader {:?}", leader.map(|it| it.fence)),
        Outcome::Failed(error) => error.to_string(),
    }
}

const TWO: Id = Id::of_number(2);
const THREE: Id = Id::of_number(3);

fn release(least: Option<Duration>) -> Call {
    Call::Release { guard: TWO, least }
}

fn release_permits(guard: u64, permits: u32) -> Call {
    let guard = Id::of_number(guard);
    Call::ReleasePermits { guard, permits }
}

fn upgrade() -> Call {
    upgrade_within(MINUTE, true)
}

fn upgrade_within(queueing: Queueing, retakes: bool) -> Call {
    Call::Upgrade {
        guard: TWO,
        queueing,
        retakes,
    }
}

fn extend(lease: Duration) -> Call {
    Call::Extend { guard: TWO, lease }
}

fn raise() -> Call {
    let (guard, fence, terms) = (TWO, 70, Terms::new());
    Call::Raise {
        guard,
        fence,
        terms,
    }
}

fn proclaim() -> Call {
    let value = Value::new(b"v").unwrap();
    Call::Proclaim { guard: TWO, value }
}

fn permits(permits: u32) -> Ask {
    Ask::Permits { limit: 9, permits }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const BOTH: [&str; 2] = [
    "RLOCK.RELEASE a o ALL FENCE 7",
    "RLOCK.RELEASE b o ALL FENCE 8",
];
const RELEASED: &str = "the lock was lost: it was released";
const ENDED: &str = "the server ended it";
const CLOSED: &str = "the client has been closed, or its runtime shut down";

#[test]
fn one_request_takes_several_keys_unless_the_server_is_in_a_cluster() {
    let mut it = Client::connected_to("standalone");
    assert!(it.did()[0].starts_with("RLOCK.MACQUIRE o 30000 2 a b WAIT"));
    it.answers("RLOCK.MACQUIRE", ":7\r\n");
    assert_eq!(it.did(), ["2 granted 7"]);
    it.calls(release(None));
    it.answers("RLOCK.MRELEASE o 2 a b", ":2\r\n");
    assert_eq!(it.last(), "3 done");
    // It is known now.
    it.locks(&["a", "b"], Ask::Exclusive);
    it.answers("RLOCK.MACQUIRE", "-DEADLOCK x\r\n");
    assert!(it.last().starts_with("4 "));
    assert!(it.machine.is_empty());

    let mut it = Client::holds_two();
    assert!(it.machine.is_known(TWO));
    let left = it.machine.remaining(TWO, it.now);
    assert!(left > seconds(29));
    it.calls(release(None));
    assert!(!it.machine.is_known(TWO));
    assert_eq!(it.did(), BOTH);
    it.answers("RLOCK.RELEASE a", "-NOPERM no\r\n");
    assert!(it.machine.is_known(THREE));
    it.answers("RLOCK.RELEASE b", ":0\r\n");
    assert_eq!(it.did(), ["3 not permitted: no"]);
    assert!(it.machine.is_empty());

    // These two are in one slot.
    it.locks(&["{x}1", "{x}2"], Ask::Exclusive);
    it.answers("RLOCK.MACQUIRE o 30000 2 {x}1 {x}2", ":9\r\n");
    assert_eq!(it.last(), "4 granted 9");
}

#[test]
fn a_guard_of_several_keys_is_changed_as_a_whole() {
    let mut it = Client::holds_two();
    it.calls(extend(seconds(60)));
    it.answers("RLOCK.RENEW a o 60000", ":7\r\n");
    it.did();
    it.answers("RLOCK.RENEW b o 60000", ":8\r\n");
    assert_eq!(it.did(), ["3 done"]);
    it.calls(Call::Downgrade { guard: TWO });
    it.calls(upgrade());
    it.calls(proclaim());
    let did = it.did();
    assert!(did[0].ends_with("it must be exclusive for several keys"));
    assert!(did[1].ends_with("it must be exclusive for several keys"));
    assert!(did[2].ends_with("it must be 1 key, to publish a value"));
    // It ends once.
    it.loses(7, "a");
    it.loses(8, "b");
    assert_eq!(it.did(), [format!("over 2: {ENDED}")]);

    let mut it = Client::holds_two();
    it.drops(2);
    it.drops(2);
    assert_eq!(it.did(), BOTH);
    assert!(!it.machine.is_clean());
    it.answers_all(":0\r\n");
    assert!(it.machine.is_empty() && it.machine.is_clean());
}

#[test]
fn calls_in_parts_that_nobody_waits_for_are_cleaned_up() {
    let mut it = Client::connected_to("cluster");
    it.answers("RLOCK.ACQUIRE a", ":7\r\n");
    it.answers("RLOCK.ACQUIRE b", "+WAITING\r\n");
    it.did();
    it.abandons(2);
    it.answers_all(":0\r\n");
    // Until the next heartbeat would be due.
    it.passes(5000);
    assert!(it.machine.is_empty());

    let mut it = Client::holds_two();
    it.calls(release(None));
    it.abandons(3);
    it.did();
    it.answers_all("-NOPERM no\r\n");
    // Nobody else learns of that.
    it.calls(Call::Flush);
    let told = ["4 a and 1 more were not released: not permitted: no"];
    assert_eq!(it.did(), told);
    assert!(it.machine.is_empty());

    it.asks_all();
    it.abandons(5);
    it.answers_all("-LOADING x\r\n");
    it.passes(100);
    assert_eq!(it.did(), ["RLOCK.COUNTERS"]);
    assert!(it.machine.is_empty());
    it.locks(&["k"], Ask::Exclusive);
    assert!(it.machine.is_known(Id::of_number(6)));
    it.abandons(6);
    it.answers_all(":0\r\n");
    assert!(it.machine.is_empty());
}

/// Call 3 has asked for `a` and wants `b`, too.
fn asks_for_two(queueing: Queueing) -> Client {
    let mut it = Client::holds_two();
    it.drops(2);
    it.answers_all(":0\r\n");
    it.locks_on(&["a", "b"], Ask::Exclusive, Terms::new(), queueing);
    it
}

/// The first key is lost before the second is granted.
fn loses_the_first(queueing: Queueing, ms: u64) -> Client {
    let mut it = asks_for_two(queueing);
    it.answers("RLOCK.ACQUIRE a", ":9\r\n");
    it.loses(9, "a");
    it.passes(ms);
    it.did();
    it.answers("RLOCK.ACQUIRE b", ":10\r\n");
    it
}

const BACK: &str = "RLOCK.RELEASE b o ALL FENCE 10";

#[test]
fn keys_that_were_lost_before_the_last_was_granted_are_taken_again_after_a_pause() {
    let mut it = loses_the_first(MINUTE, 0);
    assert_eq!(it.did(), [BACK]);
    it.answers_all(":0\r\n");
    assert!(!it.machine.is_empty());
    it.passes(4);
    assert_eq!(it.did(), [""; 0]);
    it.passes(6);
    it.answers("RLOCK.ACQUIRE a", ":11\r\n");
    it.answers("RLOCK.ACQUIRE b", ":12\r\n");
    assert_eq!(it.last(), "3 granted 11 12");

    // Nobody waits during the pause.
    let mut it = loses_the_first(MINUTE, 0);
    it.abandons(3);
    it.answers_all(":0\r\n");
    assert!(it.machine.is_empty());
    it.passes(100);
    assert_eq!(it.did(), [BACK]);
    let mut it = loses_the_first(MINUTE, 0);
    it.does(Machine::leave_all);
    assert_eq!(it.last(), format!("3 {CLOSED}"));
    let mut it = loses_the_first(MINUTE, 0);
    it.calls(Call::Flush);
    assert!(!it.machine.endpoint().is_closed());
    it.handle(Event::Closed);
    assert!(it.machine.endpoint().is_closed());
    let ended = [3, 4].map(|call| format!("{call} {CLOSED}"));
    assert_eq!(it.did()[1..3], ended);
}

#[test]
fn leaving_all_says_of_each_guard_once_that_it_is_over() {
    let mut it = Client::holds(Ask::Exclusive);
    it.locks(&["k"], Ask::Exclusive);
    it.answers("RLOCK.ACQUIRE", ":7\r\n");
    it.did();
    it.does(Machine::leave_all);
    let over = [2, 3].map(|guard| format!("over {guard}: it was released"));
    let did = it.did();
    assert_eq!(did[..2], over);
    assert_eq!(did[2..], ["RLOCK.RELEASE k o ALL FENCE 7"]);
    it.answers("RLOCK.RELEASE k", "_\r\n");
    it.does(Machine::leave_all);
    assert_eq!(it.did(), [""; 0]);
    // Its lease has ended while the process was stopped.
    let mut it = Client::holds(Ask::Exclusive);
    it.did();
    it.now = it.now + seconds(40);
    it.does(Machine::leave_all);
    assert_eq!(it.did()[0], "over 2: its lease ended");
    // Its loss was reported before, and a part of it is lost, too.
    for is_divided in [false, true] {
        let mut it = Client::holds(permits(5));
        it.loses(7, "k");
        assert_eq!(it.last(), format!("over 2: {ENDED}"));
        if is_divided {
            assert!(it.does(|it, now| it.split(now, TWO, THREE, 1)));
        }
        it.does(Machine::leave_all);
        assert_eq!(it.did(), [""; 0]);
    }
}

#[test]
fn a_release_after_the_end_tells_of_a_loss_before_it() {
    for is_closed in [false, true] {
        let mut it = Client::holds(permits(3));
        it.loses(7, "k");
        it.does(Machine::leave_all);
        if is_closed {
            it.handle(Event::Closed);
        }
        it.calls(release_permits(2, 1));
        assert_eq!(it.last(), format!("3 the lock was lost: {ENDED}"));
        it.calls(release(None));
        assert_eq!(it.last(), format!("4 the lock was lost: {ENDED}"));
    }
}

/// The second part is not released before the rest, but together with it.
#[test]
fn leaving_all_releases_all_permits_once() {
    let mut it = Client::holds(permits(3));
    it.calls(release_permits(2, 1));
    it.calls(release_permits(2, 1));
    it.calls(release(None));
    it.does(Machine::leave_all);
    it.answers("RLOCK.RELEASE k o PERMITS 1 FENCE 7", ":1\r\n");
    it.answers("RLOCK.RELEASE k o ALL FENCE 7", ":0\r\n");
    let did = it.did();
    let ended: Vec<_> = did.iter().filter(|it| it.ends_with(" done")).collect();
    assert_eq!(ended, ["3 done", "4 done", "5 done"], "{did:?}");
}

/// The server may never answer.
#[test]
fn leaving_all_ends_a_call_that_asks_whether_the_server_is_in_a_cluster() {
    let mut it = Client::connected();
    it.locks_on(
        &["a", "b"],
        Ask::Exclusive,
        Terms::new(),
        Queueing::Unlimited,
    );
    assert_eq!(it.did(), ["HELLO"]);
    it.does(Machine::leave_all);
    assert_eq!(it.did(), [format!("2 {CLOSED}")]);
}

#[test]
fn a_call_for_several_keys_is_refused_when_its_time_is_over() {
    let second = Queueing::AtMost(seconds(1));
    let last = "RLOCK.ACQUIRE b o 30000 WAIT 1 KEEP 1 NOTIFY rlock:client:c:1";
    for (ms, next) in [(999, last), (1000, "3 refused")] {
        let mut it = asks_for_two(second);
        it.passes(ms);
        it.did();
        it.answers("RLOCK.ACQUIRE a", ":9\r\n");
        assert_eq!(it.did()[0], next);
    }
    for (queueing, ms) in [(second, 1000), (Queueing::Try, 0)] {
        let mut it = loses_the_first(queueing, ms);
        assert_eq!(it.did(), ["3 refused", BACK]);
    }
}

#[test]
fn several_keys_are_exclusive_and_not_bound() {
    let mut it = Client::connected();
    it.locks(&["a", "b"], Ask::Shared);
    it.locks(&["a", "b"], permits(1));
    let bound = Terms::new().bound(seconds(9)).unwrap();
    it.locks_on(&["a", "b"], Ask::Exclusive, bound, MINUTE);
    let did = it.did();
    assert!(did[0].ends_with("it must be exclusive for several keys"));
    assert!(did[1].ends_with("it must be exclusive for several keys"));
    assert!(did[2].ends_with("it must be left out for several keys"));
    assert!(bound.replicas(1).is_err());
    let checked = |keys: Vec<String>| {
        let keys = keys.iter().map(|key| key.as_bytes().into()).collect();
        Claims::checked(Owner::new("o").unwrap(), keys).is_ok()
    };
    let numbered = |count: u32| (0..count).map(|it| it.to_string()).collect::<Vec<_>>();
    assert!(checked(numbered(1)) && checked(numbered(1024)));
    assert!(!checked(numbered(0)) && !checked(numbered(1025)));
    assert!(!checked(vec![String::new(), "a".to_owned()]));
    assert!(!checked(["b", "a", "b"].map(str::to_owned).to_vec()));
}

#[test]
fn permits_of_a_guard_are_divided_and_joined() {
    let id = Id::of_number;
    let mut it = Client::holds(permits(5));
    let asked = [(7, 1), (2, 0), (2, 5), (2, 6), (2, 2)];
    let split =
        |it: &mut Client, (guard, part)| it.does(|it, now| it.split(now, id(guard), id(9), part));
    let divided = asked.map(|asked| split(&mut it, asked));
    assert_eq!(divided, [false, false, false, false, true]);
    let have = |it: &Client| [2, 9].map(|guard| it.machine.permits(id(guard)));
    assert_eq!(have(&it), [3, 2]);
    it.calls = 9;
    it.locks(&["l"], permits(1));
    it.answers("RLOCK.ACQUIRE l", ":8\r\n");
    it.locks(&["k"], Ask::Shared);
    it.answers("RLOCK.ACQUIRE k", ":7\r\n");
    let merge = |it: &mut Client, other| it.does(|it, now| it.merge(now, id(2), id(other)));
    let joined = [2, 10, 11, 7, 9, 9].map(|other| merge(&mut it, other));
    assert_eq!(joined, [false, false, false, false, true, false]);
    assert_eq!(have(&it), [5, 0]);
    it.drops(11);
    it.did();
    it.calls(release_permits(2, 2));
    assert_eq!(it.did(), ["RLOCK.RELEASE k o PERMITS 2 FENCE 7"]);
    it.answers("RLOCK.RELEASE", ":1\r\n");
    assert_eq!(it.did(), ["12 done"]);
    it.calls(release_permits(2, 4));
    it.calls(release_permits(2, 0));
    it.calls(release_permits(8, 1));
    it.calls(Call::Downgrade { guard: TWO });
    let limit = "it must be from 1 to the 3 that it has";
    assert_eq!(
        it.did(),
        [
            format!("13 permits is 4, {limit}"),
            format!("14 permits is 0, {limit}"),
            format!("15 {RELEASED}"),
            "16 mode is Permits { limit: 9, permits: 3 }, it must be exclusive or shared"
                .to_owned(),
        ]
    );
    it.calls(release_permits(2, 3));
    assert_eq!(it.did(), ["RLOCK.RELEASE k o ALL FENCE 7"]);

    for (limit, is_valid) in [(0, false), (1_000_000, true), (1_000_001, false)] {
        assert_eq!(Ask::of_permits(1, limit).is_ok(), is_valid, "{limit}");
    }
    assert!(Ask::of_permits(9, 8).is_err());
    assert!(permits(1).merge(Ask::of_permits(1, 8).unwrap()).is_none());
}

/// The first guard of the hold needs it, too, and ends last.
#[test]
fn permits_are_divided_in_a_hold_of_any_mode() {
    for ask in [Ask::Exclusive, Ask::Shared] {
        let mut it = Client::holds(ask);
        it.locks(&["k"], permits(3));
        it.answers("RLOCK.ACQUIRE k", ":7\r\n");
        it.calls(release_permits(3, 1));
        it.did();
        it.drops(3);
        assert_eq!(it.did(), [""; 0]);
        it.drops(2);
        assert_eq!(it.did(), ["RLOCK.RELEASE k o ALL FENCE 7"]);
    }
}

#[test]
fn a_released_lock_can_stay_taken_for_a_while() {
    let mut it = Client::holds(Ask::Exclusive);
    it.calls(release(Some(seconds(20))));
    assert_eq!(it.did(), ["RLOCK.RENEW k o 20001"]);
    // This is too long: it becomes free with its lease.
    let mut it = Client::holds(Ask::Exclusive);
    it.passes(1);
    it.calls(release(Some(seconds(31 * 24 * 3600))));
    let did = it.did();
    assert!(did[0].starts_with("3 least is "), "{did:?}");
    assert!(did[1].starts_with("RLOCK.RENEW k o 296"), "{did:?}");
    let mut it = Client::holds(Ask::Exclusive);
    it.does(|it, now| it.keep(now, TWO, seconds(5)).unwrap());
    it.drops(2);
    assert_eq!(it.did(), ["RLOCK.RENEW k o 5001"]);
}

#[test]
fn every_guard_of_a_hold_ends_with_it() {
    let mut it = Client::holds(Ask::Exclusive);
    for _ in 0..2 {
        it.locks(&["k"], Ask::Exclusive);
        it.answers("RLOCK.ACQUIRE", ":7\r\n");
    }
    it.drops(3);
    it.did();
    it.loses(7, "k");
    it.loses(7, "k");
    assert_eq!(
        it.did(),
        ["over 2: ", "over 4: "].map(|it| it.to_owned() + ENDED)
    );
    assert_eq!(it.machine.remaining(TWO, it.now), Duration::ZERO);
    it.drops(4);
    it.drops(2);
    assert!(it.machine.is_empty());

    // It was lost before the grant was read.
    it.locks(&["k"], Ask::Exclusive);
    it.loses(9, "k");
    it.did();
    it.answers("RLOCK.ACQUIRE", ":9\r\n");
    assert_eq!(
        it.did(),
        ["5 granted 9".to_owned(), format!("over 5: {ENDED}")]
    );
}

#[test]
fn a_guard_that_its_caller_never_received_leaves_nothing() {
    let mut it = Client::holds(Ask::Exclusive);
    it.does(|it, now| it.untaken(now, TWO));
    assert_eq!(it.did(), ["RLOCK.RELEASE k o ALL FENCE 7"]);
}

#[test]
fn a_guard_changes_between_shared_and_exclusive() {
    let mut it = Client::holds(Ask::Shared);
    it.calls(Call::Downgrade { guard: TWO });
    assert_eq!(it.did(), ["3 done"]);
    it.calls(proclaim());
    assert!(it.did()[0].ends_with("it must be exclusive, to publish a value"));
    it.calls(upgrade());
    it.did();
    it.answers("RLOCK.ACQUIRE k o", ":9\r\n");
    assert_eq!(it.did(), ["5 granted 9 to 2"]);
    it.calls(proclaim());
    it.answers("RLOCK.RENEW k o 30000 VALUE v", ":9\r\n");
    assert_eq!(it.last(), "6 done");
    it.calls(Call::Downgrade { guard: TWO });
    it.answers("RLOCK.DOWNGRADE k o", ":9\r\n");
    assert_eq!(it.last(), "7 done");
    it.loses(9, "k");
    it.calls(Call::Downgrade { guard: TWO });
    it.calls(upgrade());
    let lost = format!("the lock was lost: {ENDED}");
    let did = it.did();
    let expected = [
        format!("over 2: {ENDED}"),
        format!("8 {lost}"),
        format!("9 {lost}"),
    ];
    assert_eq!(did, expected);
    it.calls(release(None));
    it.did();
    it.calls(Call::Downgrade { guard: TWO });
    it.calls(upgrade());
    it.calls(extend(seconds(9)));
    it.calls(release(None));
    let expected = [11, 12, 13, 14].map(|call| format!("{call} {RELEASED}"));
    assert_eq!(it.did(), expected);
}

/// Nobody needs the new grant then.
#[test]
fn an_upgrade_ends_with_its_guard() {
    let mut it = Client::holds(Ask::Shared);
    it.locks(&["k"], Ask::Shared);
    it.answers("RLOCK.ACQUIRE", ":7\r\n");
    it.calls(upgrade());
    it.did();
    it.drops(2);
    let asked = ["RLOCK.CANCEL k o", "RLOCK.DOWNGRADE k o"].map(str::to_owned);
    assert_eq!(it.did(), [&[format!("4 {RELEASED}")], &asked[..]].concat());
    it.answers("RLOCK.ACQUIRE", ":9\r\n");
    it.answers("RLOCK.CANCEL", ":0\r\n");
    it.answers("RLOCK.DOWNGRADE", ":9\r\n");
    it.drops(3);
    assert_eq!(it.did(), ["RLOCK.RELEASE k o ALL"]);

    // It waits for others; neither the release nor a flush waits for that.
    let mut it = Client::holds(Ask::Shared);
    it.calls(upgrade());
    it.answers("RLOCK.ACQUIRE", "+WAITING\r\n");
    it.did();
    it.drops(2);
    it.calls(Call::Flush);
    assert_eq!(it.did()[0], format!("3 {RELEASED}"));
    it.answers("RLOCK.CANCEL", ":1\r\n");
    it.answers("RLOCK.DOWNGRADE", "$-1\r\n");
    it.answers("RLOCK.RELEASE k o ALL", ":0\r\n");
    assert_eq!(it.did(), ["RLOCK.RELEASE k o ALL", "4 done"]);

    let mut it = Client::holds(Ask::Shared);
    it.calls(upgrade());
    it.abandons(3);
    it.answers("RLOCK.ACQUIRE", "+WAITING\r\n");
    it.answers("RLOCK.CANCEL", ":1\r\n");
    it.answers("RLOCK.DOWNGRADE", "$-1\r\n");
    it.did();
    it.drops(2);
    assert_eq!(it.did(), ["RLOCK.RELEASE k o ALL"]);
}

#[test]
fn a_guard_is_extended_and_its_fence_is_raised() {
    let mut it = Client::holds(Ask::Exclusive);
    it.calls(extend(Duration::ZERO));
    assert!(it.did()[0].starts_with("3 lease is 0ns"));
    it.calls(raise());
    it.answers("RLOCK.RENEW k o 30000 FENCE 70", ":70\r\n");
    assert_eq!(it.last(), "4 done");
    // It has this fence, and nearly all of this lease.
    it.calls(raise());
    assert_eq!(it.did(), ["5 done"]);
    it.passes(2_000);
    it.calls(raise());
    it.answers("RLOCK.RENEW k o 30000 FENCE 70", ":70\r\n");
    it.drops(2);
    assert_eq!(it.last(), "RLOCK.RELEASE k o ALL FENCE 70");

    // The first request may have raised it, even if the second one is refused.
    for (is_repeated, release) in [
        (false, "RLOCK.RELEASE k o ALL FENCE 7"),
        (true, "RLOCK.RELEASE k o ALL"),
    ] {
        let mut it = Client::holds(Ask::Exclusive);
        it.calls(raise());
        if is_repeated {
            it.reconnects();
        }
        it.answers("RLOCK.RENEW k o 30000 FENCE 70", "-ERR no\r\n");
        it.drops(2);
        let did = it.did();
        assert!(did.contains(&release.to_owned()), "{did:?}");
    }
}

#[test]
fn servers_are_asked_and_leaders_are_observed() {
    let key: Arc<[u8]> = b"k"[..].into();
    let mut it = Client::connected();
    it.asks_all();
    it.answers("RLOCK.COUNTERS", ":3\r\n");
    assert_eq!(it.last(), "2 [(Node(0), Ok(Integer(3)))]");
    it.asks_all();
    it.answers("RLOCK.COUNTERS", "-NOPERM no\r\n");
    assert_eq!(it.last(), "3 [(Node(0), Err(not permitted: no))]");
    it.calls(Call::Flush);
    assert_eq!(it.did(), ["4 done"]);
    it.calls(Call::Leader { key: key.clone() });
    assert!(!it.machine.is_empty());
    it.answers("RLOCK.INFO k", info(Some((7, "v"))));
    assert_eq!(it.last(), "5 leader Some(7)");
    it.calls(Call::Leader { key: key.clone() });
    it.answers("RLOCK.INFO k", ":1\r\n");
    assert!(it.last().starts_with("6 unexpected reply"));
    it.calls(Call::Observe { key: key.clone() });
    let subscribed = ">3\r\n+subscribe\r\n+rlock:value:{k}\r\n:1\r\n";
    it.answers("SUBSCRIBE", subscribed);
    it.answers("RLOCK.INFO k", info(Some((7, "v"))));
    assert_eq!(it.last(), "7 observes Some(7)");
    it.abandons(7);
    it.answers(
        "UNSUBSCRIBE",
        subscribed.replace("subscribe", "unsubscribe"),
    );
    it.answers("HELLO", usual(1, "HELLO"));
    it.calls(Call::Observe { key });
    it.answers("SUBSCRIBE", subscribed);
    it.answers("RLOCK.INFO k", "-NOPERM no\r\n");
    assert!(it.did().contains(&"8 not permitted: no".to_owned()));
    assert!(!it.machine.is_known(Id::of_number(8)));
}

#[test]
fn a_listener_hears_how_each_wait_and_each_hold_has_ended() {
    let mut it = Client::connected();
    assert_eq!(it.occurred(), ["connected 0ns h:1"]);
    it.locks(&["k"], Ask::Exclusive);
    it.passes(3);
    it.answers("RLOCK.ACQUIRE k", ":7\r\n");
    assert_eq!(it.occurred(), ["wait granted 3ms k"]);
    it.passes(5);
    it.calls(release(None));
    it.passes(7);
    assert!(it.occurred().is_empty(), "The server has not answered.");
    it.answers("RLOCK.RELEASE k", ":1\r\n");
    assert_eq!(it.occurred(), ["2 hold released 5ms k"]);

    // In each other way.
    it.locks_on(&["k"], Ask::Exclusive, Terms::new(), Queueing::Try);
    it.answers("RLOCK.ACQUIRE k", "_\r\n");
    it.locks(&["k"], Ask::Exclusive);
    it.answers("RLOCK.ACQUIRE k", "-DEADLOCK x\r\n");
    it.locks(&["k"], Ask::Exclusive);
    it.abandons(6);
    let waits = ["refused", "Deadlock", "abandoned"].map(|how| format!("wait {how} 0ns k"));
    assert_eq!(it.occurred(), waits);

    let held = || {
        let mut it = Client::holds(Ask::Exclusive);
        it.occurred();
        it
    };
    let mut it = held();
    it.drops(2);
    assert_eq!(it.occurred(), ["2 hold released 0ns k"]);
    let mut it = held();
    it.does(|it, now| it.untaken(now, TWO));
    assert_eq!(it.occurred(), ["2 hold released 0ns k"]);
    let mut it = held();
    it.loses(7, "k");
    assert_eq!(it.occurred(), ["2 hold ended_by_server 0ns k"]);
    it.drops(2);
    assert!(it.occurred().is_empty(), "It has ended once.");
    // The server answers the release first.
    let mut it = held();
    it.calls(release(None));
    it.answers("RLOCK.RELEASE k", "_\r\n");
    assert_eq!(it.occurred(), ["2 hold ended_by_server 0ns k"]);
    let mut it = held();
    it.calls(release(Some(seconds(31 * 24 * 3600))));
    assert_eq!(it.occurred(), ["2 hold OutOfRange 0ns k"]);
    let mut it = held();
    it.does(|it, now| it.keep(now, TWO, seconds(31 * 24 * 3600)).unwrap_err());
    assert_eq!(it.occurred(), ["2 hold OutOfRange 0ns k"]);
    let mut it = held();
    it.does(Machine::leave_all);
    assert_eq!(it.occurred(), ["2 hold closed 0ns k"]);
    // Its client ends without a release, as when a runtime shuts down.
    let mut it = held();
    it.handle(Event::Closed);
    assert_eq!(it.occurred(), ["2 hold closed 0ns k"]);
    it.drops(2);
    assert!(it.occurred().is_empty(), "It has ended once.");
    // Nobody waits for the answer to its release.
    let mut it = held();
    it.calls(release(None));
    it.abandons(3);
    it.answers("RLOCK.RELEASE k", ":1\r\n");
    assert_eq!(it.occurred(), ["2 hold released 0ns k"]);

    // An upgrade is another wait, and the hold goes on.
    let mut it = Client::holds(Ask::Shared);
    it.passes(2);
    it.calls(upgrade());
    it.answers("RLOCK.ACQUIRE k", ":8\r\n");
    it.answers_all(":1\r\n");
    assert_eq!(it.occurred()[2..], ["wait granted 0ns k"]);
    it.calls(release(None));
    it.answers_all(":1\r\n");
    assert_eq!(it.occurred(), ["2 hold released 2ms k"]);

    // A guard that is lost is not upgraded, and nobody waits for that.
    let mut it = Client::holds(Ask::Shared);
    it.loses(7, "k");
    it.occurred();
    it.calls(upgrade());
    assert!(it.occurred().is_empty());

    // Several keys are one wait and one hold.
    let mut it = Client::holds_two();
    assert_eq!(it.occurred()[1..], ["wait granted 0ns a,b"]);
    it.loses(8, "b");
    assert_eq!(it.occurred(), ["2 hold ended_by_server 0ns a,b"]);
}

#[test]
fn a_listener_hears_of_each_part_of_some_permits() {
    let mut it = Client::holds(permits(4));
    it.occurred();
    it.calls(release_permits(2, 1));
    it.answers("RLOCK.RELEASE k", ":1\r\n");
    assert!(it.occurred().is_empty(), "The others are still held.");
    let split =
        |it: &mut Client, part| it.does(|it, now| it.split(now, TWO, Id::of_number(part), 1));
    assert!(split(&mut it, 8) && split(&mut it, 9));
    assert!(it.does(|it, now| it.merge(now, TWO, Id::of_number(8))));
    it.drops(9);
    assert_eq!(it.occurred(), ["9 hold released 0ns k"]);
    it.calls(release_permits(2, 2));
    it.answers_all(":1\r\n");
    assert_eq!(it.occurred(), ["2 hold released 0ns k"]);
}

#[test]
fn a_listener_hears_of_renewals_and_connections() {
    let mut it = Client::holds(Ask::Exclusive);
    it.locks(&["k"], Ask::Exclusive);
    it.answers("RLOCK.ACQUIRE", ":7\r\n");
    it.occurred();
    it.passes(10_000);
    // The rule that the user lacks would name the key.
    it.answers("RLOCK.RENEW k o", "-NOPERM none of the keys\r\n");
    let refused = "not_renewed 0ns k not permitted: none of the keys";
    assert_eq!(it.occurred(), [refused]);
    it.passes(5_000);
    let risks = it.occurred();
    assert_eq!(risks.len(), 2, "{risks:?}");
    assert!(risks[0].starts_with("2 at_risk 14.69"), "{risks:?}");
    assert!(risks[1].starts_with("3 at_risk 14.69"), "{risks:?}");
    it.reconnects();
    assert_eq!(
        it.occurred(),
        ["disconnected 15s h:1", "connected 20ms h:1"]
    );

    // Several keys are one guard, which is at risk with the first of them.
    let mut it = Client::holds_two();
    it.passes(15_000);
    let risks = it.occurred();
    let risks = risks.iter().filter(|it| it.contains("at_risk"));
    assert_eq!(risks.count(), 1);

    // Without a listener, only the risk is reported.
    let mut it = Client::holds(Ask::Exclusive);
    it.machine = Machine::of("redis://h:1".parse().unwrap(), Settings::default()).unwrap();
    it.occurred();
    it.calls(Call::Connect);
    it.greeted();
    it.locks(&["k"], Ask::Exclusive);
    it.answers("RLOCK.ACQUIRE k", ":7\r\n");
    it.passes(15_000);
    let occurred = it.occurred();
    assert!(
        occurred.len() == 1 && occurred[0].starts_with("4 at_risk"),
        "{occurred:?}"
    );
}

/// The shared lock is lost while its upgrade waits. A caller that cannot learn that later gets the loss, and leaves
/// nothing behind.
#[test]
fn an_upgrade_that_may_not_retake_the_lock_fails_with_its_loss() {
    for retakes in [true, false] {
        let mut it = Client::holds(Ask::Shared);
        it.calls(upgrade_within(MINUTE, retakes));
        it.answers("RLOCK.ACQUIRE", "+WAITING\r\n");
        it.hears("lost 7 o k");
        it.hears("grant 9 o k");
        it.did();
        it.answers("RLOCK.RENEW", ":9\r\n");
        let did = it.did();
        let (granted, lost) = ("3 granted", "3 the lock was lost: the server ended it");
        let told = if retakes { granted } else { lost };
        assert!(did.iter().any(|it| it.starts_with(told)), "{did:?}");
        let is_released = did
            .iter()
            .any(|it| it.contains("RLOCK.RELEASE k o ALL FENCE 9"));
        assert_eq!(is_released, !retakes, "{did:?}");
    }
}

/// None of them gets the turn of another, although the time of one is over.
#[test]
fn each_upgrade_of_a_guard_that_ends_fails_once() {
    let mut it = Client::holds(Ask::Shared);
    it.calls(upgrade());
    it.answers("RLOCK.ACQUIRE", "+WAITING\r\n");
    let queueing = Queueing::at_most(Duration::from_millis(3)).unwrap();
    it.calls(upgrade_within(queueing, true));
    it.calls(upgrade());
    it.did();
    it.now = it.now + Duration::from_millis(5);
    it.calls(release(None));
    let did = it.did();
    let ended = |call: u64| {
        did.iter()
            .filter(|it| it.starts_with(&format!("{call} ")))
            .count()
    };
    assert_eq!([3, 4, 5].map(ended), [1, 1, 1], "{did:?}");
}

/// The grant of the upgrade has been read, but not handed out, when its guard is dropped.
#[test]
fn a_call_ends_once_if_its_guard_is_dropped_before_actions_are_polled() {
    let mut it = Client::holds(Ask::Shared);
    it.calls(upgrade());
    it.did();
    it.unanswered.clear();
    let connection = it.connection.unwrap();
    let bytes = b":9\r\n";
    it.machine
        .handle(it.now, Event::Received { connection, bytes });
    it.drops(2);
    let did = it.did();
    let ends = did.iter().filter(|line| line.starts_with("3 ")).count();
    assert_eq!(ends, 1, "{did:?}");
}
