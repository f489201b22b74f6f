//! An endpoint whose servers and clock the test simulates.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rlock_engine::endpoint::{
    Action, Change, ConnectionId, Endpoint, Event, Limits, Note, Outcome, Settings, To,
};
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::{Ask, Queueing, Terms, Value};
use rlock_engine::engine::{self, Id};
use rlock_engine::error::{Error, Failure};
use rlock_engine::wire::resp::{Command, Decoder, Frame};

pub(crate) struct Played {
    pub(crate) endpoint: Endpoint,
    now: u64,
    connections: Vec<ConnectionId>,
    /// The commands sent by each connection that are not yet answered.
    unanswered: BTreeMap<usize, VecDeque<String>>,
    calls: Vec<Id>,
    observers: Vec<Id>,
    pub(crate) proofs: Vec<Arc<Proof>>,
    actions: Vec<String>,
    /// The failures that the user should see.
    news: Vec<String>,
}

pub(crate) const RESPONSE: u64 = 5000;
const MINUTE: Queueing = Queueing::AtMost(Duration::from_secs(60));

impl Played {
    pub(crate) fn new(url: &str) -> Self {
        Self::with(url, false)
    }

    pub(crate) fn with(url: &str, is_probe: bool) -> Self {
        let settings = Settings {
            is_probe,
            limits: Limits {
                response: Duration::from_millis(RESPONSE),
                ..Limits::default()
            },
            library: ("lib".to_owned(), "1".to_owned()),
            channel: "c".to_owned(),
            seed: 1,
            ..Settings::default()
        };
        Self {
            endpoint: Endpoint::new(url.parse().unwrap(), settings),
            now: 1_000_000_000,
            connections: Vec::new(),
            unanswered: BTreeMap::new(),
            calls: Vec::new(),
            observers: Vec::new(),
            proofs: Vec::new(),
            actions: Vec::new(),
            news: Vec::new(),
        }
    }

    /// Connected to one server by connection 1, without open replies.
    pub(crate) fn connected() -> Self {
        let mut it = Self::new("redis://h:1");
        it.start();
        it.greeted(1);
        it.answers(1, "RLOCK.HELP", "*0\r\n");
        assert_eq!(it.actions().pop().as_deref(), Some("call 1: done"));
        it
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    pub(crate) fn handle(&mut self, event: Event<'_>) {
        self.endpoint.handle(self.now(), event);
        self.listen();
    }

    /// The actions since the last call.
    pub(crate) fn actions(&mut self) -> Vec<String> {
        std::mem::take(&mut self.actions)
    }

    /// The failures since the last call that the user should see.
    pub(crate) fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// Whether such a command was sent since the last call.
    pub(crate) fn has_sent(&mut self, command: &str) -> bool {
        self.actions().iter().any(|line| line.contains(command))
    }

    /// The actions since the last call, without the commands that were sent.
    pub(crate) fn did(&mut self) -> Vec<String> {
        let actions = self.actions().into_iter();
        actions
            .filter(|line| !line.starts_with(|first: char| first.is_ascii_digit()))
            .collect()
    }

    fn listen(&mut self) {
        while let Some(action) = self.endpoint.poll_action() {
            let line = match action {
                Action::Connect {
                    connection,
                    address,
                } => {
                    self.connections.push(connection);
                    format!("connect {} to {address}", self.connections.len())
                }
                Action::Write { connection } => {
                    self.sent(connection);
                    continue;
                }
                Action::Close { connection } => format!("close {}", self.number(connection)),
                Action::Resolve { call, outcome } => {
                    let outcome = self.ended_with(outcome);
                    format!("call {}: {outcome}", self.call(call))
                }
                Action::Observed { observer, change } => {
                    let number = self.observers.iter().position(|it| *it == observer);
                    format!("observer {}: {}", number.unwrap() + 1, change_text(change))
                }
                Action::Over { why, .. } => format!("over: {why}"),
                Action::Flushed { failed, .. } => match failed {
                    None => "flushed".to_owned(),
                    Some(error) => format!("flushed: {error}"),
                },
                Action::Note(Note::NoRoutes { failure, is_news }) => {
                    self.news.extend(is_news.then(|| failure.to_string()));
                    format!("no routes: {failure}")
                }
                Action::Note(Note::NotConnected {
                    address,
                    failure,
                    is_news,
                }) => {
                    let reason = failure.reason(&address);
                    self.news
                        .extend(is_news.then(|| format!("{address}: {reason}")));
                    format!("not connected: {failure}")
                }
                Action::Note(Note::NotRenewed { claims, reason }) => {
                    format!("not renewed: {}: {reason}", claims.label())
                }
                Action::Note(Note::AtRisk {
                    claims,
                    since,
                    left,
                }) => {
                    let key = claims.label();
                    format!("at risk: {key}: {since:?}, {left:?} left")
                }
                Action::Note(Note::UnknownMessage(_)) => "unknown message".to_owned(),
                Action::Note(_) | Action::AtRisk { .. } => continue,
            };
            self.actions.push(line);
        }
    }

    fn ended_with(&mut self, outcome: Outcome) -> String {
        match outcome {
            Outcome::Lock(engine::Outcome::Granted(proof, _)) => {
                self.proofs.push(Arc::clone(&proof));
                format!("granted {}", proof.fence())
            }
            Outcome::Lock(engine::Outcome::Refused) => "refused".to_owned(),
            Outcome::Lock(engine::Outcome::Done) => "done".to_owned(),
            Outcome::Lock(engine::Outcome::Failed(error)) | Outcome::Failed(error) => {
                format!("{error}")
            }
            Outcome::Answer(frame) => format!("{frame:?}"),
        }
    }

    /// Reads the output of a connection.
    fn sent(&mut self, connection: ConnectionId) {
        let number = self.number(connection);
        let mut output = Vec::new();
        self.endpoint.take_output(connection, &mut output);
        for words in commands(&output) {
            self.actions.push(format!("{number} {words}"));
            self.unanswered.entry(number).or_default().push_back(words);
        }
    }

    fn number(&self, connection: ConnectionId) -> usize {
        let place = self.connections.iter().position(|it| *it == connection);
        place.unwrap() + 1
    }

    fn call(&self, call: Id) -> usize {
        self.calls.iter().position(|it| *it == call).unwrap() + 1
    }

    fn connection(&self, number: usize) -> ConnectionId {
        self.connections[number - 1]
    }

    fn next_call(&mut self) -> Id {
        let call = self.endpoint.next_id();
        self.calls.push(call);
        call
    }

    pub(crate) fn start(&mut self) {
        let call = self.next_call();
        self.handle(Event::Start { call });
    }

    /// The number of connections that were opened.
    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn opens(&mut self, number: usize) {
        let connection = self.connection(number);
        self.handle(Event::Opened { connection });
    }

    pub(crate) fn receives(&mut self, number: usize, bytes: impl AsRef<[u8]>) {
        let (connection, bytes) = (self.connection(number), bytes.as_ref());
        self.handle(Event::Received { connection, bytes });
    }

    pub(crate) fn ends(&mut self, number: usize) {
        let connection = self.connection(number);
        let failure = Failure::Io("cut".to_owned());
        self.handle(Event::Ended {
            connection,
            failure,
        });
    }

    /// The last connection ends, and the next one is greeted.
    pub(crate) fn reconnects(&mut self) {
        let number = self.connections();
        self.ends(number);
        self.passes(20);
        self.greeted(number + 1);
    }

    /// Opens a connection, and answers its greeting without any refusal.
    pub(crate) fn greeted(&mut self, number: usize) {
        self.greeted_but(number, "nothing", "");
    }

    /// The same, but one command is answered with `reply`.
    pub(crate) fn greeted_but(&mut self, number: usize, command: &str, reply: &str) {
        self.opens(number);
        let reply = self.reply_but(number, command, reply);
        self.receives(number, reply);
    }

    /// A server's replies to all unanswered commands of a connection.
    fn reply_but(&mut self, number: usize, command: &str, reply: &str) -> String {
        let unanswered = self.unanswered.remove(&number).unwrap_or_default();
        let replies = unanswered.iter().map(|asked| match asked {
            asked if asked.starts_with(command) => reply.to_owned(),
            asked => usual(number, asked),
        });
        replies.collect()
    }

    /// Answers each unanswered command.
    pub(crate) fn answers_each(&mut self, number: usize, reply: impl FnMut(&String) -> String) {
        let unanswered = self.unanswered.remove(&number).unwrap_or_default();
        let replies: String = unanswered.iter().map(reply).collect();
        self.receives(number, replies);
    }

    /// Answers the oldest unanswered command, which must be this one.
    pub(crate) fn answers(&mut self, number: usize, command: &str, reply: impl AsRef<[u8]>) {
        let asked = self.unanswered.entry(number).or_default().pop_front();
        let asked = asked.unwrap_or_default();
        assert!(asked.starts_with(command), "{asked} is not {command}");
        self.receives(number, reply);
    }

    /// Lets time pass; each timer fires when it is due.
    pub(crate) fn passes(&mut self, ms: u64) {
        self.passes_nanos(ms * 1_000_000);
    }

    pub(crate) fn passes_nanos(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while let Some(due) = self.endpoint.next_deadline()
            && due.nanos() <= end
        {
            assert!(due.nanos() > self.now, "something is always due");
            self.now = due.nanos();
            self.handle(Event::Tick);
        }
        self.now = end;
    }

    /// The process stalls; its timers fire late.
    pub(crate) fn stalls(&mut self, ms: u64) {
        self.is_paused(ms);
        self.handle(Event::Tick);
    }

    /// The process stalls, and reads before its timers fire.
    pub(crate) fn is_paused(&mut self, ms: u64) {
        self.now += ms * 1_000_000;
    }

    /// Asks for a lock, and waits up to a minute.
    pub(crate) fn asks(&mut self, key: &str) {
        self.asks_on(key, Terms::new());
    }

    pub(crate) fn asks_on(&mut self, key: &str, terms: Terms) {
        self.asks_for(key, &[], terms);
    }

    pub(crate) fn asks_for(&mut self, key: &str, rest: &[&str], terms: Terms) {
        let owner = format!("o{}", self.calls.len() + 1);
        self.asks_as(&owner, key, rest, terms);
    }

    pub(crate) fn asks_as(&mut self, owner: &str, key: &str, rest: &[&str], terms: Terms) {
        let rest: Vec<_> = rest.iter().map(|key| key.as_bytes().into()).collect();
        let owner = Owner::new(owner).unwrap();
        let claims = Claims::new(owner, key.as_bytes(), &rest);
        self.asks_with(claims, Ask::Exclusive, None, terms, MINUTE);
    }

    /// Asks for a shared hold as `o`, or to make it exclusive.
    pub(crate) fn asks_mode(&mut self, key: &str, ask: Ask) {
        let claims = Claims::new(Owner::new("o").unwrap(), key.as_bytes(), &[]);
        self.asks_with(claims, ask, None, Terms::new(), MINUTE);
    }

    pub(crate) fn asks_mode_on(&mut self, key: &str, ask: Ask, terms: Terms) {
        let claims = Claims::new(Owner::new("o").unwrap(), key.as_bytes(), &[]);
        self.asks_with(claims, ask, None, terms, MINUTE);
    }

    /// Asks for a lock as `o`, and waits without limit.
    pub(crate) fn waits(&mut self, key: &str) {
        let claims = Claims::new(Owner::new("o").unwrap(), key.as_bytes(), &[]);
        let wait = Queueing::Unlimited;
        self.asks_with(claims, Ask::Exclusive, None, Terms::new(), wait);
    }

    /// Asks for a lock as `o`, and does not wait.
    pub(crate) fn tries(&mut self, key: &str, terms: Terms) {
        let claims = Claims::new(Owner::new("o").unwrap(), key.as_bytes(), &[]);
        self.asks_with(claims, Ask::Exclusive, None, terms, Queueing::Try);
    }

    /// Asks for a lock as `o`, and waits for up to a second.
    pub(crate) fn waits_a_second(&mut self, key: &str, terms: Terms) {
        let claims = Claims::new(Owner::new("o").unwrap(), key.as_bytes(), &[]);
        let wait = Queueing::AtMost(Duration::from_secs(1));
        self.asks_with(claims, Ask::Exclusive, None, terms, wait);
    }

    /// Asks for a lock as `o`, with a value to publish.
    pub(crate) fn campaigns(&mut self, key: &str, value: &str) {
        let claims = Claims::new(Owner::new("o").unwrap(), key.as_bytes(), &[]);
        let value = Value::new(value.as_bytes()).unwrap();
        self.asks_with(claims, Ask::Exclusive, Some(value), Terms::new(), MINUTE);
    }

    fn asks_with(
        &mut self,
        claims: Claims,
        ask: Ask,
        value: Option<Value>,
        terms: Terms,
        queueing: Queueing,
    ) {
        let call = self.next_call();
        self.handle(Event::Call(engine::Event::Ask {
            call,
            claims,
            ask,
            value,
            terms,
            queueing,
        }));
    }

    /// Releases the last grant.
    pub(crate) fn releases(&mut self) {
        self.releases_mode(Ask::Exclusive);
    }

    /// Ends a guard of the last grant.
    pub(crate) fn releases_mode(&mut self, ask: Ask) {
        let call = self.next_call();
        let hold = self.proofs.last().unwrap().hold;
        self.handle(Event::Call(engine::Event::Release { call, hold, ask }));
    }

    /// Drops a guard of the last grant.
    pub(crate) fn drops_mode(&mut self, ask: Ask) {
        let hold = self.proofs.last().unwrap().hold;
        self.handle(Event::Call(engine::Event::Leave { hold, ask }));
    }

    /// A guard of the last grant becomes two.
    pub(crate) fn splits(&mut self) {
        let hold = self.proofs.last().unwrap().hold;
        self.handle(Event::Call(engine::Event::Split { hold }));
    }

    /// Two guards of the last grant become one.
    pub(crate) fn merges(&mut self) {
        let hold = self.proofs.last().unwrap().hold;
        self.handle(Event::Call(engine::Event::Merge { hold }));
    }

    /// A guard of the last grant needs only shared mode from now on.
    pub(crate) fn downgrades(&mut self) {
        let call = self.next_call();
        let hold = self.proofs.last().unwrap().hold;
        self.handle(Event::Call(engine::Event::Downgrade { call, hold }));
    }

    /// The caller of the last grant was gone before it learned of that.
    pub(crate) fn misses(&mut self, call: usize, ask: Ask) {
        let (call, hold) = (self.calls[call - 1], self.proofs.last().unwrap().hold);
        self.handle(Event::Call(engine::Event::Untaken { call, hold, ask }));
    }

    /// When its last guard ends, the last grant is kept for this time.
    pub(crate) fn keeps(&mut self, seconds: u64) {
        let hold = self.proofs.last().unwrap().hold;
        let until = self.now() + Duration::from_secs(seconds);
        self.handle(Event::Call(engine::Event::Keep { hold, until }));
    }

    /// Asks for a report once nothing is left to clean up.
    pub(crate) fn flushes(&mut self) {
        let flush = self.endpoint.next_id();
        self.handle(Event::Call(engine::Event::Flush { flush }));
    }

    /// The client closes.
    pub(crate) fn leaves_all(&mut self) {
        self.handle(Event::Call(engine::Event::LeaveAll));
    }

    /// Extends the last grant.
    pub(crate) fn extends(&mut self, lease: Duration) {
        let call = self.next_call();
        let hold = self.proofs.last().unwrap().hold;
        self.handle(Event::Call(engine::Event::Extend { call, hold, lease }));
    }

    /// Publishes another value with the last grant.
    pub(crate) fn proclaims(&mut self, value: &str) {
        let call = self.next_call();
        let hold = self.proofs.last().unwrap().hold;
        let value = Value::new(value.as_bytes()).unwrap();
        self.handle(Event::Call(engine::Event::Proclaim { call, hold, value }));
    }

    pub(crate) fn observes(&mut self, key: &str) {
        let observer = self.endpoint.next_id();
        self.observers.push(observer);
        let key = key.as_bytes().into();
        self.handle(Event::Observe { observer, key });
    }

    pub(crate) fn stops_observing(&mut self, number: usize) {
        let observer = self.observers[number - 1];
        self.handle(Event::Unobserve { observer });
    }

    /// Asks a question that changes nothing, for up to ten seconds.
    pub(crate) fn queries(&mut self, key: &str) {
        self.questions("RLOCK.INFO", key, false);
    }

    /// Ends all holds, in up to ten seconds.
    pub(crate) fn forces(&mut self, key: &str) {
        self.questions("RLOCK.FORCE", key, true);
    }

    fn questions(&mut self, command: &str, key: &str, changes: bool) {
        let call = self.next_call();
        let mut command = Command::new(command);
        command.arg(key);
        self.handle(Event::Question {
            call,
            to: To::Key(key.as_bytes().into()),
            command,
            changes,
            limit: Some(Duration::from_secs(10)),
        });
    }

    pub(crate) fn abandons(&mut self, call: usize) {
        let call = self.calls[call - 1];
        self.handle(Event::Call(engine::Event::Abandon { call }));
    }
}

/// The commands in a client's output.
pub(crate) fn commands(output: &[u8]) -> Vec<String> {
    let mut decoder = Decoder::default();
    decoder.feed(output);
    let mut commands = Vec::new();
    while let Some(Frame::Array(words)) = decoder.next().unwrap() {
        let words: Option<Vec<_>> = words.into_iter().map(Frame::into_text).collect();
        commands.push(words.unwrap().join(" "));
    }
    commands
}

fn change_text(change: Result<Change, Error>) -> String {
    let change = match change {
        Ok(change) => change,
        Err(error) => return error.to_string(),
    };
    let leader = match change.leader {
        Some(it) => format!("{} {}", it.fence, String::from_utf8_lossy(&it.value)),
        None => "nobody".to_owned(),
    };
    match change.missed {
        true => format!("{leader}, missed"),
        false => leader,
    }
}

pub(crate) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

pub(crate) fn list(items: &[String]) -> String {
    format!("*{}\r\n{}", items.len(), items.concat())
}

pub(crate) fn push(items: &[&str]) -> String {
    let items: String = items.iter().map(|it| bulk(it)).collect();
    format!(">3\r\n{items}")
}

/// The reply of a server that refuses nothing.
pub(crate) fn usual(number: usize, asked: &str) -> String {
    let (first, rest) = asked.split_once(' ').unwrap_or((asked, ""));
    match (first, rest.split(' ').next().unwrap_or_default()) {
        ("HELLO", _) => "%2\r\n+role\r\n+master\r\n+mode\r\n+standalone\r\n".to_owned(),
        ("CLIENT", "INFO") => bulk(&format!("id={number} addr=a:{number} laddr=b:1 fd=8")),
        ("CLIENT", "KILL") => ":1\r\n".to_owned(),
        ("SUBSCRIBE", _) => format!(">3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(rest)),
        ("SSUBSCRIBE", _) => format!(">3\r\n{}{}:1\r\n", bulk("ssubscribe"), bulk(rest)),
        ("RLOCK.HELP", _) => "*0\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    }
}
