//! Calls and guards, by the numbers that the host gives them.
//!
//! One type, whole: every event of the host and every action of the endpoint
//! passes through it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use rlock_engine::endpoint::{ConnectionId, Event, Limits, Note, Settings, To};
use rlock_engine::engine::Id;
use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::terms::{Ask, Value};
use rlock_engine::error::Error;
use rlock_engine::servers::Servers;
use rlock_engine::session::{Action, Call, Lock, Outcome, Session};
use rlock_engine::wire::resp::{Command, Frame};

use crate::format::{Malformed, Reader, VERSION, Writer};

/// A client without sockets and without a clock.
pub struct Machine {
    session: Session,
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
        if reader.u32()? != VERSION {
            return Err(Malformed("it is of another version"));
        }
        let (url, name) = (reader.text()?, reader.text()?);
        let library = (reader.text()?.to_owned(), reader.text()?.to_owned());
        let limits = [reader.millis()?, reader.millis()?, reader.millis()?];
        let seed = reader.seed()?;
        reader.end()?;
        Ok(Self::with(url, name, library, limits, &seed))
    }

    fn with(
        url: &str,
        name: &str,
        library: (String, String),
        [response, retry, replication]: [Option<Duration>; 3],
        seed: &[u8; 32],
    ) -> Result<Self, Error> {
        let servers: Servers = url.parse()?;
        servers.check()?;
        let hex = |bytes: &[u8]| {
            bytes.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        };
        let (first, second) = seed.split_at(16);
        let id = match name {
            "" => hex(first),
            name => format!("{name}:{}", hex(first)),
        };
        let random = first.first_chunk().copied().map_or(0, u64::from_le_bytes);
        let defaults = Limits::default();
        let limits = Limits {
            response: response.unwrap_or(defaults.response),
            retry: retry.unwrap_or(defaults.retry),
            replication: replication.unwrap_or(defaults.replication),
        };
        let settings = Settings {
            limits,
            name: (!name.is_empty()).then(|| name.to_owned()),
            library,
            channel: hex(second),
            seed: random,
            ..Settings::default()
        };
        settings.check()?;
        Ok(Self {
            session: Session::new(servers, settings),
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
        let mut output = Writer::new(buffer);
        self.take(now, Reader::new(event), &mut output)?;
        while let Some(action) = self.session.poll_action() {
            self.carry_out(action, &mut output);
        }
        Ok(output.finish(self.session.next_deadline()))
    }

    /// How many nanoseconds from `now` a guard stays valid if nothing more
    /// arrives; zero if it is over.
    #[must_use]
    pub fn remaining(&self, guard: u64, now: u64) -> u64 {
        let (guard, now) = (Id::of_number(guard), Instant::from_nanos(now));
        let left = self.session.remaining(guard, now).as_nanos();
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    /// Whether nobody waits or holds anything, and nothing is left to clean up.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.session.is_empty()
    }

    fn take(
        &mut self,
        now: Instant,
        mut reader: Reader<'_>,
        output: &mut Writer,
    ) -> Result<(), Malformed> {
        let kind = reader.u8()?;
        match kind {
            1..=7 | 9 | 13 | 19..=22 => {
                let call = reader.u64()?;
                if call >= Id::OF_ENGINE {
                    return Err(Malformed("a number is too large"));
                }
                if self.session.is_known(Id::of_number(call)) {
                    return Err(Malformed("a number is used twice"));
                }
                match self.begun(kind, &mut reader)? {
                    Ok(begun) => self.session.call(now, Id::of_number(call), begun),
                    Err(Some(error)) => output.failed(call, &error),
                    Err(None) => {
                        let metrics = self.session.endpoint().engine().metrics();
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
                }
                Ok(())
            }
            8 | 17 | 18 => {
                let number = Id::of_number(reader.u64()?);
                reader.end()?;
                match kind {
                    8 => self.session.abandon(now, number),
                    17 => self.session.leave(now, number),
                    _ => self.session.untaken(now, number),
                }
                Ok(())
            }
            14 => {
                reader.end()?;
                self.session.leave_all(now);
                Ok(())
            }
            _ => self.handle_without_call(now, kind, &mut reader),
        }
    }

    /// Reads a call; an error is the caller's.
    fn begun(
        &mut self,
        kind: u8,
        reader: &mut Reader<'_>,
    ) -> Result<Result<Call, Option<Error>>, Malformed> {
        let mut guard = || Ok(Id::of_number(reader.u64()?));
        let call = match kind {
            1 => Call::Connect,
            2 | 19 => return Ok(self.lock(reader, kind == 19)?.map_err(Some)),
            3 => Call::Release {
                guard: guard()?,
                least: reader.millis()?,
            },
            4 => {
                let (guard, queueing) = (guard()?, reader.queueing()?);
                reader.end()?;
                return Ok(queueing
                    .map_err(Some)
                    .map(|queueing| Call::Upgrade { guard, queueing }));
            }
            5 => Call::Extend {
                guard: guard()?,
                lease: Duration::from_millis(reader.u64()?),
            },
            6 => Call::Downgrade { guard: guard()? },
            7 => question(reader)?,
            9 => {
                reader.end()?;
                return Ok(Err(None));
            }
            20 => {
                let (guard, value) = (guard()?, Value::new(reader.bytes()?));
                reader.end()?;
                return Ok(value
                    .map_err(Some)
                    .map(|value| Call::Proclaim { guard, value }));
            }
            21 => Call::Observe {
                key: reader.bytes()?.into(),
            },
            22 => Call::Leader {
                key: reader.bytes()?.into(),
            },
            _ => Call::Flush,
        };
        reader.end()?;
        Ok(Ok(call))
    }

    /// Handles an event that concerns no call.
    fn handle_without_call(
        &mut self,
        now: Instant,
        kind: u8,
        reader: &mut Reader<'_>,
    ) -> Result<(), Malformed> {
        let event = match kind {
            10 => Event::Opened {
                connection: ConnectionId::of_number(reader.u64()?),
            },
            11 => Event::Received {
                connection: ConnectionId::of_number(reader.u64()?),
                bytes: reader.bytes()?,
            },
            12 => Event::Ended {
                connection: ConnectionId::of_number(reader.u64()?),
                failure: reader.failure()?,
            },
            15 => Event::Closed,
            16 => Event::Tick,
            _ => return Err(Malformed("there is no such event")),
        };
        reader.end()?;
        self.session.handle(now, event);
        Ok(())
    }

    fn lock(
        &mut self,
        reader: &mut Reader<'_>,
        is_campaign: bool,
    ) -> Result<Result<Call, Error>, Malformed> {
        let (kind, activity, name) = (reader.u8()?, reader.u64()?, reader.text()?);
        let keys = reader.list()?;
        let (ask, queueing, terms) = (reader.ask()?, reader.queueing()?, reader.terms()?);
        if kind > 2 {
            return Err(Malformed("there is no such owner"));
        }
        let value = match is_campaign {
            true => Some(Value::new(reader.bytes()?)),
            false => None,
        };
        reader.end()?;
        if is_campaign && (keys.len() > 1 || !matches!(ask, Ok(Ask::Exclusive))) {
            return Err(Malformed("a campaign is for one key, alone"));
        }
        let lock = || {
            let owner = match kind {
                0 => {
                    self.owners += 1;
                    Owner::numbered(&self.id, self.owners)
                }
                1 => Owner::new(format!("{}:a{activity}", self.id))?,
                _ => Owner::new(name)?,
            };
            let keys = keys.into_iter().map(Arc::from).collect();
            Ok(Call::Lock(Lock {
                ask: ask?,
                queueing: queueing?,
                terms: terms?,
                value: value.transpose()?,
                claims: Claims::checked(owner, keys)?,
            }))
        };
        Ok(lock())
    }

    fn carry_out(&mut self, action: Action, output: &mut Writer) {
        match action {
            Action::Connect {
                connection,
                address,
            } => output.connect(connection, &address),
            Action::Write { connection } => {
                let mut bytes = Vec::new();
                self.session.take_output(connection, &mut bytes);
                if !bytes.is_empty() {
                    output.write(connection, &bytes);
                }
            }
            Action::Close { connection } => output.close(connection),
            Action::Resolve { call, outcome } => resolved(call.number(), outcome, output),
            Action::Over { guard, why } => output.over(guard.number(), why),
            // The host reads the time that remains from the machine.
            Action::Ended { .. } => {}
            Action::Observed { call, change } => {
                let leader = change.leader.as_ref();
                let leader = leader.map(|it| (it.fence, &*it.value, "", None));
                output.leader(call.number(), leader, change.missed);
            }
            Action::Note(note) => {
                let (level, text) = described(&note);
                output.note(level, &text);
            }
        }
    }
}

/// Reads a question to the server of a key, or to each if the key is empty.
fn question(reader: &mut Reader<'_>) -> Result<Call, Malformed> {
    let (key, words) = (reader.bytes()?, reader.list()?);
    let (changes, limit) = (reader.flag()?, reader.millis()?);
    let (name, rest) = words.split_first().ok_or(Malformed("it has no command"))?;
    let name = std::str::from_utf8(name).map_err(|_| Malformed("it has no command"))?;
    let mut command = Command::new(name);
    for word in rest {
        command.arg(word);
    }
    Ok(Call::Question {
        to: (!key.is_empty()).then(|| To::Key(key.into())),
        command,
        changes,
        limit,
    })
}

fn resolved(call: u64, outcome: Outcome, output: &mut Writer) {
    match outcome {
        Outcome::Granted { guard, proofs } => {
            let mut fences = Vec::new();
            for proof in proofs.iter() {
                let fence = proof.fence();
                fences.extend(proof.claims.keys().map(|key| (key, fence)));
            }
            let owner = proofs.first().claims.owner();
            output.granted(call, guard.number(), owner.as_str(), &fences);
        }
        Outcome::Refused => output.refused(call),
        Outcome::Done => output.done(call),
        Outcome::Answer(answer) => output.answered(call, &[answer]),
        Outcome::Answers(answers) => {
            let answers: Result<Vec<Frame>, _> = answers.into_iter().map(|it| it.1).collect();
            match answers {
                Ok(answers) => output.answered(call, &answers),
                Err(error) => output.failed(call, &error),
            }
        }
        Outcome::Leader(leader) => {
            let leader = leader.as_ref();
            let leader = leader.map(|it| (it.fence, &*it.value, &*it.owner, Some(it.time_left)));
            output.leader(call, leader, false);
        }
        Outcome::Failed(error) => output.failed(call, &error),
    }
}

/// A connection's event, for a log. The level 0 is for debugging, 1 for
/// information, 2 for a warning.
fn described(note: &Note) -> (u8, String) {
    let warning = note.warning().unwrap_or_default();
    match note {
        Note::NotConnected { is_news: true, .. }
        | Note::NoRoutes { is_news: true, .. }
        | Note::NotRenewed { .. }
        | Note::NotReleased { .. } => (2, warning),
        Note::Connected { address } => (1, format!("connected to the server at {address}")),
        Note::NotConnected { failure, .. } => {
            (0, format!("no connection to the server yet: {failure}"))
        }
        Note::Lost { address } => (2, format!("connection to the server at {address} lost")),
        Note::Silent => (2, "the connection is silent".to_owned()),
        Note::NamedElsewhere => (1, "the Sentinels name another server".to_owned()),
        Note::UnknownMessage(message) => {
            let message = String::from_utf8_lossy(message);
            (2, format!("unknown message: {message}"))
        }
        Note::NoRoutes { failure, .. } => (0, failure.to_string()),
    }
}
