//! The stage for one scenario: clients with names, and their commands.

use std::collections::BTreeMap;

use rlock_core::{
    ChannelKind, Extras, Fence, Limits, Name, Renewal, Timestamp,
    syntax::{self, Acquire, ArgError},
};

use rlock_testkit::script::Step;

use rlock_testkit::core::{
    driver::Driver,
    messages::{Ask, Error, Reply},
};

/// The start of every scenario, in milliseconds since the Unix epoch.
const START_MS: u64 = 1_700_000_000_000;
const LEASE_MAX_MS: u64 = 86_400_000;

/// A reply as a scenario shows it; its fence gets a number later.
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

/// An unknown command, or one with invalid words.
struct BadCommand;

fn read<T>(parsed: Result<T, ArgError>) -> Result<T, BadCommand> {
    parsed.map_err(|_| BadCommand)
}

/// A server for one scenario.
pub(crate) struct Stage {
    pub(crate) driver: Driver,
    /// The session of each client.
    clients: BTreeMap<String, u64>,
    /// The blocked calls, each with its client and session.
    pub(crate) calls: BTreeMap<u64, (String, u64)>,
    /// Ordered by their first appearance.
    pub(crate) fences: Vec<Fence>,
    last_id: u64,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let limits = Limits {
            waiters_max: 10_000,
            watches_max: 100_000,
            shared_max: 262_144,
            shared_elsewhere: 0,
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

    /// Plays a step, and returns its visible results, line by line.
    pub(crate) fn play(&mut self, step: &Step) -> Vec<String> {
        let at = Timestamp::from_millis(START_MS + step.at_ms);
        self.driver.advance(at);
        let words: Vec<_> = step.command.iter().map(|it| self.word(it)).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let reply = self.command(&step.client, &words);
        let reply = reply.unwrap_or_else(|BadCommand| Some(Shown::error("ERR")));
        self.driver.turn();
        let sent = std::mem::take(&mut self.driver.sent);
        self.number_fences(reply.as_ref(), &sent);
        let mut lines = Vec::new();
        lines.extend(reply.map(|reply| match reply {
            Shown::Text(text) => text,
            Shown::Fence(fence) => format!("fence {}", self.number(fence)),
        }));
        for sent in sent {
            lines.push(self.show(sent));
        }
        lines
    }

    fn command(&mut self, client: &str, words: &[&str]) -> Result<Option<Shown>, BadCommand> {
        match words {
            [] => {}
            ["CLOSE"] => self.close(client),
            ["LISTEN", channel] => self.listen(ChannelKind::Plain, channel, true),
            ["UNLISTEN", channel] => self.listen(ChannelKind::Plain, channel, false),
            ["SLISTEN", channel] => self.listen(ChannelKind::Sharded, channel, true),
            ["FLUSHALL"] => {
                self.driver.store.flush(None);
                self.driver.locks.settle_all_later(None);
                return Ok(Some(Shown::text("OK")));
            }
            ["CONFIG", "SET", name, value] => {
                self.set(name, value)?;
                return Ok(Some(Shown::text("OK")));
            }
            ["LIST", ..] => return Ok(Some(Shown::Text(self.list(read(syntax::list(words))?)))),
            ["INFO", key] => {
                self.driver.follow(named(key));
                return Ok(Some(Shown::Text(self.info(named(key)))));
            }
            [command, key, arguments @ ..] => {
                if let Some(reply) = self.native(named(key), command, arguments) {
                    return Ok(Some(Shown::Text(reply)));
                }
                return self.lock_command(client, words).map(Some);
            }
            [_] => return Err(BadCommand),
        }
        Ok(None)
    }

    fn lock_command(&mut self, client: &str, words: &[&str]) -> Result<Shown, BadCommand> {
        let session = self.session(client);
        let driver = &mut self.driver;
        let (key, reply) = match words[0] {
            "ACQUIRE" => {
                let asked = read(syntax::acquire(words, LEASE_MAX_MS))?;
                let ask = self.ask(client, session, &asked);
                let key = asked.keys[0];
                (key, self.driver.acquire(named(key), &ask))
            }
            "MACQUIRE" => {
                let asked = read(syntax::acquire_all(words, LEASE_MAX_MS))?;
                let ask = self.ask(client, session, &asked);
                let reply = self.driver.acquire_all(&names(asked.keys), &ask);
                (asked.keys[0], reply)
            }
            "RENEW" => {
                let it = read(syntax::renew(words, LEASE_MAX_MS))?;
                let renewal = Renewal {
                    lease_ms: it.lease_ms,
                    fence: it.fence,
                    session: Some(session),
                    channel: it.channel.map(|it| it.channel()),
                    bind: it.bind,
                    extras: it.extras,
                };
                (*it.key, driver.renew(named(it.key), it.owner, &renewal))
            }
            "MRENEW" => {
                let it = read(syntax::renew_all(words, LEASE_MAX_MS))?;
                let renewal = Renewal {
                    lease_ms: it.lease_ms,
                    fence: None,
                    session: Some(session),
                    channel: it.channel.map(|it| it.channel()),
                    bind: None,
                    extras: Extras::NONE,
                };
                let reply = driver.renew_all(&names(it.keys), (it.owner, it.fence), &renewal);
                (it.keys[0], reply)
            }
            "RELEASE" => {
                let it = read(syntax::release(words))?;
                let (name, owner, fence) = (named(it.key), it.owner, it.fence);
                let reply = match it.permits {
                    None => driver.release(name, owner, it.all, fence),
                    Some(permits) => driver.release_permits(name, owner, permits, fence),
                };
                (*it.key, reply)
            }
            "MRELEASE" => {
                let it = read(syntax::release_all(words))?;
                let reply = driver.release_all(&names(it.keys), it.owner, it.all, it.fence);
                (it.keys[0], reply)
            }
            "DOWNGRADE" => {
                let it = read(syntax::key_and_owner(words))?;
                (*it.key, driver.downgrade(named(it.key), it.owner))
            }
            "CANCEL" => {
                let it = read(syntax::key_and_owner(words))?;
                (*it.key, driver.cancel(named(it.key), it.owner, session))
            }
            "FORCE" => {
                let it = read(syntax::force(words))?;
                (*it.key, driver.force(named(it.key), it.queue, it.fence))
            }
            _ => return Err(BadCommand),
        };
        Ok(self.shown(key, reply))
    }

    fn ask<'a>(&mut self, client: &str, session: u64, asked: &Acquire<'a, &str>) -> Ask<'a> {
        let mut request = asked.request;
        request.session = Some(session);
        request.user = Some(b"default");
        self.last_id += 1;
        if request.channel.is_none() {
            let call = (client.to_owned(), session);
            self.calls.insert(self.last_id, call);
        }
        Ask {
            request,
            call: self.last_id,
        }
    }

    fn shown(&self, key: &str, reply: Reply<Fence>) -> Shown {
        let cycle = |what| {
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
            Reply::Error(Error::WrongType) => Shown::error("WRONGTYPE"),
            Reply::Error(Error::QueueFull) => Shown::error("QUEUEFULL"),
            Reply::Error(Error::Deadlock) => cycle("waiting for"),
            Reply::Error(Error::SecondUpgrade) => cycle("upgrading"),
            Reply::Error(_) => Shown::error("ERR"),
        }
    }

    fn listen(&mut self, kind: ChannelKind, channel: &str, on: bool) {
        let channel = (kind, channel.to_owned());
        if on {
            self.driver.listened.insert(channel);
        } else {
            self.driver.listened.remove(&channel);
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), BadCommand> {
        let number = value.parse().map_err(|_| BadCommand);
        match (name, value) {
            ("deadlock-detection", "yes") => self.driver.limits.detects_deadlocks = true,
            ("deadlock-detection", "no") => self.driver.limits.detects_deadlocks = false,
            ("max-places-per-user", _) => self.driver.places_per_user = number?,
            ("max-watches", _) => self.driver.limits.watches_max = number?,
            ("max-waiters", _) => self.driver.limits.waiters_max = number?,
            ("max-shared-holders", _) => self.driver.limits.shared_max = number?,
            ("yield-after", _) => self.driver.locks.yield_after(number?),
            _ => return Err(BadCommand),
        }
        Ok(())
    }

    fn session(&mut self, client: &str) -> u64 {
        self.last_id += 1;
        let new = self.last_id;
        *self.clients.entry(client.to_owned()).or_insert(new)
    }

    /// Ends the connection: its blocked call and its watches are gone, and holds
    /// bound to it are cut.
    fn close(&mut self, client: &str) {
        let session = self.session(client);
        let calls = self.calls.iter().filter(|(_, (_, of))| *of == session);
        for call in calls.map(|(call, _)| *call).collect::<Vec<_>>() {
            self.driver.hang_up(call);
        }
        self.driver.close(session);
        self.clients.remove(client);
    }

    /// A word of a command; `fence:2+10` stands for the second fence plus ten.
    fn word(&self, word: &str) -> String {
        let Some(sum) = word.strip_prefix("fence:") else {
            return word.to_owned();
        };
        let (number, more) = sum.split_once('+').unwrap_or((sum, "0"));
        let number: usize = number.parse().expect("a fence has a number");
        let more: u64 = more.parse().expect("what is added is a number");
        (self.fences[number - 1].get() + more).to_string()
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
