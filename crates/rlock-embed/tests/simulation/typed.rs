//! The machine in its own types: what it does, as actions of hosts. The encoding must say the same.
//!
//! This repeats `src/machine.rs` on purpose. If it called what the encoding calls, a field that is dropped there would be
//! missing on both sides, and nobody would notice.

use std::sync::Arc;
use std::time::Duration;

use rlock_embed::format::{Data, Fence, NONE, Value as Encoded, Writer};
use rlock_embed::messages::{
    self, Access, Ending, Event, Fault, Leader, Level, Owning, Transport, Wanted,
};
use rlock_engine::endpoint::{self, ConnectionId, Settings, To};
use rlock_engine::engine::Id;
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::terms::{Ask, Lease, Queueing, Terms, Value};
use rlock_engine::error::{Error, Failure, Loss};
use rlock_engine::servers::Address;
use rlock_engine::session::{Action, Call, Lock, Machine, Outcome};
use rlock_engine::wire::resp::{Command, Frame};

pub(crate) struct Typed {
    pub(crate) machine: Machine,
    id: String,
    owners: u64,
    /// Whether upgrades take a lost lock again. Hosts never do.
    retakes: bool,
}

impl Typed {
    /// With the settings of the configuration for tests.
    pub(crate) fn new(urls: &[&str], is_quorum: bool, name: &str, retakes: bool) -> Self {
        let first = name.bytes().next().unwrap_or(0);
        let hex = |from: u8| {
            let bytes = (0..16).map(|at| format!("{:02x}", first + from + at));
            bytes.collect::<String>()
        };
        let settings = Settings {
            name: Some(name.to_owned()),
            library: ("host".to_owned(), "1".to_owned()),
            channel: hex(16),
            seed: u64::from_le_bytes(std::array::from_fn(|at| first + at as u8)),
            ..Settings::default()
        };
        let servers = urls.iter().map(|it| it.parse().unwrap());
        let servers: Vec<_> = servers.collect();
        let mut machine = match is_quorum {
            true => Machine::of_members(servers, &settings, false).unwrap(),
            false => Machine::of(servers[0].clone(), settings).unwrap(),
        };
        machine.listen();
        Self {
            machine,
            id: format!("{name}:{}", hex(0)),
            owners: 0,
            retakes,
        }
    }

    /// The deadline and the actions after an event, in bytes.
    pub(crate) fn handle(&mut self, now: u64, event: &Event<'_>) -> Vec<u8> {
        let (now, mut actions) = (Instant::from_nanos(now), Writer::default());
        match event.starts() {
            Some(call) => self.begins(now, call, event, &mut actions),
            None => self.takes(now, event),
        }
        while let Some(action) = self.machine.poll_action() {
            self.does(action, &mut actions);
        }
        let deadline = self.machine.next_deadline();
        let mut output = Writer::default();
        output.put(&deadline.map_or(NONE, Instant::nanos));
        let mut output = output.into_bytes();
        output.extend(actions.into_bytes());
        output
    }

    /// The name of the owner of the next call for a lock.
    pub(crate) fn next_owner(&self, activity: Option<u64>) -> String {
        match activity {
            Some(activity) => format!("{}:a{activity}", self.id),
            None => Owner::numbered(&self.id, self.owners + 1)
                .as_str()
                .to_owned(),
        }
    }

    pub(crate) fn remaining(&self, guard: u64, now: u64) -> u64 {
        let left = self.machine.remaining(id(guard), Instant::from_nanos(now));
        left.as_nanos() as u64
    }

    fn begins(&mut self, now: Instant, call: u64, event: &Event<'_>, actions: &mut Writer) {
        let begun = match event {
            Event::Metrics { .. } => {
                return match self.machine.metrics() {
                    Some(it) => {
                        let all = [
                            it.grants,
                            it.waits,
                            it.losses,
                            it.late_renewals,
                            it.reconnects,
                        ];
                        answered(call, &all.map(|it| Frame::Integer(it as i64)), actions);
                    }
                    None => failed(
                        call,
                        &Error::OutOfRange {
                            argument: "call",
                            value: "metrics".to_owned(),
                            limit: "of a client without quorum".into(),
                        },
                        actions,
                    ),
                };
            }
            Event::Lock {
                wanted,
                wait,
                terms,
                ..
            } => self.locks(wanted, *wait, terms, None),
            Event::Campaign {
                wanted,
                wait,
                terms,
                value,
                ..
            } => self.locks(wanted, *wait, terms, Some(value)),
            event => typed(event, self.retakes),
        };
        match begun {
            Ok(begun) => self.machine.call(now, id(call), begun),
            Err(error) => failed(call, &error, actions),
        }
    }

    fn locks(
        &mut self,
        Wanted { owner, keys, mode }: &Wanted<'_>,
        wait: Option<Duration>,
        asked: &messages::Terms,
        value: Option<&[u8]>,
    ) -> Result<Call, Error> {
        let owner = match owner.owner {
            Owning::New => {
                self.owners += 1;
                Owner::numbered(&self.id, self.owners)
            }
            Owning::Activity => Owner::new(format!("{}:a{}", self.id, owner.activity))?,
            Owning::Named => Owner::new(owner.name)?,
        };
        let mut terms = Terms::new().lease(match asked.renewed {
            true => Lease::Renewed(asked.lease),
            false => Lease::Fixed(asked.lease),
        })?;
        if let Some(most) = asked.max_hold {
            terms = terms.max_hold(most)?;
        }
        if let Some(grace) = asked.bound {
            terms = terms.bound(grace)?;
        }
        Ok(Call::Lock(Lock {
            ask: match mode.mode {
                Access::Exclusive => Ask::Exclusive,
                Access::Shared => Ask::Shared,
                Access::Permits => Ask::of_permits(mode.permits, mode.limit)?,
            },
            queueing: queueing(wait)?,
            terms: terms.replicas(asked.replicas)?.margin(asked.margin)?,
            value: value.map(Value::new).transpose()?,
            claims: Claims::checked(owner, keys.iter().map(|it| Arc::from(*it)).collect())?,
        }))
    }

    fn takes(&mut self, now: Instant, event: &Event<'_>) {
        let connection = |number: u64| ConnectionId::of_number(number);
        let event = match event {
            Event::Abandon { call } => return self.machine.abandon(now, id(*call)),
            Event::Leave { guard } => return self.machine.leave(now, id(*guard)),
            Event::Untaken { guard } => return self.machine.untaken(now, id(*guard)),
            Event::LeaveAll {} => return self.machine.leave_all(now),
            Event::Opened { connection: it } => endpoint::Event::Opened {
                connection: connection(*it),
            },
            Event::Received {
                connection: it,
                bytes,
            } => endpoint::Event::Received {
                connection: connection(*it),
                bytes: bytes.0,
            },
            Event::Ended {
                connection: it,
                failure,
                text,
            } => endpoint::Event::Ended {
                connection: connection(*it),
                failure: match failure {
                    Fault::Io => Failure::Io((*text).to_owned()),
                    Fault::Time => Failure::TimedOut((*text).to_owned()),
                    Fault::Setup => Failure::Setup((*text).to_owned()),
                    Fault::Certificate => Failure::Certificate((*text).to_owned()),
                },
            },
            Event::Closed {} => endpoint::Event::Closed,
            _ => endpoint::Event::Tick,
        };
        self.machine.handle(now, event);
    }

    fn does(&mut self, action: Action, actions: &mut Writer) {
        let action = match action {
            Action::Connect {
                connection,
                address,
            } => {
                let Address::Tcp { host, port, .. } = &address else {
                    panic!("all servers of tests have a port");
                };
                messages::Action::Connect {
                    connection: connection.number(),
                    how: Transport::Tcp,
                    host,
                    port: *port,
                }
                .write(actions);
                return;
            }
            Action::Write { connection } => {
                let mut bytes = Vec::new();
                self.machine.take_output(connection, &mut bytes);
                if !bytes.is_empty() {
                    let (connection, bytes) = (connection.number(), Data(&bytes));
                    messages::Action::Write { connection, bytes }.write(actions);
                }
                return;
            }
            Action::Close { connection } => messages::Action::Close {
                connection: connection.number(),
            },
            Action::Resolve { call, outcome } => return ends(call.number(), outcome, actions),
            Action::Over { guard, why } => messages::Action::Over {
                guard: guard.number(),
                why: match why {
                    Loss::LeaseEnded => Ending::LeaseEnded,
                    Loss::EndedByServer => Ending::EndedByServer,
                    _ => Ending::Released,
                },
            },
            Action::Ended { .. } | Action::Wake { .. } => return,
            Action::Observed { call, change } => {
                let leader = change.leader.as_ref().map(|it| Leader {
                    fence: Fence(it.fence),
                    value: &it.value,
                    owner: "",
                    time_left: None,
                });
                messages::Action::Leader {
                    call: call.number(),
                    leader,
                    missed: change.missed,
                }
                .write(actions);
                return;
            }
            Action::Occurred {
                guard,
                occurrence: it,
            } => {
                messages::Action::Occurred {
                    guard: guard.map_or(0, Id::number),
                    what: it.kind.as_str(),
                    outcome: it.outcome,
                    nanoseconds: it.duration.as_nanos() as u64,
                    keys: it.keys().collect(),
                    text: &it.text,
                }
                .write(actions);
                return;
            }
            // Its words are the encoding's.
            Action::Note(_) => messages::Action::Note {
                level: Level::Debug,
                text: "",
            },
        };
        action.write(actions);
    }
}

fn id(number: u64) -> Id {
    Id::of_number(number)
}

fn queueing(wait: Option<Duration>) -> Result<Queueing, Error> {
    wait.map_or(Ok(Queueing::Unlimited), Queueing::at_most)
}

/// What an event without an owner asks for.
fn typed(event: &Event<'_>, retakes: bool) -> Result<Call, Error> {
    Ok(match event {
        Event::Connect { .. } => Call::Connect,
        Event::Release { guard, least, .. } => Call::Release {
            guard: id(*guard),
            least: *least,
        },
        Event::ReleasePermits { guard, permits, .. } => Call::ReleasePermits {
            guard: id(*guard),
            permits: *permits,
        },
        Event::Upgrade { guard, wait, .. } => Call::Upgrade {
            guard: id(*guard),
            queueing: queueing(*wait)?,
            retakes,
        },
        Event::Extend { guard, lease, .. } => Call::Extend {
            guard: id(*guard),
            lease: *lease,
        },
        Event::Downgrade { guard, .. } => Call::Downgrade { guard: id(*guard) },
        Event::Proclaim { guard, value, .. } => Call::Proclaim {
            guard: id(*guard),
            value: Value::new(value)?,
        },
        Event::Question {
            key,
            words,
            changes,
            limit,
            ..
        } => {
            let mut command = Command::new(std::str::from_utf8(words[0]).unwrap());
            for word in &words[1..] {
                command.arg(word);
            }
            Call::Question {
                to: (!key.is_empty()).then(|| To::Key((*key).into())),
                command,
                changes: *changes,
                limit: *limit,
            }
        }
        Event::Observe { key, .. } => Call::Observe { key: (*key).into() },
        Event::Leader { key, .. } => Call::Leader { key: (*key).into() },
        _ => Call::Flush,
    })
}

fn ends(call: u64, outcome: Outcome, actions: &mut Writer) {
    match outcome {
        Outcome::Granted { guard, proofs } => {
            let fences = proofs.iter().flat_map(|proof| {
                let keys = proof.claims.keys();
                keys.map(move |key| (key, Fence(proof.fence())))
            });
            messages::Action::Granted {
                call,
                guard: guard.number(),
                owner: proofs.first().claims.owner().as_str(),
                fences: fences.collect(),
            }
            .write(actions);
        }
        Outcome::Refused => messages::Action::Refused { call }.write(actions),
        Outcome::Done => messages::Action::Done { call }.write(actions),
        Outcome::Answer(answer) => answered(call, &[answer], actions),
        Outcome::Answers(answers) => {
            match answers
                .into_iter()
                .map(|it| it.1)
                .collect::<Result<Vec<_>, _>>()
            {
                Ok(answers) => answered(call, &answers, actions),
                Err(error) => failed(call, &error, actions),
            }
        }
        Outcome::Leader(leader) => {
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
            .write(actions);
        }
        Outcome::Failed(error) => failed(call, &error, actions),
    }
}

fn failed(call: u64, error: &Error, actions: &mut Writer) {
    messages::Action::Failed {
        call,
        code: error.code(),
        text: &error.with_causes(),
        transient: error.is_transient(),
    }
    .write(actions);
}

fn answered(call: u64, answers: &[Frame], actions: &mut Writer) {
    let answers = Encoded::List(answers.iter().map(Encoded::from).collect());
    messages::Action::Answered { call, answers }.write(actions);
}
