//! One scenario being played: clients with names, fences with numbers, and
//! what is seen of each step as text.

use std::collections::BTreeMap;

use rlock_core::{Fence, Hold, Limits, Name, Timestamp};

use crate::{
    driver::{Driver, text},
    script::{self, BadArgument, Step},
    told::{Ask, Outcome, Reply, Told, Via, Word},
};

/// When every scenario begins, in milliseconds since the Unix epoch.
const START_MS: u64 = 1_700_000_000_000;

/// A reply as a scenario shows it; a fence gets its number later.
enum Shown {
    Text(String),
    Fence(Fence),
}

impl Shown {
    fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    fn error(code: &str) -> Self {
        Self::Text(format!("error {code}"))
    }
}

/// A server on which one scenario is played.
pub(crate) struct Stage {
    pub(crate) driver: Driver,
    /// The session of each client.
    clients: BTreeMap<String, u64>,
    /// The blocked calls, each with its client and session.
    calls: BTreeMap<u64, (String, u64)>,
    /// In the order of their first appearance.
    fences: Vec<Fence>,
    last_id: u64,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let limits = Limits {
            waiters_max: 10_000,
            watches_max: 100_000,
        };
        Self {
            driver: Driver::new(Timestamp::from_millis(START_MS), limits),
            clients: BTreeMap::new(),
            calls: BTreeMap::new(),
            fences: Vec::new(),
            last_id: 0,
        }
    }

    /// Plays a step, and answers what is to be seen of it, line by line.
    pub(crate) fn play(&mut self, step: &Step) -> Vec<String> {
        let at = Timestamp::from_millis(START_MS + step.at_ms);
        self.driver.advance(at);
        let words: Vec<_> = step.command.iter().map(String::as_str).collect();
        let reply = match words.split_first() {
            Some((command, arguments)) => self
                .command(&step.client, command, arguments)
                .unwrap_or_else(|BadArgument| Some(Shown::error("ERR"))),
            None => None,
        };
        self.driver.turn();
        let told = std::mem::take(&mut self.driver.told);
        self.number_fences(reply.as_ref(), &told);
        let mut lines = Vec::new();
        lines.extend(reply.map(|reply| match reply {
            Shown::Text(text) => text,
            Shown::Fence(fence) => format!("fence {}", self.number(fence)),
        }));
        for told in told {
            lines.push(self.show(told));
        }
        lines
    }

    fn command(
        &mut self,
        client: &str,
        command: &str,
        arguments: &[&str],
    ) -> Result<Option<Shown>, BadArgument> {
        match (command, arguments) {
            ("CLOSE", []) => self.close(client),
            ("LISTEN", [channel]) => drop(self.driver.listened.insert((*channel).to_owned())),
            ("UNLISTEN", [channel]) => drop(self.driver.listened.remove(*channel)),
            ("FLUSHALL", []) => {
                self.driver.store.flush(None);
                self.driver.locks.settle_all_later(None);
                return Ok(Some(Shown::text("OK")));
            }
            (_, [key, arguments @ ..]) => {
                let name = Name {
                    db: 0,
                    key: key.as_bytes(),
                };
                let native = self.native(name, command, arguments);
                return match native {
                    Some(reply) => Ok(Some(Shown::Text(reply))),
                    None => self
                        .lock_command(client, name, command, arguments)
                        .map(Some),
                };
            }
            _ => return Err(BadArgument),
        }
        Ok(None)
    }

    fn lock_command(
        &mut self,
        client: &str,
        name: Name<'_>,
        command: &str,
        arguments: &[&str],
    ) -> Result<Shown, BadArgument> {
        let reply = match (command, arguments) {
            ("ACQUIRE", arguments) => {
                let request = script::acquire(arguments)?;
                let session = self.session(client);
                let via = if let Some(channel) = request.channel {
                    Via::Channel { session, channel }
                } else {
                    self.last_id += 1;
                    let handle = self.last_id;
                    self.calls.insert(handle, (client.to_owned(), session));
                    Via::Call { session, handle }
                };
                let ask = Ask {
                    owner: &request.owner,
                    lease_ms: request.lease_ms,
                    once: request.once,
                    wait: request.wait,
                    via,
                };
                self.driver.acquire(name, &ask)
            }
            ("RENEW", arguments) => {
                let (owner, lease_ms) = script::renew(arguments)?;
                self.driver.renew(name, &owner, lease_ms)
            }
            ("RELEASE", arguments) => {
                let (owner, all) = script::release(arguments)?;
                self.driver.release(name, &owner, all)
            }
            ("CANCEL", [owner]) => self.driver.cancel(name, &script::owner(owner)?),
            ("FORCE", []) => self.driver.force(name),
            ("INFO", []) => return Ok(Shown::Text(self.info(name))),
            _ => return Err(BadArgument),
        };
        Ok(match reply {
            Reply::Fence(fence) => Shown::Fence(fence),
            Reply::Nil => Shown::text("nil"),
            Reply::Blocked => Shown::text("blocked"),
            Reply::Waiting => Shown::text("WAITING"),
            Reply::Number(number) => Shown::Text(number.to_string()),
            Reply::WrongType => Shown::error("WRONGTYPE"),
            Reply::AlreadyQueued => Shown::error("ALREADYQUEUED"),
            Reply::QueueFull => Shown::error("QUEUEFULL"),
            Reply::CountFull => Shown::error("ERR"),
        })
    }

    fn session(&mut self, client: &str) -> u64 {
        self.last_id += 1;
        let new = self.last_id;
        *self.clients.entry(client.to_owned()).or_insert(new)
    }

    /// Ends the connection: its blocked call is gone, and what it asked to be
    /// told of.
    fn close(&mut self, client: &str) {
        let session = self.session(client);
        let calls = self.calls.iter().filter(|(_, (_, of))| *of == session);
        for call in calls.map(|(call, _)| *call).collect::<Vec<_>>() {
            self.driver.hang_up(call);
        }
        self.driver.locks.session_closed(session);
        self.clients.remove(client);
    }

    fn info(&self, name: Name<'_>) -> String {
        let driver = &self.driver;
        let now = driver.now;
        let (mode, fence, holders) = match driver.store.load(now, name, None) {
            Hold::NoLock => return "error WRONGTYPE".to_owned(),
            Hold::Free => ("free", "nil".to_owned(), String::new()),
            hold @ Hold::Exclusive { .. } => {
                let fence = hold.fence().map(|fence| self.number(fence).to_string());
                let fence = fence.unwrap_or_else(|| "nil".to_owned());
                let left = hold.deadline().map_or(0, |ends| ends.millis_from(now));
                let fields = self.fields(name);
                let holder = fields.iter().find(|(key, _)| !key.starts_with("rlock:"));
                let holder = holder.map(|(owner, count)| {
                    format!("{owner} count={count} fence={fence} lease-left={left}")
                });
                ("exclusive", fence, holder.unwrap_or_default())
            }
        };
        let waiters: Vec<_> = driver.locks.waiters(now, name).collect();
        let queued = driver.locks.queued(name);
        assert_eq!(queued as usize, waiters.len(), "all are shown");
        let waiters: Vec<_> = waiters
            .iter()
            .map(|it| {
                let left = it.wait_left_ms.map(|left| left.to_string());
                let left = left.unwrap_or_else(|| "nil".to_owned());
                let (owner, waited) = (text(it.owner), it.waited.as_millis());
                format!("{owner} exclusive waited={waited} wait-left={left}")
            })
            .collect();
        let waiters = waiters.join("; ");
        format!("mode={mode} fence={fence} holders=[{holders}] queued={queued} waiters=[{waiters}]")
    }

    fn show(&mut self, told: Told<Fence>) -> String {
        match told {
            Told::Answer {
                handle, outcome, ..
            } => {
                let (client, _) = self.calls.remove(&handle).expect("a call is answered once");
                match outcome {
                    Outcome::Granted(fence) => format!("{client}: fence {}", self.number(fence)),
                    Outcome::WaitOver | Outcome::Superseded | Outcome::Cancelled => {
                        format!("{client}: nil")
                    }
                }
            }
            Told::Message {
                key,
                channel,
                word,
                owner,
                fence,
            } => {
                let word = match word {
                    Word::Grant => "grant",
                    Word::WaitOver => "timeout",
                    Word::Lost => "lost",
                };
                let fence = fence.map_or(0, |fence| self.number(fence));
                format!("channel {channel}: {word} {fence} {owner} {key}")
            }
            Told::Unlock { key } => format!("unlock {key}"),
        }
    }

    /// Numbers the fences that appear for the first time in this step.
    fn number_fences(&mut self, reply: Option<&Shown>, told: &[Told<Fence>]) {
        let told = told.iter().filter_map(fence);
        let reply = reply.and_then(|reply| match reply {
            Shown::Fence(fence) => Some(*fence),
            Shown::Text(_) => None,
        });
        let mut new: Vec<_> = told.chain(reply).collect();
        new.retain(|fence| !self.fences.contains(fence));
        new.sort();
        new.dedup();
        let larger = self.fences.last() < new.first() || new.is_empty();
        assert!(larger, "a fence is larger than all before it");
        self.fences.extend(new);
    }

    pub(crate) fn number(&self, fence: Fence) -> usize {
        let at = self.fences.iter().position(|it| *it == fence);
        at.expect("a fence that is shown was given") + 1
    }
}

fn fence(told: &Told<Fence>) -> Option<Fence> {
    match told {
        Told::Answer {
            outcome: Outcome::Granted(fence),
            ..
        } => Some(*fence),
        Told::Message { fence, .. } => *fence,
        _ => None,
    }
}
