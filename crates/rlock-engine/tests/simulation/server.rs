//! A server: the core, its connections, and their channels.

use std::collections::BTreeMap;

use rlock_core::{ChannelKind, Limits, Timestamp};
use rlock_engine::engine::claims::Claims;
use rlock_engine::engine::request::{NoticeKind, Reply};
use rlock_engine::error::{Failure, Fault, ServerError};

use crate::cluster::View;
use rlock_testkit::core::driver::Driver;
use rlock_testkit::core::messages;

pub(crate) const START: u64 = 1_700_000_000_000_000;

pub(crate) struct Server {
    pub(crate) core: Driver,
    pub(crate) is_master: bool,
    /// The slots in its view.
    pub(crate) view: View,
    /// The open connections.
    pub(crate) sessions: BTreeMap<u64, Peer>,
    /// The connection that reports the loss of a hold, or will report it once its
    /// waiting owner holds the lock.
    pub(crate) watched: BTreeMap<Vec<u8>, u64>,
    pub(crate) queued: BTreeMap<Vec<u8>, u64>,
    /// Until when it refuses everything.
    pub(crate) refuses_until: u64,
    /// Until when its process is paused or gone.
    pub(crate) down_until: u64,
    /// How far the clock was set forward, in microseconds.
    pub(crate) ahead: u64,
    pub(crate) calls: u64,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) client: usize,
    /// False if it only asks for a moving slot.
    listens: bool,
}

/// A message to a client.
pub(crate) struct Message {
    pub(crate) client: usize,
    pub(crate) word: NoticeKind,
    pub(crate) fence: u64,
    pub(crate) name: Vec<u8>,
}

impl Server {
    pub(crate) fn new() -> Self {
        let limits = Limits {
            waiters_max: 10_000,
            watches_max: 100_000,
            shared_max: 262_144,
            shared_elsewhere: 0,
            detects_deadlocks: true,
        };
        Self {
            core: Driver::new(Timestamp::from_micros(START), limits),
            is_master: false,
            view: View::default(),
            sessions: BTreeMap::new(),
            watched: BTreeMap::new(),
            queued: BTreeMap::new(),
            refuses_until: 0,
            down_until: 0,
            ahead: 0,
            calls: 0,
        }
    }

    /// By the clock of the world, in nanoseconds.
    pub(crate) fn set_time(&mut self, now: u64) {
        let time = self.time(now);
        if time > self.core.now {
            self.core.advance(time);
        }
        self.core.turn();
    }

    pub(crate) fn time(&self, now: u64) -> Timestamp {
        Timestamp::from_micros(START + now / 1000 + self.ahead)
    }

    /// Whether nobody holds or waits for anything.
    pub(crate) fn is_unused(&self, now: u64) -> bool {
        let store = &self.core.store;
        let is_over = |(db, key): &(u32, Vec<u8>)| {
            let name = rlock_core::Name { db: *db, key };
            store.get(self.time(now), name).is_none()
        };
        let is_free = !self.is_master || store.keys.keys().all(is_over);
        is_free && self.core.locks.gauges().waiters == 0
    }

    /// The next deadline, by the clock of the world.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let next = self.core.locks.next_deadline(self.core.now)?;
        let micros = next.micros().checked_sub(START + self.ahead)?;
        Some((micros + 1) * 1000)
    }

    pub(crate) fn is_down(&self, now: u64) -> bool {
        now < self.down_until
    }

    pub(crate) fn open(&mut self, session: u64, client: usize) {
        self.core.listened.insert(channel(client));
        let listens = true;
        self.sessions.insert(session, Peer { client, listens });
    }

    /// A connection that only asks for a moving slot.
    pub(crate) fn open_to_ask(&mut self, session: u64, client: usize) {
        let listens = false;
        self.sessions.insert(session, Peer { client, listens });
    }

    pub(crate) fn close(&mut self, session: u64) {
        let Some(Peer { client, .. }) = self.sessions.remove(&session) else {
            return;
        };
        let mut others = self.sessions.values();
        if !others.any(|it| it.client == client && it.listens) {
            self.core.listened.remove(&channel(client));
        }
        self.watched.retain(|_, by| *by != session);
        self.queued.retain(|_, by| *by != session);
        self.core.close(session);
        self.core.turn();
    }

    /// It is a replica from now on.
    pub(crate) fn demote(&mut self) {
        self.core.locks.demote();
        while let Some(ended) = self.core.locks.next_stale() {
            if let rlock_core::Delivery::Notify(listener) = &ended.delivery {
                let (db, key) = (0, &*ended.key);
                let name = rlock_core::Name { db, key };
                let word = messages::MessageKind::Withdrawn;
                self.core.publish(name, listener, word, &ended.owner, None);
            }
        }
        self.watched.clear();
    }

    /// The connection that reports the loss of a hold.
    pub(crate) fn watcher(&self, name: &[u8]) -> Option<u64> {
        self.watched.get(name).copied()
    }

    /// Ends the watches of a key.
    pub(crate) fn unwatch(&mut self, key: &str) {
        let end = format!(" {key}").into_bytes();
        self.watched.retain(|name, _| !name.ends_with(&end));
    }

    pub(crate) fn note_listener(
        &mut self,
        session: u64,
        claims: &Claims,
        reply: &Result<Reply, Fault>,
    ) {
        let name = name(claims);
        match reply {
            Ok(Reply::Fence(_)) => drop(self.watched.insert(name, session)),
            Ok(Reply::Queued) => drop(self.queued.insert(name, session)),
            _ => {}
        }
    }

    pub(crate) fn messages(&mut self) -> Vec<Message> {
        let sent = std::mem::take(&mut self.core.sent);
        let messages = sent.into_iter().filter_map(|sent| match sent {
            messages::Sent::Message {
                key,
                channel: (_, channel),
                word,
                owner,
                fence,
            } => Some(Message {
                client: channel
                    .parse()
                    .expect("a channel is the number of a client"),
                word: match word {
                    messages::MessageKind::Grant => NoticeKind::Grant,
                    messages::MessageKind::WaitOver => NoticeKind::WaitEnded,
                    messages::MessageKind::Withdrawn => NoticeKind::Withdrawn,
                    messages::MessageKind::Lost => NoticeKind::Lost,
                },
                fence: fence.map_or(0, rlock_core::Fence::get),
                name: format!("{owner} {key}").into_bytes(),
            }),
            messages::Sent::Answer { .. }
            | messages::Sent::Unlock { .. }
            | messages::Sent::Value { .. } => None,
        });
        let messages: Vec<_> = messages.collect();
        for message in &messages {
            match message.word {
                NoticeKind::Grant => {
                    let by = self.queued.remove(&message.name);
                    self.watched.extend(by.map(|by| (message.name.clone(), by)));
                }
                NoticeKind::Lost => drop(self.watched.remove(&message.name)),
                NoticeKind::WaitEnded | NoticeKind::Withdrawn => {}
            }
        }
        messages
    }
}

fn channel(client: usize) -> messages::OnChannel {
    (ChannelKind::Plain, client.to_string())
}

/// The name in messages.
pub(crate) fn name(claims: &Claims) -> Vec<u8> {
    let owner = claims.owner().as_str().as_bytes();
    [owner, b" ", claims.key()].concat()
}

pub(crate) fn failure(text: &str) -> Failure {
    Failure::Io(text.to_owned())
}

/// A cluster server's error for a key that it does not have.
pub(crate) fn moved(code: &str) -> ServerError {
    let (code, message) = (code.to_owned(), String::new());
    ServerError { code, message }
}
