//! The server: the core behind the requests of the engine.

use std::collections::BTreeMap;
use std::time::Duration;

use rlock_core::{
    Channel, ChannelKind, Limits, Mode, Name, Renewal, Request as Asked, Timestamp, Wait,
};

use crate::driver::Driver;
use crate::engine::ask::{Ask, Queueing};
use crate::engine::claims::Claims;
use crate::engine::notices::Word;
use crate::engine::request::{Reply, Request, Undo};
use crate::error::{Error, Fault};
use crate::told;

/// What a server keeps a place for at most, as the client asks.
const KEPT_MAX: Duration = Duration::from_secs(10);
const START: u64 = 1_700_000_000_000_000;

pub(crate) struct Server {
    pub(crate) core: Driver,
    /// The connections that are open here, each with its client.
    pub(crate) sessions: BTreeMap<u64, usize>,
    /// Until when all is refused.
    pub(crate) refuses_until: u64,
    /// How far somebody has set the clock forward, in microseconds.
    pub(crate) ahead: u64,
    calls: u64,
}

/// A message to a client.
pub(crate) struct Message {
    pub(crate) client: usize,
    pub(crate) word: Word,
    pub(crate) fence: u64,
    pub(crate) name: Vec<u8>,
}

impl Server {
    pub(crate) fn new() -> Self {
        let limits = Limits {
            waiters_max: 10_000,
            watches_max: 100_000,
            detects_deadlocks: true,
        };
        Self {
            core: Driver::new(Timestamp::from_micros(START), limits),
            sessions: BTreeMap::new(),
            refuses_until: 0,
            ahead: 0,
            calls: 0,
        }
    }

    /// By the clock of the world, in nanoseconds.
    pub(crate) fn set_time(&mut self, now: u64) {
        let time = Timestamp::from_micros(START + now / 1000 + self.ahead);
        if time > self.core.now {
            self.core.advance(time);
        }
        self.core.turn();
    }

    /// When something is due, by the clock of the world.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let next = self.core.locks.next_deadline(self.core.now)?;
        let micros = next.micros().checked_sub(START + self.ahead)?;
        Some((micros + 1) * 1000)
    }

    pub(crate) fn open(&mut self, session: u64, client: usize) {
        self.sessions.insert(session, client);
        self.core.listened.insert(channel(client));
    }

    pub(crate) fn close(&mut self, session: u64) {
        let Some(client) = self.sessions.remove(&session) else {
            return;
        };
        if !self.sessions.values().any(|other| *other == client) {
            self.core.listened.remove(&channel(client));
        }
        self.core.close(session);
        self.core.turn();
    }

    pub(crate) fn messages(&mut self) -> Vec<Message> {
        let told = std::mem::take(&mut self.core.told);
        let messages = told.into_iter().filter_map(|told| match told {
            told::Told::Message {
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
                    told::Word::Grant => Word::Grant,
                    told::Word::WaitOver => Word::WaitEnded,
                    told::Word::Withdrawn => Word::Withdrawn,
                    told::Word::Lost => Word::Lost,
                },
                fence: fence.map_or(0, rlock_core::Fence::get),
                name: format!("{owner} {key}").into_bytes(),
            }),
            told::Told::Answer { .. } | told::Told::Unlock { .. } => None,
        });
        messages.collect()
    }

    pub(crate) fn carry_out(
        &mut self,
        now: u64,
        session: u64,
        request: &Request,
    ) -> Result<Reply, Fault> {
        if now < self.refuses_until && !matches!(request, Request::Ping) {
            return Err(Fault::Passing(failure("NOREPLICAS")));
        }
        let reply = match request {
            Request::Acquire { claims, .. } => self.acquire(session, claims, request),
            Request::Renew {
                claims,
                lease,
                known,
                raise,
                replicas,
            } => {
                self.calls += 1;
                match self.renew(session, claims, *lease, *known, *raise) {
                    // Now and then they are away.
                    Ok(Reply::Fence(_)) if *replicas > 0 && self.calls % 3 == 0 => {
                        Ok(Reply::TooFew(0))
                    }
                    reply => reply,
                }
            }
            Request::Release { claims } => Ok(self.release(claims)),
            Request::ReleaseEach { claims } => {
                self.release(claims);
                Ok(Reply::Done)
            }
            Request::Downgrade { claims } => Ok(self.downgrade(claims)),
            Request::Cancel { claims } => Ok(Reply::Count(self.cancel(session, claims))),
            Request::CleanUp { claims, undo } => {
                self.cancel(session, claims);
                Ok(match undo {
                    Undo::Nothing => Reply::Done,
                    Undo::Release => {
                        self.release(claims);
                        Reply::Done
                    }
                    Undo::Downgrade => self.downgrade(claims),
                })
            }
            Request::Ping => Ok(Reply::Done),
        };
        self.core.turn();
        reply
    }

    fn acquire(
        &mut self,
        session: u64,
        claims: &Claims,
        request: &Request,
    ) -> Result<Reply, Fault> {
        let Request::Acquire {
            ask,
            lease,
            bound,
            queueing,
            notify,
            ..
        } = request
        else {
            unreachable!("only this is passed on");
        };
        let name = self.sessions[&session].to_string();
        let wait = |wait: Duration| {
            u32::try_from(wait.as_millis())
                .expect("a short wait")
                .max(1)
        };
        let asked = Asked {
            owner: claims.owner().as_str().as_bytes(),
            mode: match ask {
                Ask::Exclusive => Mode::Exclusive,
                Ask::Shared => Mode::Shared {
                    permits: 1,
                    limit: None,
                },
                Ask::Permits { limit, permits } => Mode::Shared {
                    permits: *permits,
                    limit: Some(*limit),
                },
            },
            lease_ms: wait(*lease),
            reenter: false,
            wait: match queueing {
                Queueing::Try => Wait::No,
                Queueing::AtMost(time) => Wait::Millis(wait(*time).into()),
                Queueing::Unlimited => Wait::Forever,
            },
            keep_ms: match queueing {
                Queueing::Try => None,
                Queueing::AtMost(time) => Some(wait((*time).min(KEPT_MAX))),
                Queueing::Unlimited => Some(wait(KEPT_MAX)),
            },
            session: Some(session),
            channel: notify.then_some(Channel {
                kind: ChannelKind::Plain,
                name: name.as_bytes(),
            }),
            grace_ms: bound.map(|grace| u32::try_from(grace.as_millis()).expect("a short grace")),
        };
        self.calls += 1;
        let ask = told::Ask {
            request: asked,
            call: self.calls,
        };
        let keys: Vec<Name<'_>> = names(claims);
        let reply = match keys.as_slice() {
            [key] => self.core.acquire(*key, &ask),
            keys => self.core.acquire_all(keys, &ask),
        };
        read(reply)
    }

    fn renew(
        &mut self,
        session: u64,
        claims: &Claims,
        lease: Duration,
        known: u64,
        raise: Option<u64>,
    ) -> Result<Reply, Fault> {
        let renewal = Renewal {
            lease_ms: u32::try_from(lease.as_millis()).expect("a short lease"),
            fence: raise.and_then(rlock_core::Fence::new),
            session: Some(session),
        };
        let (keys, owner) = (names(claims), claims.owner().as_str());
        match keys.as_slice() {
            [key] => read(self.core.renew(*key, owner, &renewal)),
            keys => match self.core.renew_all(keys, owner, &renewal) {
                told::Reply::Number(held) if held == keys.len() as u64 => Ok(Reply::Fence(known)),
                told::Reply::Error(_) => Err(refused()),
                _ => Ok(Reply::Nil),
            },
        }
    }

    fn release(&mut self, claims: &Claims) -> Reply {
        let (keys, owner) = (names(claims), claims.owner().as_str());
        match keys.as_slice() {
            [key] => match self.core.release(*key, owner, true) {
                told::Reply::Nil => Reply::Nil,
                _ => Reply::Done,
            },
            keys => match self.core.release_all(keys, owner, true) {
                told::Reply::Number(held) if held == keys.len() as u64 => Reply::Done,
                _ => Reply::Nil,
            },
        }
    }

    fn downgrade(&mut self, claims: &Claims) -> Reply {
        let (key, owner) = (names(claims)[0], claims.owner().as_str());
        match self.core.downgrade(key, owner) {
            told::Reply::Fence(fence) => Reply::Fence(fence.get()),
            _ => Reply::Nil,
        }
    }

    fn cancel(&mut self, session: u64, claims: &Claims) -> u64 {
        let (key, owner) = (names(claims)[0], claims.owner().as_str());
        match self.core.cancel(key, owner, session) {
            told::Reply::Number(places) => places,
            _ => 0,
        }
    }
}

fn channel(client: usize) -> told::OnChannel {
    (ChannelKind::Plain, client.to_string())
}

fn names(claims: &Claims) -> Vec<Name<'_>> {
    claims.keys().map(|key| Name { db: 0, key }).collect()
}

fn read(reply: told::Reply<rlock_core::Fence>) -> Result<Reply, Fault> {
    match reply {
        told::Reply::Fence(fence) => Ok(Reply::Fence(fence.get())),
        told::Reply::Nil => Ok(Reply::Nil),
        told::Reply::Waiting => Ok(Reply::Queued),
        told::Reply::Number(number) => Ok(Reply::Count(number)),
        told::Reply::Blocked | told::Reply::Error(_) => Err(refused()),
    }
}

fn refused() -> Fault {
    Fault::Refused(Error::Protocol("refused".into()))
}

pub(crate) fn failure(text: &'static str) -> redis::RedisError {
    (redis::ErrorKind::Io, text).into()
}
