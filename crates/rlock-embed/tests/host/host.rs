//! A host in Rust: sockets and a clock around a machine, and a record of the exchange.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rlock_embed::Machine;
use rlock_embed::format::{Data, Fence, NONE};
use rlock_embed::messages::{
    Access, Action, Event, Fault, Mode, Owner, Owning, Terms, Together, Wanted, read_output,
};

use crate::configuration::configured;

/// One exchange with a machine.
pub(crate) struct Step {
    pub(crate) now: u64,
    pub(crate) event: Vec<u8>,
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
    told: Vec<Action<'static>>,
    pub(crate) configuration: Vec<u8>,
    pub(crate) steps: Vec<Step>,
}

impl Host {
    pub(crate) fn new(url: &str, name: &str) -> Self {
        let configuration = configured(&[url], Together::Single, name);
        Self {
            machine: Machine::new(&configuration).unwrap(),
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

    pub(crate) fn handle(&mut self, event: Event<'_>) {
        let (now, event) = (self.now(), event.to_bytes());
        let output = self.machine.handle(now, &event, Vec::new()).unwrap();
        // What callers have not read yet stays valid.
        let (deadline, actions) = read_output(output.clone().leak()).unwrap();
        self.deadline = deadline;
        self.steps.push(Step { now, event, output });
        for action in actions {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action<'static>) {
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
                    self.handle(Event::Opened { connection });
                }
                Err(error) => self.ended(connection, &error.to_string()),
            },
            Action::Write { connection, bytes } => {
                let socket = self.sockets.get_mut(&connection).expect("it is open");
                // A failure shows when the socket is read.
                let _ = socket.write_all(bytes.0);
            }
            Action::Close { connection } => drop(self.sockets.remove(&connection)),
            told => self.told.push(told),
        }
    }

    fn ended(&mut self, connection: u64, text: &str) {
        self.sockets.remove(&connection);
        let failure = Fault::Io;
        self.handle(Event::Ended {
            connection,
            failure,
            text,
        });
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
                    let bytes = Data(&buffer[..count]);
                    self.handle(Event::Received { connection, bytes });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => self.ended(connection, &error.to_string()),
            }
        }
        if self.deadline <= self.now() {
            self.handle(Event::Tick {});
        }
    }

    /// The first action for callers that matches.
    pub(crate) fn told(
        &mut self,
        what: &str,
        is_meant: impl Fn(&Action<'_>) -> bool,
    ) -> Action<'static> {
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
    pub(crate) fn call<'e>(&mut self, event: impl FnOnce(u64) -> Event<'e>) -> u64 {
        self.last += 1;
        let call = self.last;
        self.handle(event(call));
        call
    }

    /// Starts a call for locks.
    pub(crate) fn ask(&mut self, keys: &[&str], mode: Mode, wait: Option<Duration>) -> u64 {
        let (wanted, terms) = asking(keys, mode);
        self.call(|call| Event::Lock {
            call,
            wanted,
            wait,
            terms,
        })
    }

    pub(crate) fn asks_to_lead(&mut self, key: &str, value: &[u8], wait: Option<Duration>) -> u64 {
        let (wanted, terms) = asking(&[key], EXCLUSIVE);
        self.call(|call| Event::Campaign {
            call,
            wanted,
            wait,
            terms,
            value,
        })
    }

    /// Campaigns with that value.
    pub(crate) fn campaign(&mut self, key: &str, value: &str) -> u64 {
        let call = self.asks_to_lead(key, value.as_bytes(), None);
        self.granted(call);
        call
    }

    pub(crate) fn lock(&mut self, keys: &[&str], mode: Mode) -> u64 {
        let call = self.ask(keys, mode, None);
        self.granted(call);
        call
    }

    /// The fences of a grant.
    pub(crate) fn granted(&mut self, call: u64) -> Vec<(&'static [u8], Fence)> {
        let is_meant =
            |it: &Action<'_>| matches!(it, Action::Granted { call: told, .. } if *told == call);
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
            Action::Failed { code, .. } => code.to_owned(),
            other => panic!("{other:?}"),
        }
    }

    /// The next change for an observer, or the answer to a question: the fence and the value.
    pub(crate) fn leader(&mut self, call: u64) -> Option<(Fence, &'static [u8])> {
        let is_meant =
            |it: &Action<'_>| matches!(it, Action::Leader { call: told, .. } if *told == call);
        match self.told("a leader", is_meant) {
            Action::Leader { leader, .. } => leader.map(|it| (it.fence, it.value)),
            other => panic!("{other:?}"),
        }
    }

    /// Whether it received the leader and has not read it.
    pub(crate) fn is_told_of(&self, call: u64) -> bool {
        let is_of =
            |it: &Action<'_>| matches!(it, Action::Leader { call: told, .. } if *told == call);
        self.told.iter().any(is_of)
    }

    pub(crate) fn release(&mut self, guard: u64) -> String {
        let least = None;
        let call = self.call(|call| Event::Release { call, guard, least });
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

pub(crate) const EXCLUSIVE: Mode = Mode {
    mode: Access::Exclusive,
    permits: 1,
    limit: 0,
};

/// What a request for locks asks for.
fn asking<'a>(keys: &[&'a str], mode: Mode) -> (Wanted<'a>, Terms) {
    let (owner, activity, name) = (Owning::New, 0, "");
    let wanted = Wanted {
        owner: Owner {
            owner,
            activity,
            name,
        },
        keys: keys.iter().map(|key| key.as_bytes()).collect(),
        mode,
    };
    let terms = Terms {
        lease: Duration::from_secs(30),
        renewed: true,
        max_hold: None,
        bound: None,
        replicas: 0,
        margin: Duration::ZERO,
    };
    (wanted, terms)
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
