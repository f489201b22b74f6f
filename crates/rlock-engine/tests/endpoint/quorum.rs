//! A quorum: what becomes of its calls and guards.
//!
//! A script has a step on each line, and behind the colon what is done in it: `13 ACQUIRE 30000` if members 1 and 3
//! are asked, in this order, for `k` by `o` with that lease. Calls and members are numbered from 1 on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rlock_engine::endpoint::{ConnectionId, Event, Note, Settings};
use rlock_engine::engine::Id;
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::node::Node;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Ask, Queueing, Terms, Value};
use rlock_engine::error::{Failure, Loss};
use rlock_engine::session::quorum::{Quorum, read};
use rlock_engine::session::{Action, Call, Lock, Outcome};
use rlock_engine::wire::resp::Command;

use crate::played::{bulk, commands, push, usual};

/// What the members call themselves: so the first is the gate of `k`, and so on.
const RUN_IDS: [&str; 5] = ["b", "c", "q", "r", "s"];

/// A server with one lock. What it is asked, it answers at once, unless it is silent.
#[derive(Default)]
struct Member {
    connection: Option<ConnectionId>,
    /// Of that connection.
    channel: String,
    is_silent: bool,
    /// It accepts no connection.
    is_down: bool,
    /// Somebody else holds the lock.
    is_taken: bool,
    is_held: bool,
    is_waited_for: bool,
    /// The last one.
    fence: u64,
    info: String,
    settings: Vec<(String, String)>,
    /// What it answers to a command that begins with this.
    says: Option<(String, String)>,
}

struct Client {
    quorum: Quorum,
    now: Instant,
    members: Vec<Member>,
    /// What the members have not answered, in order.
    asked: VecDeque<(usize, String)>,
    opening: VecDeque<usize>,
    /// Who was asked, and what was done.
    lines: Vec<(String, String)>,
    calls: u64,
    /// Renewals for no longer than this are not shown while time passes.
    lease: Duration,
    is_passing: bool,
    /// How it ended what was granted.
    ended: Vec<Loss>,
    /// What was granted last.
    proof: Option<Arc<Proof>>,
}

impl Member {
    fn new(place: usize) -> Self {
        let id = RUN_IDS[place];
        let info = format!("run_id:{id}\r\nmaster_replid:{id}\r\nrole:master\r\n");
        let mut it = Self {
            // The gate has the largest one.
            fence: 50 - 10 * place as u64,
            info: info + "rlock_grace_left_ms:0\r\n",
            ..Self::default()
        };
        it.sets(&[("rlock.startup-grace-ms", "60000")]);
        it
    }

    fn sets(&mut self, settings: &[(&str, &str)]) {
        let settings = settings.iter();
        self.settings = settings
            .map(|it| (it.0.to_owned(), it.1.to_owned()))
            .collect();
    }

    fn grants(&mut self) -> u64 {
        self.fence += u64::from(!self.is_held);
        (self.is_held, self.is_waited_for) = (true, false);
        self.fence
    }

    fn reply(&mut self, asked: &str) -> String {
        let says = self.says.as_ref();
        if let Some((_, reply)) = says.filter(|(it, _)| asked.starts_with(it)) {
            return reply.clone();
        }
        let words: Vec<_> = asked.split(' ').collect();
        match words[0] {
            "RLOCK.ACQUIRE" if !self.is_taken => format!(":{}\r\n", self.grants()),
            "RLOCK.ACQUIRE" if words.contains(&"WAIT") => {
                self.is_waited_for = true;
                "+WAITING\r\n".to_owned()
            }
            "RLOCK.ACQUIRE" => "$-1\r\n".to_owned(),
            "RLOCK.RENEW" | "RLOCK.RELEASE" if !self.is_held => "$-1\r\n".to_owned(),
            "RLOCK.RENEW" => {
                let raised = words.iter().position(|word| *word == "FENCE");
                let raised = raised.map_or(0, |at| words[at + 1].parse().unwrap());
                self.fence = self.fence.max(raised);
                format!(":{}\r\n", self.fence)
            }
            "RLOCK.RELEASE" => {
                self.is_held = false;
                ":0\r\n".to_owned()
            }
            "RLOCK.CANCEL" => {
                let count = u8::from(std::mem::take(&mut self.is_waited_for));
                format!(":{count}\r\n")
            }
            "INFO" => bulk(&self.info),
            "CONFIG" => {
                let pairs = self.settings.iter();
                let pairs = pairs.map(|(name, value)| bulk(name) + &bulk(value));
                format!("%{}\r\n{}", self.settings.len(), pairs.collect::<String>())
            }
            "PING" => "+PONG\r\n".to_owned(),
            _ => usual(1, asked),
        }
    }
}

impl Client {
    fn new(members: usize, any_grace: bool) -> Self {
        let settings = Settings {
            channel: "c".to_owned(),
            seed: 1,
            ..Settings::default()
        };
        let servers = (1..=members).map(|it| format!("redis://h{it}:1").parse().unwrap());
        let servers = servers.map(|it| (it, settings.clone())).collect();
        Self {
            quorum: Quorum::new(servers, any_grace).unwrap(),
            now: Instant::from_nanos(1_000_000_000),
            members: (0..members).map(Member::new).collect(),
            asked: VecDeque::new(),
            opening: VecDeque::new(),
            lines: Vec::new(),
            calls: 0,
            lease: Duration::ZERO,
            is_passing: false,
            ended: Vec::new(),
            proof: None,
        }
    }

    /// Takes the steps of a script.
    #[track_caller]
    fn plays(&mut self, script: &str) {
        let lines = script.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (step, expected) = line.split_once(" : ").unwrap_or((line, ""));
            self.takes(step);
            assert_eq!(self.done(), expected, "{step}");
        }
    }

    fn takes(&mut self, step: &str) {
        let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
        let words: Vec<_> = rest.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|it| it.parse().ok());
        // The last call, unless it is named.
        let guard = Id::of_number(number(0).unwrap_or(self.calls));
        let time = |at| Duration::from_millis(number(at).unwrap_or_default());
        match verb {
            // Another client, which is not connected, is connected, or holds `k` by call 2.
            "new" => *self = Self::new(words[0].parse().unwrap_or(3), rest == "any_grace"),
            "connected" => {
                self.takes(&format!("new {rest}"));
                self.takes("connect");
                assert_eq!(self.done(), "call 1: done");
            }
            "holds" => {
                self.takes("connected");
                self.takes(&format!("lock {rest}"));
                let done = self.done();
                assert!(done.ends_with("call 2: granted 51"), "{done}");
            }
            "connect" => self.calls(Call::Connect),
            "lock" | "try" => self.locks(verb, &words),
            "extend" => self.calls(Call::Extend {
                guard,
                lease: time(1),
            }),
            "release" => {
                let least = number(1).map(|_| time(1));
                self.calls(Call::Release { guard, least });
            }
            "flush" => self.calls(Call::Flush),
            "drop" => self.does(|it, now| it.leave(now, guard)),
            "abandon" => self.does(|it, now| it.abandon(now, guard)),
            "leave" => self.does(Quorum::leave_all),
            "close" => self.handle(Event::Closed),
            "passes" => self.passes(time(0)),
            // The client does not see it at once.
            "stalls" => {
                self.now = self.now + time(0);
                self.handle(Event::Tick);
            }
            of_members => {
                for member in words[0].bytes().map(|it| usize::from(it - b'1')) {
                    self.happens(of_members, member, &words[1..]);
                }
                self.listen();
            }
        }
    }

    fn locks(&mut self, verb: &str, words: &[&str]) {
        let mut lock = lock("k");
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let time = Duration::from_millis(value.parse().unwrap_or_default());
            match name {
                "key" => lock.claims = claims(value),
                "wait" => lock.queueing = Queueing::AtMost(time),
                "ever" => lock.queueing = Queueing::Unlimited,
                "lease" => lock.terms.lease = time,
                "fixed" => (lock.terms.lease, lock.terms.renewed) = (time, false),
                "max_hold" => lock.terms.max_hold = Some(time),
                "bound" => lock.terms.bound = Some(time),
                "margin" => lock.terms.margin = time,
                _ => {}
            }
        }
        if verb == "try" {
            lock.queueing = Queueing::Try;
        }
        self.lease = lock.terms.lease;
        self.calls(Call::Lock(lock));
    }

    /// Something happens at a member, before it can answer.
    fn happens(&mut self, what: &str, member: usize, words: &[&str]) {
        let it = &mut self.members[member];
        match what {
            "silent" => it.is_silent = true,
            // What it was asked meanwhile, too.
            "answers" => it.is_silent = false,
            "taken" => it.is_taken = true,
            "frees" => {
                it.is_taken = false;
                if it.is_waited_for {
                    let granted = format!("grant {} o k", it.grants());
                    self.receives(member, &granted);
                }
            }
            "lost" => it.is_held = false,
            "loses" => {
                it.is_held = false;
                let lost = format!("lost {} o k", it.fence);
                self.receives(member, &lost);
            }
            "timeout" => self.receives(member, "timeout 0 o k"),
            "up" => it.is_down = false,
            "down" | "cut" => {
                it.is_down = what == "down";
                let connection = it.connection.take();
                self.asked.retain(|(at, _)| *at != member);
                if let Some(connection) = connection {
                    let failure = Failure::Io("cut".to_owned());
                    self.handle(Event::Ended {
                        connection,
                        failure,
                    });
                }
            }
            "says" => {
                let says = words.split_first();
                let says =
                    says.map(|(command, reply)| (command.to_string(), reply.join(" ") + "\r\n"));
                it.says = says;
            }
            "tells" => it.info = it.info.replace(words[0], words[1]),
            "sets" => it.sets(&[(words[0], words[1])]),
            _ => panic!("{what} is no step"),
        }
    }

    fn calls(&mut self, call: Call) {
        self.calls += 1;
        let number = Id::of_number(self.calls);
        self.quorum.call(self.now, number, call);
        self.listen();
    }

    fn does<T>(&mut self, what: impl FnOnce(&mut Quorum, Instant) -> T) -> T {
        let result = what(&mut self.quorum, self.now);
        self.listen();
        result
    }

    fn handle(&mut self, event: Event<'_>) {
        self.quorum.handle(self.now, event);
        self.listen();
    }

    /// A member sends a message.
    fn receives(&mut self, member: usize, message: &str) {
        let connection = self.members[member].connection.unwrap();
        let bytes = push(&["message", &self.members[member].channel, message]);
        let bytes = bytes.as_bytes();
        self.handle(Event::Received { connection, bytes });
    }

    /// A member answers what it was asked.
    fn answers(&mut self, member: usize, asked: &str) {
        let reply = self.members[member].reply(asked);
        let connection = self.members[member].connection.unwrap();
        let bytes = reply.as_bytes();
        self.handle(Event::Received { connection, bytes });
    }

    fn passes(&mut self, time: Duration) {
        let end = self.now + time;
        self.is_passing = true;
        while let Some(due) = self.quorum.next_deadline()
            && due <= end
        {
            assert!(due > self.now, "something is always due");
            self.now = due;
            self.handle(Event::Tick);
        }
        self.is_passing = false;
        self.now = end;
    }

    /// What was done since the last call.
    fn done(&mut self) -> String {
        let mut lines: Vec<(String, String)> = Vec::new();
        for (who, what) in std::mem::take(&mut self.lines) {
            match lines.last_mut() {
                Some((all, last)) if *last == what && !who.is_empty() => *all += &who,
                _ => lines.push((who, what)),
            }
        }
        let lines: Vec<_> = lines.into_iter().map(|(who, what)| who + &what).collect();
        lines.join("; ")
    }

    /// For how long two holds, and for how many milliseconds its parts do.
    fn held(&self) -> (Duration, Vec<(String, u128)>) {
        let parts = self.quorum.holding(self.now, TWO).into_iter();
        let parts = parts.map(|(address, left)| (address, left.as_millis()));
        (self.quorum.remaining(TWO, self.now), parts.collect())
    }

    /// Until when the last guard is valid as everybody can see who has it.
    fn valid_until(&self) -> Instant {
        let proof = self.proof.as_ref().unwrap();
        proof.valid_until().unwrap()
    }

    fn listen(&mut self) {
        loop {
            while let Some(action) = self.quorum.poll_action() {
                self.hears(action);
            }
            let mut asked = self.asked.iter();
            let next = asked.position(|(at, _)| !self.members[*at].is_silent);
            if let Some(at) = self.opening.pop_front() {
                let connection = self.members[at].connection.unwrap();
                let failure = Failure::Io("refused".to_owned());
                let event = match self.members[at].is_down {
                    true => Event::Ended {
                        connection,
                        failure,
                    },
                    false => Event::Opened { connection },
                };
                self.quorum.handle(self.now, event);
            } else if let Some((at, asked)) = next.and_then(|it| self.asked.remove(it)) {
                let reply = self.members[at].reply(&asked);
                let (connection, bytes) = (self.members[at].connection.unwrap(), reply.as_bytes());
                let event = Event::Received { connection, bytes };
                self.quorum.handle(self.now, event);
            } else {
                return;
            }
        }
    }

    fn hears(&mut self, action: Action) {
        let line = match action {
            Action::Connect {
                connection,
                address,
            } => {
                let at = (0..).find(|it| address.to_string() == format!("h{}:1", it + 1));
                self.members[at.unwrap()].connection = Some(connection);
                return self.opening.extend(at);
            }
            Action::Write { connection } => return self.sent(connection),
            Action::Close { connection } => {
                let at = self.at(connection);
                self.members[at].connection = None;
                self.asked.retain(|(asked, _)| *asked != at);
                return self.lines.push(((at + 1).to_string(), " close".to_owned()));
            }
            Action::Resolve { call, outcome } => {
                if let Outcome::Granted { proofs, .. } = &outcome {
                    self.proof = Some(Arc::clone(proofs.first()));
                }
                format!("call {}: {}", call.number(), outcome_text(outcome))
            }
            Action::Over { guard, why } => format!("over {}: {why}", guard.number()),
            Action::Ended { why, .. } => return self.ended.push(why),
            Action::Note(Note::AtRisk { since, left, .. }) => {
                format!("at risk for {since:?}, {left:?} left")
            }
            _ => return,
        };
        self.lines.push((String::new(), line));
    }

    fn at(&self, connection: ConnectionId) -> usize {
        let mut members = self.members.iter();
        members
            .position(|it| it.connection == Some(connection))
            .unwrap()
    }

    fn sent(&mut self, connection: ConnectionId) {
        let (at, mut output) = (self.at(connection), Vec::new());
        self.quorum.take_output(connection, &mut output);
        for words in commands(&output) {
            if let Some(channel) = words.strip_prefix("SUBSCRIBE ") {
                channel.clone_into(&mut self.members[at].channel);
            }
            let line = words.strip_prefix("RLOCK.").unwrap_or_default();
            let notify = format!(" NOTIFY {}", self.members[at].channel);
            let line = line.replace(&notify, "").replace(" ALL", "");
            let line = line.replace(" k o", "");
            let line = line.split(" KEEP").next().unwrap();
            let renewed = line.strip_prefix("RENEW ").and_then(|ms| ms.parse().ok());
            let is_usual = renewed.is_some_and(|ms| Duration::from_millis(ms) <= self.lease);
            let is_shown = ["ACQUIRE", "RENEW", "RELEASE"]
                .iter()
                .any(|it| line.starts_with(it));
            if is_shown && !(is_usual && self.is_passing) {
                self.lines.push(((at + 1).to_string(), format!(" {line}")));
            }
            self.asked.push_back((at, words));
        }
    }
}

fn outcome_text(outcome: Outcome) -> String {
    match outcome {
        Outcome::Granted { proofs, .. } => format!("granted {}", proofs.first().fence()),
        Outcome::Refused => "refused".to_owned(),
        Outcome::Done => "done".to_owned(),
        Outcome::Failed(error) => format!("{error:?}"),
        other => format!("{other:?}"),
    }
}

fn claims(key: &str) -> Claims {
    Claims::new(Owner::new("o").unwrap(), key.as_bytes(), &[])
}

fn lock(key: &str) -> Lock {
    Lock {
        claims: claims(key),
        ask: Ask::Exclusive,
        value: None,
        terms: Terms::new(),
        queueing: Queueing::AtMost(Duration::from_secs(60)),
    }
}

/// Plays a script with a client of three members, which is connected.
#[track_caller]
fn plays(script: &str) -> Client {
    let mut it = Client::new(3, false);
    it.takes("connected");
    it.plays(script);
    it
}

/// The limit of a call, and why each of the members did not grant it.
fn too_few(limit: &str, why: &str) -> String {
    let what = "too few members of the quorum answer";
    format!("no usable answer from the server within {limit}: {what}: {why}")
}

const TWO: Id = Id::of_number(2);
const THREE: Id = Id::of_number(3);
const RELEASED: &str = "the lock was lost: it was released";
const ENDED: &str = "the lock was lost: the server ended it";
const CLOSED: &str = "the client has been closed, or its runtime shut down";
const DENIED: &str = "not permitted: no";

#[test]
fn a_lock_is_held_once_a_majority_has_the_largest_fence() {
    let mut it = plays("new\n silent 3\n connect");
    assert!(!it.quorum.is_empty());
    it.plays("answers 3 : call 1: done");
    assert!(it.quorum.is_empty());
    it.plays("silent 23\n lock : 123 ACQUIRE 30000");
    assert!(it.quorum.is_known(TWO) && !it.quorum.is_known(THREE));
    it.plays("answers 2 : 2 RENEW 30000 FENCE 51; call 2: granted 51");
    let parts = |members: &[usize]| -> Vec<_> {
        let members = members.iter();
        members.map(|it| (format!("h{it}:1"), 29_698)).collect()
    };
    let left = Duration::from_millis(29_698);
    assert_eq!(it.held(), (left, parts(&[1, 2])));
    // The last one follows.
    it.plays("answers 3 : 3 RENEW 30000 FENCE 51");
    assert_eq!(it.held(), (left, parts(&[1, 2, 3])));
    assert!(it.quorum.is_known(TWO) && !it.quorum.is_bound(TWO));
    assert!(!it.quorum.is_empty() && it.quorum.is_clean());
    // The gate is left last.
    it.plays("release 2 : 321 RELEASE FENCE 51; call 3: done");
    assert_eq!(it.ended, [Loss::Released]);
    assert!(it.quorum.is_empty());
    it.plays(&format!(
        "release 2 : call 4: {RELEASED}\n extend 2 9000 : call 5: {RELEASED}"
    ));
    assert_eq!(it.held(), (Duration::ZERO, vec![]));
}

/// It is the same for all clients, of any version.
#[test]
fn the_order_of_the_members_depends_on_their_names_and_the_key() {
    for order in ["k12345", "l25413", "m34152", "n34521", "o14523", "p12453"] {
        let (key, order) = order.split_at(1);
        let mut it = plays("connected 5");
        it.takes(&format!("lock key={key}"));
        let done = it.done();
        assert!(done.starts_with(&format!("{order} ACQUIRE")), "{done}");
    }
}

#[test]
fn a_call_waits_at_the_first_member_that_refuses_and_holds_those_before_it() {
    plays(
        "taken 12
        lock : 123 ACQUIRE 30000; 1 ACQUIRE 30000 WAIT 60000; 23 RELEASE
        passes 10000
        frees 1 : 23 ACQUIRE 30000; 3 RENEW 30000 FENCE 51; call 2: granted 51; 2 ACQUIRE 30000
        # Nothing is decided before the first ones have answered.
        connected 5
        taken 3
        silent 1
        lock : 12345 ACQUIRE 30000
        answers 1 : 245 RENEW 30000 FENCE 51; call 2: granted 51; 3 ACQUIRE 30000
        # It keeps the gate, whatever its terms.
        connected
        taken 23
        lock fixed=3000 max_hold=3000 : 123 ACQUIRE 3000; 2 ACQUIRE 3000 WAIT 60000
        passes 2999
        frees 2 : 2 RENEW 3000; 2 RENEW 3000 FENCE 51; 3 ACQUIRE 3000; 1 RENEW 3000 FENCE 51; call 2: granted 51",
    );
}

#[test]
fn a_call_that_does_not_wait_is_refused_by_the_gate_only() {
    let it = plays("taken 1\n try : 123 ACQUIRE 30000; call 2: refused; 23 RELEASE");
    assert!(it.quorum.is_empty());
    // Who has the gate gets the others, as soon as those who were refused have left.
    for (ms, wait) in [(30_000, 2500), (1_000, 500)] {
        plays(&format!(
            "taken 23
            try lease={ms} : 123 ACQUIRE {ms}; 2 ACQUIRE {ms} WAIT {wait}
            timeout 2 : call 2: refused; 1 RELEASE FENCE 51
            try lease={ms} : 123 ACQUIRE {ms}; 2 ACQUIRE {ms} WAIT {wait}
            frees 2 : 2 RENEW {ms} FENCE 52; 3 ACQUIRE {ms}; call 3: granted 52"
        ));
    }
}

#[test]
fn a_wait_ends_with_one_more_look_at_all_members() {
    let waits = "lock wait=1000 : 123 ACQUIRE 30000; 1 ACQUIRE 30000 WAIT 1000; 23 RELEASE";
    plays(&format!(
        "taken 1
        {waits}
        timeout 1 : call 2: refused
        lock wait=1000 : 123 ACQUIRE 30000; 1 ACQUIRE 30000 WAIT 1000; 23 RELEASE
        passes 999
        passes 1 : 1 RELEASE; 231 ACQUIRE 30000; call 3: refused; 3 RELEASE FENCE 33; 2 RELEASE FENCE 43"
    ));
    // It got the gate meanwhile, but not the others.
    let mut it = plays(&format!("taken 123\n {waits}"));
    it.members[0].is_taken = false;
    it.plays(
        "passes 1000 : 1 RELEASE; 231 ACQUIRE 30000; 2 ACQUIRE 30000 WAIT 2500
        passes 2499
        passes 1 : call 2: refused; 2 RELEASE; 1 RELEASE FENCE 51",
    );
    // Nobody answers any more.
    let slow = too_few(
        "2.3s",
        "h1:1: it is too slow; h2:1: it is too slow; h3:1: it is too slow",
    );
    let why = "no usable answer from the server within 1s: too few members of the quorum answered in time";
    plays(&format!(
        "taken 1
        {waits}
        passes 999
        silent 123
        passes 1250 : 1 RELEASE; 23 ACQUIRE 30000
        passes 1 : 2 RELEASE; call 2: {slow}; 3 RELEASE
        connected
        silent 123
        lock wait=1000 : 123 ACQUIRE 30000
        passes 1000 : call 2: {why}; 321 RELEASE"
    ));
}

#[test]
fn a_call_fails_with_an_error_that_does_not_pass_if_too_few_others_are_left() {
    let oom = "the server is out of memory: x";
    let oom = too_few("1s", &format!("h2:1: {oom}; h3:1: {oom}"));
    for (reply, error) in [
        ("-DEADLOCK x", "waiting would cause a deadlock: x"),
        ("-ERR no", "the server refused: ERR no"),
        ("-QUEUEFULL x", "the server's queue is full: x"),
        ("-OOM x", &oom),
    ] {
        let mut it = plays(&format!("says 23 RLOCK.ACQUIRE {reply}"));
        it.takes("lock wait=1000");
        it.takes(if error == oom {
            "passes 1000"
        } else {
            "passes 0"
        });
        let done = it.done();
        assert!(done.contains(&format!("; call 2: {error}")), "{done}");
    }
    let why = too_few("10ms", "h2:1: refused; h3:1: the server refused: ERR no");
    plays(&format!(
        "# One more may come back.
        says 3 RLOCK.ACQUIRE -ERR no
        down 2
        lock wait=10 : 13 ACQUIRE 30000; 1 RELEASE FENCE 51
        passes 9 : 13 ACQUIRE 30000; 1 RELEASE FENCE 52
        passes 1 : call 2: {why}
        # In this attempt, none is asked again that has refused, or that is still gone.
        connected 5
        taken 1
        silent 1
        down 45
        says 3 RLOCK.ACQUIRE -ERR no
        lock : 123 ACQUIRE 30000
        answers 1 : 1 ACQUIRE 30000 WAIT 60000; 2 RELEASE FENCE 41
        up 4
        passes 1000
        frees 1 : 24 ACQUIRE 30000; 42 RENEW 30000 FENCE 51; call 2: granted 51; 3 ACQUIRE 30000"
    ));
}

#[test]
fn what_changed_during_a_wait_is_seen_at_its_end() {
    // A member came back.
    for then in [
        "frees 1 : 23 ACQUIRE 30000; 23 RENEW 30000 FENCE 51; call 2: granted 51",
        "timeout 1 : call 2: refused",
    ] {
        plays(&format!(
            "taken 1
            down 3
            lock : 12 ACQUIRE 30000; 1 ACQUIRE 30000 WAIT 60000; 2 RELEASE
            up 3
            passes 1000
            {then}"
        ));
    }
    plays(
        "# The gate was lost.
        taken 23
        lock : 123 ACQUIRE 30000; 2 ACQUIRE 30000 WAIT 60000
        loses 1
        frees 2 : 3 ACQUIRE 30000; 3 ACQUIRE 30000 WAIT 60000
        frees 3 : 1 ACQUIRE 30000; 23 RENEW 30000 FENCE 52; call 2: granted 52",
    );
}

#[test]
fn a_slow_member_is_left_alone_for_longer_each_time() {
    // Member 1 answers, but too late.
    let asks = |it: &mut Client, ms: u64, asked: &str| {
        let passes = format!("passes {ms}");
        ["silent 1", "lock", &passes, "answers 1", "drop"]
            .iter()
            .for_each(|step| it.takes(step));
        let done = it.done();
        assert!(done.starts_with(&format!("{asked} ACQUIRE")), "{done}");
    };
    let mut it = plays(
        "silent 1
        lock : 123 ACQUIRE 30000
        passes 1249
        passes 1 : 1 RELEASE; 3 RENEW 30000 FENCE 41; call 2: granted 41
        answers 1
        drop : 32 RELEASE FENCE 41",
    );
    for pause in [1_250, 2_500, 5_000, 5_000] {
        it.takes(&format!("passes {}", pause - 1));
        asks(&mut it, 0, "23");
        // This says nothing of its speed.
        let error = "says 1 RLOCK.ACQUIRE -OOM x";
        ["passes 1", error, "lock", "drop", "says 1"]
            .iter()
            .for_each(|step| it.takes(step));
        it.done();
        asks(&mut it, 1_250, "123");
    }
    // It has answered meanwhile.
    ["passes 5000", "lock", "drop"]
        .iter()
        .for_each(|step| it.takes(step));
    it.done();
    asks(&mut it, 1_250, "123");
    it.plays("passes 1249");
    asks(&mut it, 0, "23");
    // Where too few others are left it is asked.
    it.takes("down 3");
    asks(&mut it, 0, "12");
    // How long an answer may take depends on the lease.
    for (ms, limit) in [(3_000, 300), (30, 5)] {
        let before = limit - 1;
        plays(&format!(
            "silent 1
            lock lease={ms} : 123 ACQUIRE {ms}
            passes {before}
            passes 1 : 1 RELEASE; 23 RENEW {ms} FENCE 41; call 2: granted 41"
        ));
    }
    plays(
        "# Two calls that have waited at the same time are one occasion.
        silent 1
        lock : 123 ACQUIRE 30000
        passes 1
        lock key=p : 123 ACQUIRE p o 30000
        passes 1250 : 1 RELEASE; 3 RENEW 30000 FENCE 41; call 2: granted 41; 1 RELEASE p o; 3 RENEW p o 30000 FENCE 41; call 3: granted 41
        answers 1
        drop 2 : 32 RELEASE FENCE 41
        drop 3 : 32 RELEASE p o FENCE 41
        passes 1248
        lock : 23 ACQUIRE 30000; call 4: granted 42
        drop : 32 RELEASE FENCE 42
        passes 1
        lock : 123 ACQUIRE 30000; 23 RENEW 30000 FENCE 52; call 5: granted 52",
    );
}

/// The answers may be here, and not read.
#[test]
fn a_client_that_stalls_waits_as_much_longer() {
    plays(
        "silent 123
        try : 123 ACQUIRE 30000
        stalls 2250
        passes 990
        stalls 30 : 123 RELEASE",
    );
}

#[test]
fn a_client_that_stalls_may_still_read_before_its_wait_ends() {
    plays(
        "silent 123
        lock wait=500 : 123 ACQUIRE 30000
        stalls 601
        passes 99
        answers 123 : 23 RENEW 30000 FENCE 51; call 2: granted 51",
    );
    let mut it = plays("silent 123\n lock wait=500 : 123 ACQUIRE 30000\n stalls 601\n passes 99");
    it.takes("passes 1");
    let done = it.done();
    assert!(done.starts_with("call 2: no usable answer"), "{done}");
}

/// It has a heartbeat each second.
#[test]
fn a_member_that_hangs_is_not_waited_for() {
    plays(
        "taken 1
        lock ever lease=3000 : 123 ACQUIRE 3000; 1 ACQUIRE 3000 WAIT 0; 23 RELEASE
        passes 60000
        silent 1
        passes 1299
        passes 1 : 1 RELEASE; 23 ACQUIRE 3000; 3 RENEW 3000 FENCE 42; call 2: granted 42",
    );
    // Nor for longer than a lease if others are held.
    for (ms, limit) in [(30_000, 30_000), (500, 1_000)] {
        let before = limit - 1;
        plays(&format!(
            "taken 23
            lock ever lease={ms} : 123 ACQUIRE {ms}; 2 ACQUIRE {ms} WAIT 0
            passes {before}
            passes 1 : 2 RELEASE; 1 RELEASE FENCE 51
            passes 10 : 123 ACQUIRE {ms}; 2 ACQUIRE {ms} WAIT 0"
        ));
    }
}

#[test]
fn a_member_that_is_gone_for_a_moment_is_not_waited_for() {
    let gone = too_few("1s", "h2:1: refused; h3:1: refused");
    let it = plays(&format!(
        "silent 1
        lock : 123 ACQUIRE 30000
        passes 100
        down 1
        passes 49
        passes 1 : 3 RENEW 30000 FENCE 41; call 2: granted 41
        # Too few can be reached.
        connected
        down 2
        lock : 13 ACQUIRE 30000; 3 RENEW 30000 FENCE 51; call 2: granted 51
        drop : 31 RELEASE FENCE 51
        down 3
        lock wait=1000
        passes 999
        passes 1 : call 3: {gone}"
    ));
    assert!(it.quorum.is_empty());
}

#[test]
fn a_member_whose_clock_is_far_behind_or_ahead_is_left_out() {
    plays(
        "says 3 RLOCK.RENEW -ERR too far ahead
        lock : 123 ACQUIRE 30000; 23 RENEW 30000 FENCE 51; call 2: granted 51; 3 RELEASE FENCE 31
        connected
        says 23 RLOCK.RENEW -ERR too far ahead
        lock : 123 ACQUIRE 30000; 23 RENEW 30000 FENCE 51; 3 RENEW 30000 FENCE 41; 1 RELEASE FENCE 51; \
            3 RELEASE FENCE 31; 2 RELEASE FENCE 41
        # Others that the gate has refused will leave.
        connected 5
        taken 45
        says 23 RLOCK.RENEW -ERR too far ahead
        try : 12345 ACQUIRE 30000; 32 RENEW 30000 FENCE 51; 1 RELEASE FENCE 51; 4 ACQUIRE 30000 WAIT 2500",
    );
}

#[test]
fn a_quorum_is_connected_once_a_majority_is_and_the_others_had_time() {
    let fewer = "cannot connect to the server: fewer than a majority of the members answer: h1:1";
    plays(&format!(
        "new
        silent 3
        connect
        passes 1249
        passes 1 : call 1: done
        answers 3
        connect : call 2: done
        new
        silent 23
        connect
        passes 4999
        passes 1 : 23 close; call 1: {fewer}: connected; h2:1: no answer within 5s; h3:1: no answer within 5s
        new
        down 12
        connect : call 1: {fewer}: refused; h2:1: refused; h3:1: connected
        # What has arrived during a stall is read first.
        new
        silent 123
        connect
        stalls 5300
        answers 123 : call 1: done
        # What does not pass is a failure, majority or not.
        new
        says 2 HELLO -WRONGPASS no
        connect : 2 close; call 1: cannot connect to the server: h2:1: WRONGPASS no"
    ));
}

#[test]
fn a_call_that_comes_before_the_connections_waits_for_them() {
    let gone = too_few("1s", "h2:1: no connection; h3:1: no connection");
    let it = plays(&format!(
        "new
        silent 3
        lock
        lock
        abandon 2
        passes 1250 : 12 ACQUIRE 30000; 2 RENEW 30000 FENCE 51; call 1: granted 51
        # A failure that may pass is for its wait to see.
        new
        silent 23
        lock wait=7000
        lock wait=1000
        passes 1000 : call 2: {gone}
        passes 5500 : 23 close
        answers 3
        passes 499 : 13 ACQUIRE 30000; 3 RENEW 30000 FENCE 51; call 1: granted 51
        new
        says 2 HELLO -WRONGPASS no
        lock : 2 close; call 1: cannot connect to the server: h2:1: WRONGPASS no"
    ));
    assert!(it.quorum.is_empty());
}

#[test]
fn a_server_that_protects_nothing_is_no_member() {
    let bare = "the server does not have the rlock module; start it with `redis-server --loadmodule \
        /path/to/librlock.so`";
    for (tells, why) in [
        ("id:q id:b", "it is the same server as h1:1"),
        (
            "replid:q replid:b",
            "it is or was a replica together with h1:1",
        ),
        ("grace_left grace", bare),
    ] {
        plays(&format!(
            "new
            tells 3 {tells}
            connect : 3 close; call 1: h3:1 cannot be a member of the quorum: {why}"
        ));
    }
    // Its master may be one, even if it answers later.
    let mut it = plays(
        "new
        silent 1
        tells 2 replid:c replid:b
        tells 2 role:master role:slave
        connect : 2 close
        answers 1 : call 1: h2:1 cannot be a member of the quorum: it is a replica",
    );
    assert!(it.quorum.endpoint().is_connected(Node::default()));
    it.plays(
        "tells 2 replid:b replid:c
        tells 2 role:slave role:master
        passes 100
        connect : call 2: done",
    );
}

#[test]
fn a_lease_is_no_longer_than_members_grant_nothing_after_a_crash() {
    let below = "h2:1 cannot be a member of the quorum: its `rlock.startup-grace-ms` is 29999, below the \
        lease of 30000 ms, so after a crash it may grant what is still held: raise it, set `appendonly \
        yes` and `appendfsync always`, or allow any grace";
    let gone = too_few("1s", "h2:1: refused; h3:1: its grace is below 30s");
    plays(&format!(
        "new
        sets 2 rlock.startup-grace-ms 29999
        connect : call 1: done
        lock : call 2: {below}
        lock lease=29999 : 123 ACQUIRE 29999; 23 RENEW 29999 FENCE 51; call 3: granted 51
        extend 3 30000 : call 4: {below}
        new any_grace
        sets 2 rlock.startup-grace-ms 29999
        connect : call 1: done
        lock : 123 ACQUIRE 30000; 23 RENEW 30000 FENCE 51; call 2: granted 51
        extend 2 61000 : 123 RENEW 61000; call 3: done
        # A member that came later is only left out.
        connected
        sets 3 rlock.startup-grace-ms 29999
        cut 3
        passes 100
        lock : 12 ACQUIRE 30000; 2 RENEW 30000 FENCE 51; call 2: granted 51
        drop : 21 RELEASE FENCE 51
        lock lease=29999 : 123 ACQUIRE 29999; call 3: granted 52; 3 RENEW 29999 FENCE 52
        extend 3 30000 : 12 RENEW 30000; call 4: done
        passes 2000
        lock : 12 RENEW 30000 FENCE 52; call 5: granted 52
        drop
        drop 3 : 321 RELEASE FENCE 52
        down 2
        lock wait=1000
        passes 1000 : call 6: {gone}"
    ));
    // One that forgets nothing.
    let names = ["appendonly", "appendfsync", "no-appendfsync-on-rewrite"];
    for (values, is_durable) in [
        (["yes", "always", "no"], true),
        (["no", "always", "no"], false),
        (["yes", "everysec", "no"], false),
        (["yes", "always", "yes"], false),
    ] {
        let mut it = plays("new");
        let settings: Vec<_> = names.into_iter().zip(values).collect();
        it.members[1].sets(&settings);
        it.takes("connect");
        it.takes("lock");
        assert_eq!(it.done().contains("granted"), is_durable, "{values:?}");
    }
}

#[test]
fn a_member_that_grants_nothing_after_its_start_is_not_asked() {
    let why = "it grants nothing for 4s after its start";
    let why = too_few("1s", &format!("h2:1: {why}; h3:1: {why}"));
    plays(&format!(
        "new
        tells 23 left_ms:0 left_ms:5000
        connect : call 1: done
        lock wait=1000
        passes 1000 : call 2: {why}
        new
        tells 3 left_ms:0 left_ms:5000
        connect : call 1: done
        passes 4999
        lock : 12 ACQUIRE 30000; 2 RENEW 30000 FENCE 51; call 2: granted 51
        drop : 21 RELEASE FENCE 51
        passes 1
        lock : 123 ACQUIRE 30000; call 3: granted 52; 3 RENEW 30000 FENCE 52"
    ));
}

#[test]
fn a_lock_is_lost_with_its_majority() {
    let mut it = plays(
        "holds
        loses 3 : 3 ACQUIRE 30000
        taken 23
        loses 2 : 2 ACQUIRE 30000
        loses 3 : over 2: the server ended it; 1 RELEASE FENCE 51",
    );
    assert_eq!(it.ended, [Loss::EndedByServer]);
    assert_eq!(it.held(), (Duration::ZERO, vec![]));
    assert!(!it.quorum.is_empty() && it.quorum.is_known(TWO));
    it.plays(&format!("release 2 : call 3: {ENDED}"));
    assert!(it.quorum.is_empty());
    plays(
        "# Nobody answers for a lease.
        holds lease=3000
        passes 60000
        silent 123
        passes 3000 : at risk for 1.5s, 1.5s left; 123 close; over 2: its lease ended
        # A lease that is not renewed, or not for longer, is not at risk.
        holds fixed=3000
        passes 2960
        passes 40 : over 2: its lease ended; 123 RELEASE FENCE 51
        holds lease=2000 max_hold=3000
        passes 2960
        passes 40 : over 2: its lease ended; 123 RELEASE FENCE 51",
    );
    plays(
        "# Its longest time may be shorter than its lease.
        connected
        lock lease=30000 max_hold=5000 : 123 ACQUIRE 5000; 23 RENEW 5000 FENCE 51; call 2: granted 51
        passes 4950 : over 2: its lease ended; 231 RELEASE FENCE 51
        # What is taken again ends with it.
        holds lease=30000 max_hold=12000
        passes 9000
        loses 3 : 3 ACQUIRE 3000
        loses 2 : 2 ACQUIRE 3000
        passes 3000 : 1 RELEASE FENCE 51; over 2: its lease ended; 23 RELEASE FENCE 52
        passes 60000",
    );
    plays(
        "# A part that was taken again says nothing of a later loss.
        holds bound=1000
        loses 3 : 3 ACQUIRE 30000 BIND 1000
        passes 5000
        down 123
        passes 1000 : over 2: its lease ended",
    );
    // Its end is seen when it is looked at, even without a tick.
    let mut it = plays("holds");
    it.now = it.now + Duration::from_secs(30);
    it.does(|it, now| it.look(now, TWO));
    assert_eq!(it.done(), "over 2: its lease ended; 321 RELEASE FENCE 51");
    // A bound lock ends with its connections.
    let mut it = plays("holds bound=1000");
    assert!(it.quorum.is_bound(TWO));
    it.plays("down 23\n passes 1000 : over 2: its lease ended; 1 RELEASE FENCE 51");
}

#[test]
fn what_is_lost_of_a_lock_is_taken_again() {
    let mut it = plays(
        "holds lease=12000 max_hold=60000
        passes 20000
        taken 3
        loses 3 : 3 ACQUIRE 12000
        passes 5000 : 33333 ACQUIRE 12000
        frees 3
        passes 1000 : 3 ACQUIRE 12000",
    );
    assert_eq!(it.held().1.len(), 3);
    // Not for longer than the whole.
    it.plays("passes 33900");
    assert!(it.held().1.iter().all(|(_, ms)| *ms <= 100));
    plays(
        "# How often depends on the lease.
        holds lease=3000
        taken 3
        loses 3 : 3 ACQUIRE 3000
        passes 1000 : 3333 ACQUIRE 3000
        # Never if it is not renewed.
        holds fixed=30000
        loses 3
        passes 10000",
    );
}

#[test]
fn a_lock_at_risk_says_so_once_until_it_is_renewed() {
    plays(
        "holds lease=3000 max_hold=20000
        down 2
        passes 500
        down 3
        passes 3000 : at risk for 1.5s, 1.5s left; over 2: its lease ended; 1 RELEASE FENCE 51
        holds
        silent 23
        passes 20000 : 23 close; at risk for 15s, 15s left; 23 close
        answers 2
        passes 2000 : 3 close
        silent 2
        passes 20000 : 323 close; at risk for 15.9998s, 14.0002s left; 2323 close",
    );
}

/// Its guards can see no more than the proof of the whole, which no tick extends meanwhile.
#[test]
fn a_lock_outlasts_a_stall_that_is_shorter_than_its_leases() {
    let mut it = plays("holds ever\n passes 14000");
    let left = it.held().0;
    assert!(left > Duration::from_secs(21), "{left:?}");
    assert_eq!(it.valid_until(), it.now + left);
    it.takes("stalls 16500");
    let done = it.done();
    assert!(done.starts_with("123 RENEW 30000; at risk for "), "{done}");
    it.plays("passes 10000");
    assert_eq!(it.ended, []);
    it.takes(&format!("stalls {}", it.held().0.as_millis() + 1));
    assert_eq!(it.ended, [Loss::LeaseEnded]);
    // It was extended before.
    let mut it = plays("holds\n extend 2 60000 : 123 RENEW 60000; call 3: done");
    assert_eq!(it.valid_until(), it.now + it.held().0);
    it.takes("stalls 50000");
    assert_eq!(it.ended, []);
}

#[test]
fn an_owner_enters_its_lock_again() {
    let it = plays(
        "# Before its end.
        holds
        passes 2000
        silent 12
        lock : 123 RENEW 30000 FENCE 51
        loses 12 : over 2: the server ended it; 3 RELEASE FENCE 51
        answers 12 : 213 ACQUIRE 30000; call 3: granted 52
        # A majority is enough.
        holds
        passes 2000
        try : 123 RENEW 30000 FENCE 51; call 3: granted 51
        release 2 : call 4: done
        passes 2000
        silent 3
        lock : 123 RENEW 30000 FENCE 51; call 5: granted 51
        drop 3
        silent 2
        passes 2000
        lock : 12 RENEW 30000 FENCE 51
        abandon 6
        answers 23 : 3 RENEW 30000 FENCE 51
        drop 5 : 321 RELEASE FENCE 51",
    );
    assert!(it.quorum.is_empty());
}

#[test]
fn calls_of_one_owner_take_turns() {
    let it = plays(
        "taken 1
        lock ever : 123 ACQUIRE 30000; 1 ACQUIRE 30000 WAIT 0; 23 RELEASE
        try : call 3: refused
        lock wait=1000
        lock
        lock
        abandon 5
        passes 999
        passes 1 : call 4: refused
        frees 1 : 23 ACQUIRE 30000; 23 RENEW 30000 FENCE 51; call 2: granted 51; call 6: granted 51
        # The first is abandoned.
        connected
        taken 1
        lock : 123 ACQUIRE 30000; 1 ACQUIRE 30000 WAIT 60000; 23 RELEASE
        lock
        abandon 2 : 1 RELEASE; 231 ACQUIRE 30000; 1 ACQUIRE 30000 WAIT 60000; 2 RELEASE FENCE 42; \
            3 RELEASE FENCE 32
        frees 1 : 23 ACQUIRE 30000; 23 RENEW 30000 FENCE 51; call 3: granted 51
        drop 3 : 321 RELEASE FENCE 51
        # Until the next heartbeat would be due.
        passes 1000",
    );
    assert!(it.quorum.is_empty());
}

#[test]
fn a_release_waits_for_a_majority_and_a_little_for_the_others() {
    let mut it = plays(
        "holds
        silent 1
        release 2 : 321 RELEASE FENCE 51
        passes 1249",
    );
    assert!(it.quorum.is_known(THREE) && !it.quorum.is_known(TWO));
    it.plays("passes 1 : call 3: done");
    assert!(!it.quorum.is_empty() && !it.quorum.is_clean());
    it.plays("answers 1");
    assert!(it.quorum.is_empty() && it.quorum.is_clean());
    // One that cannot be reached is left to the background.
    let mut it = plays("holds\n down 3\n release 2 : 21 RELEASE FENCE 51; call 3: done");
    assert!(!it.quorum.is_clean());
    it.plays("up 3\n passes 1000 : 3 RELEASE FENCE 51");
}

/// It is lost if it was held by no majority, whatever the members say that have not answered.
#[test]
fn a_release_fails_if_too_few_have_confirmed_it() {
    let gone = "no usable answer from the server within 10s: h";
    for (steps, end) in [
        ("lost 23", ENDED),
        ("lost 3", "done"),
        ("lost 1\n down 23", gone),
        ("lost 1\n says 23 RLOCK.RELEASE -NOPERM no", DENIED),
        ("lost 1\n down 2\n says 3 RLOCK.RELEASE -NOPERM no", DENIED),
        ("lost 12\n down 3", ENDED),
        ("down 23", gone),
        ("says 123 RLOCK.RELEASE -NOPERM no", DENIED),
    ] {
        let mut it = plays(&format!("holds\n {steps}"));
        it.takes("release 2");
        let mut done = it.done();
        // One that is down may come back, and complete a majority.
        if steps.contains("down 2") {
            assert!(!done.contains("call 3"), "{steps}: {done}");
            it.takes("passes 10000");
            done = it.done();
        }
        assert!(done.contains(&format!("call 3: {end}")), "{steps}: {done}");
    }
    plays(
        "# Their connections end, and there are others.
        holds
        silent 23
        release 2 : 321 RELEASE FENCE 51
        down 23
        passes 500
        up 23
        answers 23
        passes 1000 : 23 RELEASE FENCE 51; call 3: done",
    );
}

#[test]
fn a_lock_is_extended_at_a_majority() {
    let mut it = plays("holds\n silent 3\n extend 2 60000 : 123 RENEW 60000; call 3: done");
    assert!(it.held().0 > Duration::from_secs(59));
    let slow = "no usable answer from the server within 10s: h2:1: no answer within 5s";
    it.plays(&format!(
        "extend 2 0 : call 4: lease is 0ns, it must be from 3 ms to 30 days
        holds
        says 23 RLOCK.RENEW -NOPERM no
        extend 2 60000 : 123 RENEW 60000; call 3: {DENIED}
        holds
        silent 23
        extend 2 60000 : 123 RENEW 60000
        passes 9999 : 23 close
        passes 1 : call 3: {slow}
        # It is released meanwhile, or lost.
        holds
        silent 123
        extend 2 60000 : 123 RENEW 60000
        drop 2
        answers 123 : 1 RELEASE FENCE 51; call 3: {RELEASED}; 23 RELEASE FENCE 51
        holds
        silent 123
        extend 2 60000 : 123 RENEW 60000
        loses 21 : over 2: the server ended it
        answers 123 : call 3: {ENDED}; 3 RELEASE FENCE 51"
    ));
}

#[test]
fn a_released_lock_can_stay_taken_for_a_while_at_all_members() {
    let mut it = plays(&format!(
        "holds
        passes 5000
        release 2 20000 : 123 RENEW 15001; call 3: done
        holds
        passes 5000
        release 2 2592000001 : 123 RENEW 24699; call 3: least is 2592000.001s, it must be at most 30 days
        release 2 : call 4: {RELEASED}
        holds
        passes 5000"
    ));
    for (guard, seconds) in [(TWO, 20), (TWO, 10), (THREE, 25)] {
        let least = Duration::from_secs(seconds);
        it.does(|it, now| it.keep(now, guard, least)).unwrap();
    }
    it.does(|it, now| it.untaken(now, TWO));
    assert_eq!(it.done(), "123 RENEW 15001");
}

#[test]
fn a_flush_waits_for_a_majority_and_all_members_that_can_be_reached() {
    let mut it = plays("holds\n silent 3\n drop 2 : 321 RELEASE FENCE 51");
    assert!(!it.quorum.is_clean() && !it.quorum.is_empty());
    it.plays(&format!(
        "flush
        passes 1000
        answers 3 : call 3: done
        lock : 123 ACQUIRE 30000; call 4: granted 52
        down 3
        says 2 RLOCK.RELEASE -NOPERM no
        drop 4 : 21 RELEASE FENCE 52
        flush
        passes 50 : call 5: k was not released: {DENIED}
        # It connects again: others would be refused there.
        holds
        silent 3
        cut 3
        drop 2 : 21 RELEASE FENCE 51
        flush
        passes 1000
        answers 3 : 3 RELEASE FENCE 51; call 3: done
        # A majority could not be reached for a moment.
        holds
        down 123
        drop 2
        flush
        passes 400
        up 123
        passes 600 : 123 RELEASE FENCE 51; call 3: done"
    ));
}

#[test]
fn nothing_begins_after_the_end_of_a_quorum() {
    let mut it = plays(&format!(
        "holds
        lock : call 3: granted 51
        silent 123
        passes 2000
        lock : 123 RENEW 30000 FENCE 51
        lock
        extend 2 60000
        leave : call 4: {CLOSED}; call 5: {CLOSED}; over 2: it was released; over 3: it was released
        lock : call 7: {CLOSED}
        answers 123 : 123 RENEW 60000; 1 RELEASE FENCE 51; call 6: {CLOSED}; 23 RELEASE FENCE 51
        passes 1000
        drop 2
        drop 3"
    ));
    assert!(it.quorum.is_empty());
    it.plays(&format!(
        "holds
        silent 123
        passes 2000
        lock key=l : 213 ACQUIRE l o 30000
        lock key=l
        lock : 123 RENEW 30000 FENCE 51
        close : call 3: {CLOSED}; call 4: {CLOSED}; call 5: {CLOSED}; 1 RELEASE l o; 1 close; 2 RELEASE l o; 2 close; 3 RELEASE l o; 3 close
        connect : call 6: {CLOSED}
        flush : call 7: done
        lock : call 8: {CLOSED}
        extend 2 60000 : call 9: {CLOSED}"
    ));
    assert!(it.quorum.endpoint().is_closed() && it.held().0 > Duration::from_secs(20));
    it.plays(&format!("release 2 : call 10: {CLOSED}"));
    assert!(!it.quorum.is_known(TWO));
    // Its members hold it until its lease ends.
    it.plays(&format!(
        "flush : call 11: k was not released: {CLOSED}
        passes 40000
        flush : call 12: done"
    ));
}

/// Unless a guard was lost before, as with one server.
#[test]
fn nothing_is_lost_by_the_end_of_a_quorum() {
    let mut it = plays(&format!(
        "holds
        leave : over 2: it was released; 321 RELEASE FENCE 51
        extend 2 9000 : call 3: {CLOSED}
        release 2 : call 4: {CLOSED}"
    ));
    assert!(it.quorum.is_empty());
    it.plays(
        "holds fixed=3000
        passes 3000 : over 2: its lease ended; 123 RELEASE FENCE 51
        leave
        release 2 : call 3: the lock was lost: its lease ended
        holds fixed=3000
        passes 3000 : over 2: its lease ended; 123 RELEASE FENCE 51
        close : 123 close
        release 2 : call 3: the lock was lost: its lease ended",
    );
    assert!(it.quorum.is_empty());
    // What cannot be answered is sent at the end.
    it.plays(&format!(
        "holds
        silent 123
        extend 2 60000 : 123 RENEW 60000
        leave : over 2: it was released
        close : call 3: {CLOSED}; 1 RELEASE FENCE 51; 1 close; 2 RELEASE FENCE 51; 2 close; 3 RELEASE FENCE 51; 3 close"
    ));
}

/// The process was stopped.
#[test]
fn a_quorum_that_is_left_tells_of_a_lease_that_has_ended() {
    let mut it = plays("holds");
    it.now = it.now + Duration::from_secs(40);
    it.takes("leave");
    let done = it.done();
    assert!(done.contains("over 2: its lease ended"), "{done}");
    assert_eq!(it.ended[0], Loss::LeaseEnded);
}

#[test]
fn a_quorum_is_for_exclusive_locks_of_one_key() {
    let mut it = plays("");
    let locks = [
        |it: &mut Lock| it.ask = Ask::Shared,
        |it: &mut Lock| it.value = Some(Value::new(b"v").unwrap()),
        |it: &mut Lock| it.terms = it.terms.replicas(1).unwrap(),
        |it: &mut Lock| {
            let rest = b"l"[..].into();
            it.claims = Claims::new(it.claims.owner().clone(), b"k", &[rest]);
        },
    ];
    let locks = locks.map(|change| {
        let mut lock = lock("k");
        change(&mut lock);
        Call::Lock(lock)
    });
    let (guard, key) = (TWO, || b"k"[..].into());
    let (queueing, value) = (Queueing::Try, Value::new(b"v").unwrap());
    let question = Call::Question {
        to: None,
        command: Command::new("PING"),
        changes: false,
        limit: None,
    };
    let raise = Call::Raise {
        guard,
        fence: 7,
        terms: Terms::new(),
    };
    let calls = [
        (
            Call::Upgrade {
                guard,
                queueing,
                retakes: true,
            },
            "an upgrade",
        ),
        (Call::Downgrade { guard }, "a downgrade"),
        (
            Call::ReleasePermits { guard, permits: 1 },
            "a release of permits",
        ),
        (question, "a question to a server"),
        (Call::Proclaim { guard, value }, "for an election"),
        (Call::Leader { key: key() }, "for an election"),
        (Call::Observe { key: key() }, "for an election"),
        (raise, "not for callers"),
    ];
    let other = "a lock that is shared, or has permits, several keys, a value or replicas";
    for (call, what) in locks.into_iter().map(|it| (it, other)).chain(calls) {
        it.calls(call);
        let limit = "it must be for an exclusive lock of one key, as for all locks of a quorum";
        assert_eq!(
            it.done(),
            format!("call {}: call is {what}, {limit}", it.calls)
        );
    }
    it.plays("lock key= : call 14: key is empty, it must be at least 1 byte");

    for members in [0, 1, 2, 4, 10, 11] {
        let servers = (0..members).map(|_| ("redis://h".parse().unwrap(), Settings::default()));
        let refused = Quorum::new(servers.collect(), false).err().unwrap();
        let expected = format!("members is {members} servers, it must be 3, 5, 7 or 9");
        assert!(refused.to_string().starts_with(&expected), "{refused}");
    }
    assert_eq!(
        read(["redis://h", "redis+unix:///s", "rediss://h"])
            .unwrap()
            .len(),
        3
    );
    for other in ["rediss+cluster://h", "redis+sentinel://h/m", "redis://h:x"] {
        let refused = read(["redis://h", other]).unwrap_err().to_string();
        assert!(refused.starts_with("members[1] is "), "{refused}");
    }
}

/// One member's answer is read before those of the others, which show that their connections are alive.
#[test]
fn a_bound_lock_outlasts_a_stall_after_which_all_have_answered() {
    let bound = || {
        let mut it = Client::new(3, false);
        it.takes("connected");
        it.takes("lock ever bound=3000");
        it.done();
        it.lease = Duration::ZERO;
        it
    };
    let mut it = bound();
    let mut time = 0;
    while !it.done().contains("RENEW") {
        it.takes("passes 1");
        time += 1;
        assert!(time < 20_000);
    }
    let first = it.asked.iter().find(|it| it.1.contains("RENEW"));
    let first = first.map_or(1, |it| it.0 + 1);
    let others = ["23", "13", "12"][first - 1];
    for stall in [2_100, 2_500, 2_900] {
        let mut it = bound();
        it.takes(&format!("passes {}", time - 100));
        it.takes("silent 123");
        it.takes("passes 100");
        it.now = it.now + Duration::from_millis(stall);
        it.takes(&format!("answers {first}"));
        it.takes(&format!("answers {others}"));
        assert_eq!(it.ended, [], "{stall}");
    }
}

/// A bound lock of that many members, after `start` ms, whose requests of the last 100 ms have no answer yet.
fn bound_and_silent(members: usize, start: usize) -> Client {
    let mut it = Client::new(members, false);
    it.takes(if members == 3 {
        "connected"
    } else {
        "connected 5"
    });
    it.takes("lock ever bound=3000");
    it.done();
    it.takes(&format!("passes {start}"));
    it.takes(&format!("silent {}", &"12345"[..members]));
    it.takes("passes 100");
    it
}

/// All have been asked for something when the process stops for 2.5 s, and have answered it at once. With `ticks` its timers
/// fire before it reads.
fn outlasts_stalls(members: usize, ticks: bool, steps: &[&str]) {
    let mut stalls = 0;
    for start in (0..14_000).step_by(20) {
        let mut it = bound_and_silent(members, start);
        if (0..members).all(|member| it.asked.iter().any(|asked| asked.0 == member)) {
            match ticks {
                true => it.takes("stalls 2500"),
                false => it.now = it.now + Duration::from_millis(2_500),
            }
            for step in steps {
                it.takes(step);
            }
            assert!(it.ended.is_empty(), "{steps:?} after {start} ms");
            stalls += 1;
        }
    }
    assert!(stalls > 0, "{steps:?}");
}

/// The same if the quorum's own look at the lock was due during the stall, or if the loss of one part is read before the
/// answers of the others.
#[test]
fn a_bound_lock_outlasts_a_stall_whatever_is_read_first() {
    for event in ["answers 1", "loses 1", "cut 1", "down 1"] {
        outlasts_stalls(3, false, &[event, "answers 2", "answers 3"]);
    }
}

/// But what a caller has seen is final.
#[test]
fn a_bound_lock_that_a_caller_has_seen_over_stays_over() {
    let mut seen = 0;
    for start in (0..14_000).step_by(20) {
        let mut it = bound_and_silent(3, start);
        it.now = it.now + Duration::from_millis(2_500);
        if it.quorum.remaining(TWO, it.now).is_zero() {
            for member in 1..=3 {
                it.takes(&format!("answers {member}"));
                assert_eq!(it.quorum.remaining(TWO, it.now), Duration::ZERO);
            }
            it.handle(Event::Tick);
            it.takes("passes 200");
            assert_eq!(it.ended, [Loss::LeaseEnded], "after {start} ms");
            seen += 1;
        }
    }
    assert!(seen > 0);
}

/// Nor does a member change that whose part has not confirmed the fence of the lock when this process stops.
#[test]
fn a_bound_lock_that_a_caller_has_seen_over_stays_over_while_a_part_is_raised() {
    let mut seen = 0;
    for running in (50..1_200).step_by(50) {
        let mut it = Client::new(3, false);
        for step in [
            "connected",
            "silent 2",
            "lock ever bound=3000",
            "silent 1",
            "passes 300",
        ] {
            it.takes(step);
        }
        // Member 2 grants, and does not answer when its fence is raised.
        let at = it.asked.iter().position(|asked| asked.0 == 1).unwrap();
        let (_, asked) = it.asked.remove(at).unwrap();
        assert!(asked.starts_with("RLOCK.ACQUIRE"), "{asked}");
        let reply = it.members[1].reply(&asked);
        let (connection, bytes) = (it.members[1].connection.unwrap(), reply.as_bytes());
        it.handle(Event::Received { connection, bytes });
        it.takes(&format!("passes {running}"));
        it.now = it.now + Duration::from_millis(2_800 - running);
        if it.ended.is_empty() && it.quorum.remaining(TWO, it.now).is_zero() {
            seen += 1;
            it.takes("answers 2");
            assert_eq!(
                it.quorum.remaining(TWO, it.now),
                Duration::ZERO,
                "{running}"
            );
        }
    }
    assert!(seen > 0);
}

/// Two of five have ended their parts. That is read before some or all answers of the others.
#[test]
fn a_bound_lock_that_a_majority_holds_outlasts_a_stall_whatever_is_read_first() {
    for steps in [
        // In these orders it always did.
        "answers 2, answers 3, answers 4, answers 5, loses 1, loses 2",
        "answers 3, answers 4, answers 5, loses 1, loses 2",
        "answers 2, answers 3, answers 4, loses 1, loses 2, answers 5",
        "answers 3, loses 1, loses 2, answers 4, answers 5",
        "loses 1, loses 2, answers 3, answers 4, answers 5",
    ] {
        let steps: Vec<_> = steps.split(", ").collect();
        outlasts_stalls(5, false, &steps);
    }
}

/// The timers fire first, then the loss of one of three is read, then the answers of the others.
#[test]
fn a_bound_lock_outlasts_a_stall_if_a_tick_and_a_loss_come_before_the_answers() {
    for event in ["loses 1", "answers 1"] {
        outlasts_stalls(3, true, &[event, "answers 2", "answers 3"]);
    }
}

/// Only the members' answers to the extension arrive.
#[test]
fn a_re_entry_during_an_extension_shortens_no_lease() {
    let mut it = plays(
        "holds
        passes 2000
        silent 123
        extend 2 60000 : 123 RENEW 60000
        lock
        passes 4900 : call 4: granted 51; 123 RENEW 60000",
    );
    for (at, asked) in std::mem::take(&mut it.asked) {
        assert_ne!(asked, "RLOCK.RENEW k o 30000");
        it.answers(at, &asked);
    }
    assert!(it.held().0 > Duration::from_secs(45));
}

/// Each member answers within 45 ms: how long an answer is waited for depends on the lease.
#[test]
fn a_short_longest_time_makes_no_member_slow() {
    let mut it = plays("silent 123\n lock max_hold=400 ever : 123 ACQUIRE 400");
    let mut late = VecDeque::new();
    for ms in 0..200 {
        it.takes("passes 1");
        late.extend(it.asked.drain(..).map(|asked| (ms + 45, asked)));
        while let Some((_, (at, asked))) = late.pop_front_if(|(due, _)| *due <= ms) {
            it.answers(at, &asked);
        }
    }
    let done = it.done();
    assert!(done.contains("call 2: granted 51"), "{done}");
    plays(
        "# Nor is the turn given up sooner.
        taken 23
        lock max_hold=2000 ever : 123 ACQUIRE 2000; 2 ACQUIRE 2000 WAIT 0
        passes 10000",
    );
}

/// The guard ends a margin before others may have the lock. Its own end, or another call of its owner, does not wait.
#[test]
fn nobody_has_the_lock_before_the_margin_is_over() {
    for terms in [
        "fixed=3000 margin=1000",
        "lease=3000 max_hold=3000 margin=1000",
    ] {
        let script = format!(
            "connected
            lock {terms} : 123 ACQUIRE 3000; 23 RENEW 3000 FENCE 51; call 2: granted 51
            passes 1900
            passes 100 : over 2: its lease ended"
        );
        let mut it = plays(&script);
        it.plays("passes 850");
        it.plays("passes 150 : 321 RELEASE FENCE 51");
        plays(
            &(script.clone()
                + "\nrelease 2 : call 3: the lock was lost: its lease ended; 321 RELEASE FENCE 51"),
        );
        let mut it = plays(&script);
        it.takes("lock");
        let done = it.done();
        assert!(done.contains("RELEASE FENCE 51"), "{done}");
    }
    // It was not ended by the clock: others may have it already.
    plays(
        "holds lease=3000 margin=1000
        taken 12
        loses 12 : 1 ACQUIRE 3000; over 2: the server ended it; 3 RELEASE FENCE 51",
    );
}

/// A member that does not hold it, or does not count yet, is free as well.
#[test]
fn a_release_counts_the_members_that_have_nothing_of_it() {
    plays(
        "connected
        taken 3
        lock fixed=30000 : 123 ACQUIRE 30000; 2 RENEW 30000 FENCE 51; call 2: granted 51
        down 2
        release 2 : 1 RELEASE FENCE 51; call 3: done
        # It grants, and does not raise the fence.
        connected
        says 3 RLOCK.RENEW -LOADING soon
        lock : 123 ACQUIRE 30000; 23 RENEW 30000 FENCE 51; call 2: granted 51
        down 2
        release 2 : 1 RELEASE FENCE 51
        says 3 nothing
        passes 1000 : 3 RENEW 30000 FENCE 51; 3 RELEASE FENCE 51; call 3: done",
    );
}

/// The clean-up at a member that does not count may take as long as a lease. A release ends after the retry timeout.
#[test]
fn a_release_does_not_wait_for_the_clean_up_of_others() {
    let mut it = plays(
        "connected any_grace
        silent 3
        lock ever lease=600000 : 123 ACQUIRE 600000; 2 RENEW 600000 FENCE 51; call 2: granted 51",
    );
    for step in ["down 3", "down 2", "release 2", "passes 9900"] {
        it.takes(step);
        assert!(!it.done().contains("call 3"), "{step}");
    }
    it.takes("passes 200");
    let done = it.done();
    assert!(done.contains("call 3: no usable answer"), "{done}");
}

/// Nothing of it is renewed for longer while its margin runs.
#[test]
fn a_lost_lock_is_not_extended_in_its_margin() {
    let mut it = plays("holds lease=30000 margin=10000\n silent 12");
    it.takes("passes 20500");
    let done = it.done();
    assert!(done.ends_with("over 2: its lease ended"), "{done}");
    it.plays("extend 2 60000 : call 3: the lock was lost: its lease ended");
    assert_eq!(it.held(), (Duration::ZERO, vec![]));
}

/// A bound lock of three members. The answers of the second one do not come any more, though it has what it had. The release
/// begins at the very moment at which that part is over by the clock of this client; the third member dies then.
#[test]
fn a_release_is_not_done_while_a_majority_may_still_have_the_lock() {
    for terms in [
        "lease=3000 margin=1000",
        "fixed=3000 margin=1000",
        "lease=3000 margin=1000 bound=3000",
    ] {
        let mut it = plays(&format!("holds {terms}"));
        it.takes("silent 2");
        it.takes("passes 500");
        it.takes("extend 2 3000");
        it.done();
        let mut end = None;
        for _ in 0..4000 {
            let left = it.quorum.holding(it.now, TWO);
            let two = left.iter().find(|it| it.0 == "h2:1").map(|it| it.1);
            match two {
                Some(left) if left <= Duration::from_millis(2) => {
                    end = Some(left);
                    break;
                }
                None => break,
                _ => it.takes("passes 1"),
            }
        }
        let Some(left) = end else { continue };
        it.now = it.now + left;
        it.members[2].is_silent = true;
        it.takes("release 2");
        let mut done = it.done();
        it.takes("down 3");
        it.takes("passes 400");
        done += &it.done();
        assert!(it.members[1].is_held && it.members[2].is_held);
        assert!(!done.contains("call 4: done"), "{terms}: {done}");
    }
}

/// A second call of the owner enters the hold as it is being lost, and then takes the lock again.
#[test]
fn what_was_entered_as_it_was_lost_is_taken_again() {
    let mut it = plays("holds lease=3000 margin=1000\n silent 23");
    it.takes("passes 1500");
    it.takes("lock lease=30000 ever");
    it.takes("passes 700");
    it.takes("answers 23");
    it.takes("up 23");
    it.takes("passes 5000");
    it.takes("release 3");
    it.takes("drop 2");
    it.takes("passes 30000");
    assert!(it.quorum.is_empty());
    assert!(it.members.iter().all(|it| !it.is_held));
}

/// One member has ended it, and somebody else has that one. The second one does not answer any more: the lock is lost by the
/// clock, a margin before it is free there. The first one must not be free before, or the other one has a majority.
#[test]
fn the_margin_is_waited_for_although_a_minority_has_ended_it() {
    for (terms, step) in [
        ("lease=3000 margin=1000", "silent 2"),
        ("lease=30000 margin=1000 bound=3000", "down 2"),
    ] {
        let mut it = plays(&format!("holds {terms}"));
        it.takes("taken 3");
        it.takes("loses 3");
        it.takes(step);
        let mut log = it.done();
        for _ in 0..400 {
            it.takes("passes 10");
            log = it.done();
            if log.contains("over 2") {
                break;
            }
        }
        assert!(log.contains("over 2"), "{log}");
        it.takes("passes 900");
        log += &it.done();
        assert!(!log.contains("RELEASE"), "{terms}: {log}");
    }
}
