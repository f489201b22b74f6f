//! One scenario being played: clients with names, and the commands that they
//! send.

use std::collections::BTreeMap;

use rlock_core::{Fence, Limits, Name, Timestamp};

use crate::{
    driver::Driver,
    script::Step,
    syntax::{self, Acquire, BadArgument},
    told::{Ask, Reply, Via},
};

/// When every scenario begins, in milliseconds since the Unix epoch.
const START_MS: u64 = 1_700_000_000_000;

/// A reply as a scenario shows it; a fence gets its number later.
pub(crate) enum Shown {
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
    pub(crate) calls: BTreeMap<u64, (String, u64)>,
    /// In the order of their first appearance.
    pub(crate) fences: Vec<Fence>,
    last_id: u64,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let limits = Limits {
            waiters_max: 10_000,
            watches_max: 100_000,
            detects_deadlocks: true,
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
            ("CONFIG", ["SET", name, value]) => {
                self.set(name, value)?;
                return Ok(Some(Shown::text("OK")));
            }
            ("LIST", arguments) => {
                let count = syntax::list(arguments)?;
                return Ok(Some(Shown::Text(self.list(count))));
            }
            ("MACQUIRE" | "MRENEW" | "MRELEASE", arguments) => {
                return self.several(client, command, arguments).map(Some);
            }
            (_, [key, arguments @ ..]) => {
                let name = named(key);
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
                let asked = syntax::acquire(arguments)?;
                let ask = self.ask(client, &asked);
                self.driver.acquire(name, &ask)
            }
            ("RENEW", [owner, lease]) => {
                let (owner, lease_ms) = (syntax::owner(owner)?, syntax::lease_ms(lease)?);
                let session = self.session(client);
                self.driver.renew(name, &owner, lease_ms, session)
            }
            ("RELEASE", arguments) => {
                let (owner, all) = syntax::release(arguments)?;
                self.driver.release(name, &owner, all)
            }
            ("DOWNGRADE", [owner]) => self.driver.downgrade(name, &syntax::owner(owner)?),
            ("CANCEL", [owner]) => self.driver.cancel(name, &syntax::owner(owner)?),
            ("FORCE", []) => self.driver.force(name),
            ("INFO", []) => return Ok(Shown::Text(self.info(name))),
            _ => return Err(BadArgument),
        };
        Ok(self.shown(name, reply))
    }

    fn several(
        &mut self,
        client: &str,
        command: &str,
        arguments: &[&str],
    ) -> Result<Shown, BadArgument> {
        let (keys, reply) = match (command, arguments) {
            ("MACQUIRE", arguments) => {
                let (keys, asked) = syntax::acquire_all(arguments)?;
                let ask = self.ask(client, &asked);
                let reply = self.driver.acquire_all(&names(&keys), &ask);
                (keys, reply)
            }
            ("MRENEW", [owner, lease, rest @ ..]) => {
                let (owner, lease_ms) = (syntax::owner(owner)?, syntax::lease_ms(lease)?);
                let (keys, []) = syntax::keys(rest)? else {
                    return Err(BadArgument);
                };
                let (names, session) = (names(&keys), self.session(client));
                let reply = self.driver.renew_all(&names, &owner, lease_ms, session);
                (keys, reply)
            }
            ("MRELEASE", [owner, rest @ ..]) => {
                let owner = syntax::owner(owner)?;
                let (keys, rest) = syntax::keys(rest)?;
                let all = syntax::all(rest)?;
                let reply = self.driver.release_all(&names(&keys), &owner, all);
                (keys, reply)
            }
            _ => return Err(BadArgument),
        };
        Ok(self.shown(named(keys[0]), reply))
    }

    fn ask<'a>(&mut self, client: &str, asked: &'a Acquire) -> Ask<'a> {
        let session = self.session(client);
        let via = if let Some(channel) = asked.channel.clone() {
            Via::Channel { session, channel }
        } else {
            self.last_id += 1;
            let handle = self.last_id;
            self.calls.insert(handle, (client.to_owned(), session));
            Via::Call { session, handle }
        };
        Ask {
            owner: &asked.owner,
            mode: asked.mode,
            lease_ms: asked.lease_ms,
            once: asked.once,
            wait: asked.wait,
            via,
            grace_ms: asked.grace_ms,
        }
    }

    fn shown(&self, name: Name<'_>, reply: Reply<Fence>) -> Shown {
        let cycle = |what| {
            let key = String::from_utf8_lossy(name.key);
            let owners = self.driver.cycle.iter().map(|owner| format!(" '{owner}'"));
            let owners: String = owners.collect();
            Shown::error(&format!(
                "DEADLOCK {what} key '{key}' would close a cycle of owners:{owners}"
            ))
        };
        match reply {
            Reply::Fence(fence) => Shown::Fence(fence),
            Reply::Nil => Shown::text("nil"),
            Reply::Blocked => Shown::text("blocked"),
            Reply::Waiting => Shown::text("WAITING"),
            Reply::Number(number) => Shown::Text(number.to_string()),
            Reply::WrongType => Shown::error("WRONGTYPE"),
            Reply::AlreadyQueued => Shown::error("ALREADYQUEUED"),
            Reply::QueueFull => Shown::error("QUEUEFULL"),
            Reply::CountFull | Reply::Conflict | Reply::HeldInPart => Shown::error("ERR"),
            Reply::Deadlock => cycle("waiting for"),
            Reply::SecondUpgrade => cycle("upgrading"),
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), BadArgument> {
        match (name, value) {
            ("deadlock-detection", "yes") => self.driver.limits.detects_deadlocks = true,
            ("deadlock-detection", "no") => self.driver.limits.detects_deadlocks = false,
            ("yield-after", number) => {
                let number = number.parse().map_err(|_| BadArgument)?;
                self.driver.locks.yield_after(number);
            }
            _ => return Err(BadArgument),
        }
        Ok(())
    }

    fn session(&mut self, client: &str) -> u64 {
        self.last_id += 1;
        let new = self.last_id;
        *self.clients.entry(client.to_owned()).or_insert(new)
    }

    /// Ends the connection: its blocked call is gone, and what it asked to be
    /// told of, and what is bound to it is cut.
    fn close(&mut self, client: &str) {
        let session = self.session(client);
        let calls = self.calls.iter().filter(|(_, (_, of))| *of == session);
        for call in calls.map(|(call, _)| *call).collect::<Vec<_>>() {
            self.driver.hang_up(call);
        }
        self.driver.close(session);
        self.clients.remove(client);
    }
}

const fn named(key: &str) -> Name<'_> {
    Name {
        db: 0,
        key: key.as_bytes(),
    }
}

fn names<'a>(keys: &[&'a str]) -> Vec<Name<'a>> {
    keys.iter().map(|key| named(key)).collect()
}
