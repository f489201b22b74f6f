//! Encodes a session or a quorum: calls and guards, by the numbers that the host
//! gives them.

use std::fmt::Write as _;
use std::sync::Arc;

use rlock_engine::endpoint::{ConnectionId, Event, Limits, Settings, To};
use rlock_engine::engine::Id;
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::{self, Instant};
use rlock_engine::engine::terms::{Queueing, Value};
use rlock_engine::error::Error;
use rlock_engine::session::{self, Action, Call, Lock, Outcome};
use rlock_engine::wire::resp::{Command, Frame};

use crate::format::{Data, Fence, Malformed, NONE, Reader, VERSION, Writer};
use crate::meaning::{self, queueing};
use crate::messages::{self, Access, Configuration, Leader, Owning, Terms, Together, Wanted};

/// A client without sockets and without a clock.
pub struct Machine {
    machine: session::Machine,
    /// The prefix of the owners that this machine creates.
    id: String,
    owners: u64,
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
        let configuration: Configuration<'_> = reader.get()?;
        reader.end()?;
        let urls = configuration.urls.iter().copied();
        let urls: Result<Vec<_>, _> = urls.map(std::str::from_utf8).collect();
        let urls = urls.map_err(|_| Malformed("a text is not UTF-8"))?;
        if configuration.together == Together::Single && urls.len() != 1 {
            return Err(Malformed("it has not one URL"));
        }
        Ok(Self::with(&configuration, &urls))
    }

    fn with(configuration: &Configuration<'_>, urls: &[&str]) -> Result<Self, Error> {
        let (name, together) = (configuration.name, configuration.together);
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
        let mut machine = deciding(urls, together, settings)?;
        if configuration.listens {
            machine.listen();
        }
        Ok(Self {
            machine,
            id,
            owners: 0,
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
        match event.starts() {
            Some(call) => self.begin(now, call, event, &mut output)?,
            None => self.take(now, event),
        }
        while let Some(action) = self.machine.poll_action() {
            self.carry_out(action, &mut output);
        }
        if let Some(deadline) = self.machine.next_deadline() {
            output.set_first(deadline.nanos());
        }
        Ok(output.into_bytes())
    }

    /// How many nanoseconds from `now` a guard stays valid if nothing more
    /// arrives; zero if it is over.
    #[must_use]
    pub fn remaining(&self, guard: u64, now: u64) -> u64 {
        let (guard, now) = (Id::of_number(guard), Instant::from_nanos(now));
        let left = self.machine.remaining(guard, now).as_nanos();
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    /// Whether nobody waits or holds anything, and nothing is left to clean up.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.machine.is_empty()
    }

    fn begin(
        &mut self,
        now: Instant,
        call: u64,
        event: messages::Event<'_>,
        output: &mut Writer,
    ) -> Result<(), Malformed> {
        let number = Id::of_number(call);
        if call >= Id::OF_ENGINE {
            return Err(Malformed("a number is too large"));
        }
        if self.machine.is_known(number) {
            return Err(Malformed("a number is used twice"));
        }
        if let messages::Event::Metrics { .. } = event {
            let Some(metrics) = self.machine.metrics() else {
                output.failed(
                    call,
                    &out_of_range("call", "metrics", "of a client without quorum"),
                );
                return Ok(());
            };
            let numbers = [
                metrics.grants,
                metrics.waits,
                metrics.losses,
                metrics.late_renewals,
                metrics.reconnects,
            ];
            let frame = |it| Frame::Integer(i64::try_from(it).unwrap_or(i64::MAX));
            output.answered(call, &numbers.map(frame));
            return Ok(());
        }
        match self.begun(event)? {
            Ok(begun) => self.machine.call(now, number, begun),
            Err(error) => output.failed(call, &error),
        }
        Ok(())
    }

    /// What an event asks for; an error is the caller's.
    fn begun(&mut self, event: messages::Event<'_>) -> Result<Result<Call, Error>, Malformed> {
        use messages::Event as Begun;
        let id = Id::of_number;
        Ok(Ok(match event {
            Begun::Connect { .. } => Call::Connect,
            Begun::Lock {
                wanted,
                wait,
                terms,
                ..
            } => return Ok(self.lock(wanted, queueing(wait), &terms, None)),
            Begun::Campaign {
                wanted,
                wait,
                terms,
                value,
                ..
            } => {
                if wanted.keys.len() > 1 || wanted.mode.mode != Access::Exclusive {
                    return Err(Malformed("a campaign is for one key, alone"));
                }
                return Ok(self.lock(wanted, queueing(wait), &terms, Some(value)));
            }
            Begun::Release { guard, least, .. } => {
                let guard = id(guard);
                Call::Release { guard, least }
            }
            Begun::ReleasePermits { guard, permits, .. } => {
                let guard = id(guard);
                Call::ReleasePermits { guard, permits }
            }
            Begun::Upgrade { guard, wait, .. } => return Ok(upgrade(id(guard), wait)),
            Begun::Extend { guard, lease, .. } => {
                let guard = id(guard);
                Call::Extend { guard, lease }
            }
            Begun::Downgrade { guard, .. } => Call::Downgrade { guard: id(guard) },
            Begun::Proclaim { guard, value, .. } => {
                let guard = id(guard);
                return Ok(Value::new(value).map(|value| Call::Proclaim { guard, value }));
            }
            Begun::Question {
                key,
                words,
                changes,
                limit,
                ..
            } => {
                let (name, rest) = words.split_first().ok_or(Malformed("it has no command"))?;
                let name = std::str::from_utf8(name).map_err(|_| Malformed("it has no command"))?;
                let mut command = Command::new(name);
                for word in rest {
                    command.arg(word);
                }
                Call::Question {
                    to: (!key.is_empty()).then(|| To::Key(key.into())),
                    command,
                    changes,
                    limit,
                }
            }
            Begun::Observe { key, .. } => Call::Observe { key: key.into() },
            Begun::Leader { key, .. } => Call::Leader { key: key.into() },
            _ => Call::Flush,
        }))
    }

    /// Takes an event that starts no call.
    fn take(&mut self, now: Instant, event: messages::Event<'_>) {
        use messages::Event as Told;
        let event = match event {
            // The other numbers are the engine's own.
            Told::Abandon { call: number }
            | Told::Leave { guard: number }
            | Told::Untaken { guard: number }
                if number >= Id::OF_ENGINE =>
            {
                return;
            }
            Told::Abandon { call } => return self.machine.abandon(now, Id::of_number(call)),
            Told::Leave { guard } => return self.machine.leave(now, Id::of_number(guard)),
            Told::Untaken { guard } => return self.machine.untaken(now, Id::of_number(guard)),
            Told::LeaveAll {} => return self.machine.leave_all(now),
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
            Told::Closed {} => Event::Closed,
            _ => Event::Tick,
        };
        self.machine.handle(now, event);
    }

    fn lock(
        &mut self,
        Wanted { owner, keys, mode }: Wanted<'_>,
        queueing: Result<Queueing, Error>,
        terms: &Terms,
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
        Ok(Call::Lock(Lock {
            ask: mode.ask()?,
            queueing: queueing?,
            terms: terms.terms()?,
            value: value.map(Value::new).transpose()?,
            claims: Claims::checked(owner, keys.into_iter().map(Arc::from).collect())?,
        }))
    }

    fn carry_out(&mut self, action: Action, output: &mut Writer) {
        let action = match action {
            Action::Connect {
                connection,
                address,
            } => return output.connect(connection, &address),
            Action::Write { connection } => {
                let mut bytes = Vec::new();
                self.machine.take_output(connection, &mut bytes);
                if !bytes.is_empty() {
                    let (connection, bytes) = (connection.number(), Data(&bytes));
                    messages::Action::Write { connection, bytes }.write(output);
                }
                return;
            }
            Action::Close { connection } => messages::Action::Close {
                connection: connection.number(),
            },
            Action::Resolve { call, outcome } => return resolved(call.number(), outcome, output),
            Action::Over { guard, why } => messages::Action::Over {
                guard: guard.number(),
                why: why.into(),
            },
            // The host reads the time that remains from the machine.
            Action::Ended { .. } | Action::Wake { .. } => return,
            Action::Observed { call, change } => {
                let leader = change.leader.as_ref().map(|it| Leader {
                    fence: Fence(it.fence),
                    value: &it.value,
                    owner: "",
                    time_left: None,
                });
                let (call, missed) = (call.number(), change.missed);
                return leads(call, leader, missed, output);
            }
            Action::Occurred { guard, occurrence } => {
                let guard = guard.map_or(0, Id::number);
                return messages::Action::Occurred {
                    guard,
                    what: occurrence.kind.as_str(),
                    outcome: occurrence.outcome,
                    nanoseconds: instant::nanos(occurrence.duration),
                    keys: occurrence.keys().collect(),
                    text: &occurrence.text,
                }
                .write(output);
            }
            Action::Note(note) => {
                let (level, text) = meaning::described(&note);
                return messages::Action::Note { level, text: &text }.write(output);
            }
        };
        action.write(output);
    }
}

/// What decides for a client of the servers at these URLs.
fn deciding(
    urls: &[&str],
    together: Together,
    settings: Settings,
) -> Result<session::Machine, Error> {
    match (urls, together) {
        ([url], Together::Single) => session::Machine::of(url.parse()?, settings),
        (_, Together::Single) => {
            let count = urls.len().to_string();
            Err(out_of_range("urls", &count, "one, or those of a quorum"))
        }
        _ => {
            let members = session::quorum::read(urls.iter().copied())?;
            let any_grace = together == Together::AnyGrace;
            session::Machine::of_members(members, &settings, any_grace)
        }
    }
}

fn upgrade(guard: Id, wait: Option<std::time::Duration>) -> Result<Call, Error> {
    Ok(Call::Upgrade {
        guard,
        queueing: queueing(wait)?,
        // A host has one guard, which stays lost.
        retakes: false,
    })
}

fn out_of_range(argument: &'static str, value: &str, limit: &'static str) -> Error {
    Error::OutOfRange {
        argument,
        value: value.to_owned(),
        limit: limit.into(),
    }
}

fn leads(call: u64, leader: Option<Leader<'_>>, missed: bool, output: &mut Writer) {
    messages::Action::Leader {
        call,
        leader,
        missed,
    }
    .write(output);
}

fn resolved(call: u64, outcome: Outcome, output: &mut Writer) {
    match outcome {
        Outcome::Granted { guard, proofs } => {
            let fences = proofs.iter().flat_map(|proof| {
                let fence = Fence(proof.fence());
                proof.claims.keys().map(move |key| (key, fence))
            });
            messages::Action::Granted {
                call,
                guard: guard.number(),
                owner: proofs.first().claims.owner().as_str(),
                fences: fences.collect(),
            }
            .write(output);
        }
        Outcome::Refused => messages::Action::Refused { call }.write(output),
        Outcome::Done => messages::Action::Done { call }.write(output),
        Outcome::Answer(answer) => output.answered(call, &[answer]),
        Outcome::Answers(answers) => {
            let answers: Result<Vec<Frame>, _> = answers.into_iter().map(|it| it.1).collect();
            match answers {
                Ok(answers) => output.answered(call, &answers),
                Err(error) => output.failed(call, &error),
            }
        }
        Outcome::Leader(leader) => {
            let leader = leader.as_ref().map(|it| Leader {
                fence: Fence(it.fence),
                value: &it.value,
                owner: &it.owner,
                time_left: Some(it.time_left),
            });
            leads(call, leader, false, output);
        }
        Outcome::Failed(error) => output.failed(call, &error),
    }
}
