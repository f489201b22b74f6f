//! A host in Rust: sockets and a clock around a machine, and a record of the exchange.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rlock_embed::Machine;

use crate::form::{Action, Event, NONE, configuration, read};

/// One exchange with a machine.
pub(crate) struct Step {
    pub(crate) now: u64,
    pub(crate) event: Event,
    pub(crate) output: Vec<u8>,
}

/// A client of a server.
pub(crate) struct Host {
    machine: Machine,
    sockets: BTreeMap<u64, TcpStream>,
    begun: Instant,
    deadline: u64,
    last: u64,
    /// The actions for callers that were not read yet.
    told: Vec<Action>,
    pub(crate) configuration: Event,
    pub(crate) steps: Vec<Step>,
}

impl Host {
    pub(crate) fn new(url: &str, name: &str) -> Self {
        let configuration = configuration(url, name);
        Self {
            machine: Machine::new(&configuration.bytes).unwrap(),
            sockets: BTreeMap::new(),
            begun: Instant::now(),
            deadline: NONE,
            last: 0,
            told: Vec::new(),
            configuration,
            steps: Vec::new(),
        }
    }

    fn now(&self) -> u64 {
        // A clock that has run for an hour.
        3_600_000_000_000 + u64::try_from(self.begun.elapsed().as_nanos()).unwrap()
    }

    pub(crate) fn handle(&mut self, event: Event) {
        let now = self.now();
        let output = self.machine.handle(now, &event.bytes, Vec::new()).unwrap();
        let (deadline, actions) = read(&output);
        self.deadline = deadline;
        self.steps.push(Step { now, event, output });
        for action in actions {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Connect {
                connection,
                host,
                port,
                ..
            } => match TcpStream::connect((host, port)) {
                Ok(socket) => {
                    socket.set_nonblocking(true).unwrap();
                    self.sockets.insert(connection, socket);
                    self.handle(Event::of(10).u64("connection", connection));
                }
                Err(error) => self.ended(connection, &error.to_string()),
            },
            Action::Write { connection, bytes } => {
                let socket = self.sockets.get_mut(&connection).expect("it is open");
                // A failure shows when the socket is read.
                let _ = socket.write_all(&bytes);
            }
            Action::Close { connection } => drop(self.sockets.remove(&connection)),
            told => self.told.push(told),
        }
    }

    fn ended(&mut self, connection: u64, text: &str) {
        self.sockets.remove(&connection);
        let event = Event::of(12).u64("connection", connection);
        self.handle(event.u8("failure", 0).bytes("text", text.as_bytes()));
    }

    /// Reads what has arrived, and lets time pass.
    pub(crate) fn look(&mut self) {
        let mut buffer = [0; 65536];
        for connection in self.sockets.keys().copied().collect::<Vec<_>>() {
            let Some(socket) = self.sockets.get_mut(&connection) else {
                continue;
            };
            match socket.read(&mut buffer) {
                Ok(0) => self.ended(connection, "the server has closed it"),
                Ok(count) => {
                    hide_path(&mut buffer[..count]);
                    let event = Event::of(11).u64("connection", connection);
                    self.handle(event.bytes("bytes", &buffer[..count]));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => self.ended(connection, &error.to_string()),
            }
        }
        if self.deadline <= self.now() {
            self.handle(Event::of(16));
        }
    }

    /// The first action for callers that matches.
    pub(crate) fn told(&mut self, what: &str, is_meant: impl Fn(&Action) -> bool) -> Action {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.told.iter().position(&is_meant) {
                return self.told.remove(at);
            }
            let told = &self.told;
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "{what}: {told:?}"
            );
            self.look();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Begins a call.
    pub(crate) fn call(&mut self, kind: u8, event: impl FnOnce(Event) -> Event) -> u64 {
        self.last += 1;
        let call = self.last;
        self.handle(event(Event::of(kind).u64("call", call)));
        call
    }

    /// Starts a call for locks.
    pub(crate) fn ask(&mut self, keys: &[&str], mode: (u8, u32, u32), wait: u64) -> u64 {
        self.call(2, |event| asking(event, keys, mode, wait))
    }

    /// Campaigns with that value.
    pub(crate) fn campaign(&mut self, key: &str, value: &str) -> u64 {
        let call = self.call(19, |event| {
            let event = asking(event, &[key], (0, 1, 0), NONE);
            event.bytes("value", value.as_bytes())
        });
        self.granted(call);
        call
    }

    pub(crate) fn lock(&mut self, keys: &[&str], mode: (u8, u32, u32)) -> u64 {
        let call = self.ask(keys, mode, NONE);
        self.granted(call);
        call
    }

    /// The fences of a grant.
    pub(crate) fn granted(&mut self, call: u64) -> Vec<(String, u64)> {
        let is_meant =
            |it: &Action| matches!(it, Action::Granted { call: told, .. } if *told == call);
        match self.told("a grant", is_meant) {
            Action::Granted { fences, .. } => fences,
            other => panic!("{other:?}"),
        }
    }

    /// How a call without a grant has ended: `refused`, `done`, or the code of an error.
    pub(crate) fn end(&mut self, call: u64) -> String {
        let end = self.told("an end", |it| match it {
            Action::Refused { call: told }
            | Action::Done { call: told }
            | Action::Failed { call: told, .. } => *told == call,
            _ => false,
        });
        match end {
            Action::Refused { .. } => "refused".to_owned(),
            Action::Done { .. } => "done".to_owned(),
            Action::Failed { code, .. } => code,
            other => panic!("{other:?}"),
        }
    }

    /// The next change for an observer, or the answer to a question: the fence and the value.
    pub(crate) fn leader(&mut self, call: u64) -> Option<(u64, String)> {
        let is_meant =
            |it: &Action| matches!(it, Action::Leader { call: told, .. } if *told == call);
        match self.told("a leader", is_meant) {
            Action::Leader { leader, .. } => leader.map(|(fence, value, ..)| (fence, value)),
            other => panic!("{other:?}"),
        }
    }

    /// Whether it received the leader and has not read it.
    pub(crate) fn is_told_of(&self, call: u64) -> bool {
        let is_of = |it: &Action| matches!(it, Action::Leader { call: told, .. } if *told == call);
        self.told.iter().any(is_of)
    }

    pub(crate) fn release(&mut self, guard: u64) -> String {
        let call = self.call(3, |event| event.u64("guard", guard).u64("least", NONE));
        self.end(call)
    }

    pub(crate) fn is_valid(&self, guard: u64) -> bool {
        self.machine.remaining(guard, self.now()) > 0
    }

    /// Ends the connections like a failing network.
    pub(crate) fn cut(&mut self) {
        for connection in self.sockets.keys().copied().collect::<Vec<_>>() {
            self.ended(connection, "cut");
        }
    }
}

/// The fields of a request for locks.
pub(crate) fn asking(
    event: Event,
    keys: &[&str],
    (mode, permits, limit): (u8, u32, u32),
    wait: u64,
) -> Event {
    let event = event
        .u8("owner", 0)
        .u64("activity", 0)
        .bytes("name", b"")
        .list("keys", keys);
    let event = event
        .u8("mode", mode)
        .u32("permits", permits)
        .u32("limit", limit);
    let event = event
        .u64("wait", wait)
        .u64("lease", 30_000)
        .u8("renewed", 1);
    event
        .u64("max hold", NONE)
        .u64("bound", NONE)
        .u16("replicas", 0)
}

/// The path of the server's module is not part of the record.
fn hide_path(bytes: &mut [u8]) {
    let begin = b"$4\r\npath\r\n$";
    let Some(at) = bytes.windows(begin.len()).position(|it| it == begin) else {
        return;
    };
    let path = bytes[at..].split_mut(|byte| *byte == b'\r').nth(3);
    path.expect("a path")
        .iter_mut()
        .skip(1)
        .for_each(|byte| *byte = b'x');
}
