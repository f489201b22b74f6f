//! A server on the core that takes commands as words and writes replies.

use std::collections::BTreeMap;

use rlock_core::syntax::{self, ArgError};
use rlock_core::{ChannelKind, Delivery, Extras, Fence, Limits, Name, Renewal, Request, Timestamp};

use crate::core::driver::Driver;
use crate::core::messages;
use crate::core::store::{Store, Stored};

const START: u64 = 1_700_000_000_000_000;
const VALUE_CHANNEL: &str = "rlock:value:";
const LEASE_MAX_MS: u64 = 86_400_000;

pub struct Server {
    pub core: Driver,
    pub is_master: bool,
    pub is_down: bool,
    pub sessions: BTreeMap<u64, Session>,
    /// The mode that it reports: `standalone` or `cluster`.
    pub mode: &'static str,
    /// The connections that a client has asked to close.
    pub killed: Vec<u64>,
    /// How far its clock is behind the clock of the world, in microseconds.
    pub behind: u64,
    calls: u64,
}

/// The other end of a connection.
#[derive(Default)]
pub struct Session {
    pub channel: Option<(ChannelKind, String)>,
    /// The channels of values with its subscription.
    pub values: BTreeMap<String, ChannelKind>,
    /// Whether the next command may concern a slot that is moving here.
    pub is_asking: bool,
}

impl Server {
    pub fn new(is_master: bool) -> Self {
        let limits = Limits {
            waiters_max: 10_000,
            watches_max: 100_000,
            shared_max: 262_144,
            shared_elsewhere: 0,
            detects_deadlocks: true,
        };
        Self {
            core: Driver::new(Timestamp::from_micros(START), limits),
            is_master,
            is_down: false,
            sessions: BTreeMap::new(),
            mode: "standalone",
            killed: Vec::new(),
            behind: 0,
            calls: 0,
        }
    }

    pub fn set_time(&mut self, now: u64) {
        let time = self.time(now);
        if time > self.core.now {
            self.core.advance(time);
        }
        self.core.turn();
    }

    /// Its clock goes forward at once, by this many microseconds.
    pub fn jumps(&mut self, now: u64, time: u64) {
        self.set_time(now);
        self.behind = self.behind.saturating_sub(time);
        self.core.now = self.core.now.max(self.time(now));
        self.core.turn();
    }

    fn time(&self, now: u64) -> Timestamp {
        Timestamp::from_micros(START + now / 1000 - self.behind)
    }

    /// The next deadline, by the clock of the world.
    pub fn next_deadline(&self) -> Option<u64> {
        let next = self.core.locks.next_deadline(self.core.now)?;
        Some((next.micros().saturating_sub(START - self.behind) + 1) * 1000)
    }

    pub fn close(&mut self, session: u64) {
        let Some(Session { channel, .. }) = self.sessions.remove(&session) else {
            return;
        };
        let mut others = self.sessions.values();
        if let Some(channel) = channel
            && !others.any(|it| it.channel.as_ref() == Some(&channel))
        {
            self.core.listened.remove(&channel);
        }
        self.core.close(session);
        self.core.turn();
    }

    /// The server loses its state, and gets these keys. Its clock may have been set back.
    pub fn becomes(&mut self, now: u64, is_master: bool, keys: Store) {
        let sessions = std::mem::take(&mut self.sessions);
        let listened = std::mem::take(&mut self.core.listened);
        let (mode, behind) = (self.mode, self.behind);
        *self = Self::new(is_master);
        (self.mode, self.behind) = (mode, behind);
        self.sessions = sessions;
        self.core.listened = listened;
        self.core.now = self.time(now);
        self.core.store.keys = keys.keys;
    }

    /// Whether an owner holds a key.
    pub fn holds(&self, key: &str, owner: &str) -> bool {
        let fields = self.core.store.fields(self.core.now, name(key));
        fields.contains_key(owner)
    }

    /// How many permits of a key an owner has; 0 if it does not hold it.
    pub fn permits(&self, key: &str, owner: &str) -> u32 {
        let value = self.core.store.get(self.core.now, name(key));
        let held = value.and_then(|it| it.held());
        let mut holders = held.iter().flat_map(|it| it.live_holders(self.core.now));
        holders
            .find(|it| it.0 == owner)
            .map_or(0, |it| it.1.permits)
    }

    /// Whether nobody holds or waits for anything.
    pub fn is_unused(&self) -> bool {
        let store = &self.core.store;
        let is_over = |(db, key): &(u32, Vec<u8>)| {
            let name = Name { db: *db, key };
            store.get(self.core.now, name).is_none()
        };
        store.keys.keys().all(is_over) && self.core.locks.gauges().waiters == 0
    }

    pub fn has(&self, key: &[u8]) -> bool {
        let name = Name { db: 0, key };
        self.core.store.get(self.core.now, name).is_some()
    }

    /// Ends the waits for a key here.
    pub fn turns_away(&mut self, key: &[u8]) {
        let name = Name { db: 0, key };
        while let Some(ended) = self.core.locks.withdraw_one(name) {
            if let Delivery::Notify(listener) = &ended.delivery {
                let name = Name {
                    db: 0,
                    key: &ended.key,
                };
                let word = messages::MessageKind::Withdrawn;
                self.core.publish(name, listener, word, &ended.owner, None);
            }
        }
        self.core.locks.settle_later(name);
    }

    /// The messages to send, with their connections, as bytes.
    pub fn messages(&mut self) -> Vec<(u64, String)> {
        let mut messages = Vec::new();
        for sent in std::mem::take(&mut self.core.sent) {
            let (key, channel, word, owner, fence) = match sent {
                messages::Sent::Message {
                    key,
                    channel,
                    word,
                    owner,
                    fence,
                } => (key, channel, word, owner, fence),
                messages::Sent::Value { key, fence, value } => {
                    let text = match value {
                        Some(value) => format!("{fence} {value}"),
                        None => fence.to_string(),
                    };
                    let channel = match key.contains('{') {
                        true => format!("{VALUE_CHANNEL}{key}"),
                        false => format!("{VALUE_CHANNEL}{{{key}}}"),
                    };
                    for (session, it) in &self.sessions {
                        if let Some(kind) = it.values.get(&channel) {
                            let text = push(message(*kind), &channel, &bulk(&text));
                            messages.push((*session, text));
                        }
                    }
                    continue;
                }
                messages::Sent::Answer { .. } | messages::Sent::Unlock { .. } => continue,
            };
            let word = match word {
                messages::MessageKind::Grant => "grant",
                messages::MessageKind::WaitOver => "timeout",
                messages::MessageKind::Withdrawn => "withdrawn",
                messages::MessageKind::Lost => "lost",
            };
            let fence = fence.map_or(0, Fence::get);
            let text = format!("{word} {fence} {owner} {key}");
            let text = push(message(channel.0), &channel.1, &bulk(&text));
            let listening = self.sessions.iter();
            let listening = listening.filter(|(_, it)| it.channel.as_ref() == Some(&channel));
            messages.extend(listening.map(|(session, _)| (*session, text.clone())));
        }
        messages
    }

    /// Subscribes; the reply.
    pub fn listen(&mut self, session: u64, kind: ChannelKind, name: &str) -> String {
        let channel = (kind, name.to_owned());
        match self.sessions.get_mut(&session) {
            Some(session) if name.starts_with(VALUE_CHANNEL) => {
                session.values.insert(name.to_owned(), kind);
            }
            session => {
                self.core.listened.insert(channel.clone());
                if let Some(session) = session {
                    session.channel = Some(channel);
                }
            }
        }
        match kind {
            ChannelKind::Plain => push("subscribe", name, ":1\r\n"),
            _ => push("ssubscribe", name, ":1\r\n"),
        }
    }

    /// Unsubscribes from a channel of values; returns the reply.
    fn unlisten(&mut self, session: u64, name: &str) -> String {
        let session = self.sessions.get_mut(&session);
        match session.and_then(|it| it.values.remove(name)) {
            Some(ChannelKind::Sharded) => push("sunsubscribe", name, ":0\r\n"),
            _ => push("unsubscribe", name, ":0\r\n"),
        }
    }

    /// The state of a lock, whose end is reported from now on; no client here needs the waiters.
    fn info(&mut self, key: &str) -> String {
        if self.is_master {
            self.core.follow(name(key));
        }
        let held = self.core.store.get(self.core.now, name(key));
        let held = held.and_then(Stored::held);
        let live_holders = held.map(|held| held.live_holders(self.core.now));
        let live_holders: Vec<_> = live_holders.into_iter().flatten().collect();
        let number = |fence: Option<Fence>| match fence {
            Some(fence) => format!(":{fence}\r\n"),
            None => "_\r\n".to_owned(),
        };
        let mode = match held {
            Some(held) if held.shared && !live_holders.is_empty() => "shared",
            Some(_) if !live_holders.is_empty() => "exclusive",
            _ => "free",
        };
        let value = held.and_then(|held| held.extras.value.as_deref());
        let value = value.map_or("_\r\n".to_owned(), |value| {
            bulk(&String::from_utf8_lossy(value))
        });
        let holders = live_holders.iter().map(|(owner, it)| {
            let left = it.deadline.millis() - self.core.now.millis();
            map(&[
                ("owner", bulk(owner)),
                ("count", format!(":{}\r\n", it.count)),
                ("permits", format!(":{}\r\n", it.permits)),
                ("lease-left-ms", format!(":{left}\r\n")),
                ("fence", number(it.fence)),
                ("bound", ":0\r\n".to_owned()),
                ("value", value.clone()),
            ])
        });
        let holders: String = holders.collect();
        map(&[
            ("mode", bulk(mode)),
            ("fence", number(held.and_then(|held| held.fence))),
            ("holders", format!("*{}\r\n{holders}", live_holders.len())),
            ("queued", ":0\r\n".to_owned()),
            ("waiters", "*0\r\n".to_owned()),
        ])
    }

    /// The reply to any command, as from a standalone server.
    pub fn answer(&mut self, session: u64, words: &[String]) -> String {
        if !self.sessions.contains_key(&session) {
            return String::new();
        }
        let second = words.get(1).map_or("", String::as_str);
        match (words[0].as_str(), second) {
            ("HELLO", _) => {
                let (mode, role) = (self.mode, if self.is_master { "master" } else { "replica" });
                format!("%2\r\n+mode\r\n+{mode}\r\n+role\r\n+{role}\r\n")
            }
            ("CLIENT", "INFO") => bulk(&format!("id={session} addr=a:{session} laddr=b:1 fd=8")),
            ("CLIENT", "KILL") => {
                let other: u64 = words[3].parse().unwrap();
                let is_there = self.sessions.contains_key(&other);
                if is_there {
                    self.close(other);
                    self.killed.push(other);
                }
                format!(":{}\r\n", u8::from(is_there))
            }
            ("SUBSCRIBE", name) => self.listen(session, ChannelKind::Plain, name),
            ("SSUBSCRIBE", name) => self.listen(session, ChannelKind::Sharded, name),
            ("PING", _) => "+PONG\r\n".to_owned(),
            ("RLOCK.HELP", _) => "*0\r\n".to_owned(),
            ("UNSUBSCRIBE" | "SUNSUBSCRIBE", name) => self.unlisten(session, name),
            ("RLOCK.INFO", key) => self.info(key),
            (command, _) if command.starts_with("RLOCK.") => self.lock(session, words),
            _ => "+OK\r\n".to_owned(),
        }
    }

    /// Carries out a command for a lock.
    pub fn lock(&mut self, session: u64, words: &[String]) -> String {
        let Ok(reply) = self.carry_out(session, words) else {
            return format!("-ERR not understood: {}\r\n", words.join(" "));
        };
        self.core.turn();
        match reply {
            messages::Reply::Fence(fence) => format!(":{}\r\n", fence.get()),
            messages::Reply::Nil => "_\r\n".to_owned(),
            messages::Reply::Waiting => "+WAITING\r\n".to_owned(),
            messages::Reply::Number(number) => format!(":{number}\r\n"),
            messages::Reply::Error(messages::Error::Deadlock | messages::Error::SecondUpgrade) => {
                "-DEADLOCK they wait for each other\r\n".to_owned()
            }
            messages::Reply::Error(messages::Error::HeldInPart) => "-HELD in part\r\n".to_owned(),
            messages::Reply::Blocked | messages::Reply::Error(_) => "-ERR refused\r\n".to_owned(),
        }
    }

    fn carry_out(
        &mut self,
        session: u64,
        words: &[String],
    ) -> Result<messages::Reply<Fence>, ArgError> {
        let core = &mut self.core;
        match words[0].as_str() {
            "RLOCK.ACQUIRE" | "RLOCK.MACQUIRE" => {
                let is_single = words[0] == "RLOCK.ACQUIRE";
                let asked = match is_single {
                    true => syntax::acquire(words, LEASE_MAX_MS),
                    false => syntax::acquire_all(words, LEASE_MAX_MS),
                };
                asked.map(|it| {
                    self.calls += 1;
                    let request = Request {
                        session: Some(session),
                        ..it.request
                    };
                    let call = self.calls;
                    let ask = messages::Ask { request, call };
                    match is_single {
                        true => core.acquire(name(&it.keys[0]), &ask),
                        false => core.acquire_all(&names(it.keys), &ask),
                    }
                })
            }
            "RLOCK.RENEW" => syntax::renew(words, LEASE_MAX_MS).map(|it| {
                let renewal = Renewal {
                    lease_ms: it.lease_ms,
                    fence: it.fence,
                    session: Some(session),
                    channel: it.channel.map(|it| it.channel()),
                    bind: it.bind,
                    extras: it.extras,
                };
                core.renew(name(it.key), it.owner, &renewal)
            }),
            "RLOCK.MRENEW" => syntax::renew_all(words, LEASE_MAX_MS).map(|it| {
                let renewal = Renewal {
                    lease_ms: it.lease_ms,
                    fence: None,
                    session: Some(session),
                    channel: it.channel.map(|it| it.channel()),
                    bind: None,
                    extras: Extras::NONE,
                };
                core.renew_all(&names(it.keys), (it.owner, it.fence), &renewal)
            }),
            "RLOCK.RELEASE" => syntax::release(words).map(|it| match it.permits {
                None => core.release(name(it.key), it.owner, it.all, it.fence),
                Some(permits) => core.release_permits(name(it.key), it.owner, permits, it.fence),
            }),
            "RLOCK.MRELEASE" => syntax::release_all(words)
                .map(|it| core.release_all(&names(it.keys), it.owner, it.all, it.fence)),
            "RLOCK.DOWNGRADE" => {
                syntax::key_and_owner(words).map(|it| core.downgrade(name(it.key), it.owner))
            }
            "RLOCK.CANCEL" => {
                syntax::key_and_owner(words).map(|it| core.cancel(name(it.key), it.owner, session))
            }
            "RLOCK.FORCE" => {
                syntax::force(words).map(|it| core.force(name(it.key), it.queue, it.fence))
            }
            _ => Err(ArgError::Arity),
        }
    }
}

fn name(key: &str) -> Name<'_> {
    let key = key.as_bytes();
    Name { db: 0, key }
}

fn names(keys: &[String]) -> Vec<Name<'_>> {
    keys.iter().map(|key| name(key)).collect()
}

fn message(kind: ChannelKind) -> &'static str {
    match kind {
        ChannelKind::Plain => "message",
        _ => "smessage",
    }
}

fn map(fields: &[(&str, String)]) -> String {
    let fields = fields.iter().map(|(name, value)| bulk(name) + value);
    format!("%{}\r\n{}", fields.len(), fields.collect::<String>())
}

pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

pub fn push(kind: &str, channel: &str, last: &str) -> String {
    format!(">3\r\n{}{}{last}", bulk(kind), bulk(channel))
}
