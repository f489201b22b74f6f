//! How the server carries out requests of the engine.

use std::time::Duration;

use rlock_core::{
    AcquireOptions, Channel, ChannelKind, Extras, Grace, Mode, Name, Renewal, Request as Asked,
    Wait,
};
use rlock_engine::engine::claims::Claims;
use rlock_engine::engine::request::{Reply, Request, Undo};
use rlock_engine::engine::terms::{Ask, Queueing, Value};
use rlock_engine::error::{Error, Fault};

use crate::server::{Server, failure};
use rlock_testkit::core::messages;

/// The longest time for which a server keeps a place, as the client requests.
const KEPT_MAX: Duration = Duration::from_secs(10);

impl Server {
    pub(crate) fn carry_out(
        &mut self,
        now: u64,
        session: u64,
        request: &Request,
    ) -> Result<Reply, Fault> {
        if now < self.refuses_until && !matches!(request, Request::Ping) {
            return Err(Fault::Transient(failure("NOREPLICAS")));
        }
        let reply = match request {
            Request::Acquire { claims, .. } => self.acquire(session, claims, request),
            Request::Renew {
                claims,
                terms,
                known,
                raise,
                notify,
                value,
                ..
            } => {
                self.calls += 1;
                let name = self.sessions[&session].client.to_string();
                let renewal = Renewal {
                    lease_ms: u32::try_from(terms.lease.as_millis()).expect("a short lease"),
                    fence: raise.and_then(rlock_core::Fence::new),
                    session: Some(session),
                    channel: notify.then_some(Channel {
                        kind: ChannelKind::Plain,
                        name: name.as_bytes(),
                    }),
                    bind: terms.bound.map(grace),
                    extras: Extras {
                        value: value.as_ref().map(Value::as_bytes),
                    },
                };
                let reply = self.renew(claims, *known, &renewal);
                if *notify {
                    self.note_listener(session, claims, &reply);
                }
                match reply {
                    // Sometimes replicas are unreachable.
                    Ok(Reply::Fence(_))
                        if request.replicas() > 0 && self.calls.is_multiple_of(3) =>
                    {
                        Ok(Reply::TooFew(0))
                    }
                    reply => reply,
                }
            }
            Request::Release { claims, fence } => Ok(self.release(claims, *fence)),
            Request::ReleaseEach { claims, fence } => {
                self.release(claims, *fence);
                Ok(Reply::Done)
            }
            Request::ReleasePermits {
                claims,
                permits,
                fence,
            } => {
                let (key, owner) = (names(claims)[0], claims.owner().as_str());
                let permits = u32::try_from(*permits).expect("few permits");
                let fence = rlock_core::Fence::new(*fence);
                match self.core.release_permits(key, owner, permits, fence) {
                    messages::Reply::Error(_) => Err(refused()),
                    messages::Reply::Nil => Ok(Reply::Nil),
                    _ => Ok(Reply::Done),
                }
            }
            Request::CountPermits { claims, fence } => Ok(match self.permits(claims, *fence) {
                Some(permits) => Reply::Count(permits.into()),
                None => Reply::Nil,
            }),
            Request::Downgrade { claims } => Ok(self.downgrade(claims)),
            Request::Cancel { claims } => Ok(Reply::Count(self.cancel(session, claims))),
            Request::CleanUp { claims, undo } => {
                self.cancel(session, claims);
                Ok(match undo {
                    Undo::Nothing => Reply::Done,
                    Undo::Release => {
                        self.release(claims, None);
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
            terms,
            queueing,
            notify,
            value,
            ..
        } = request
        else {
            unreachable!("only this is passed on");
        };
        let name = self.sessions[&session].client.to_string();
        let wait = |wait: Duration| {
            u32::try_from(wait.as_millis())
                .expect("a short wait")
                .max(1)
        };
        let asked = Asked {
            owner: claims.owner().as_str().as_bytes(),
            options: AcquireOptions {
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
                lease_ms: wait(terms.lease),
                reenter: false,
                keep: match queueing {
                    Queueing::Try => None,
                    Queueing::AtMost(time) => Some(Grace::from_millis(wait((*time).min(KEPT_MAX)))),
                    Queueing::Unlimited => Some(Grace::from_millis(wait(KEPT_MAX))),
                },
                bind: terms.bound.map(grace),
            },
            wait: match queueing {
                Queueing::Try => Wait::No,
                Queueing::AtMost(time) => Wait::Millis(wait(*time).into()),
                Queueing::Unlimited => Wait::Forever,
            },
            session: Some(session),
            user: None,
            channel: notify.then_some(Channel {
                kind: ChannelKind::Plain,
                name: name.as_bytes(),
            }),
            extras: Extras {
                value: value.as_ref().map(Value::as_bytes),
            },
        };
        self.calls += 1;
        let ask = messages::Ask {
            request: asked,
            call: self.calls,
        };
        let keys: Vec<Name<'_>> = names(claims);
        let reply = match keys.as_slice() {
            [key] => self.core.acquire(*key, &ask),
            keys => self.core.acquire_all(keys, &ask),
        };
        let reply = read(reply);
        if *notify {
            self.note_listener(session, claims, &reply);
        }
        reply
    }

    fn renew(
        &mut self,
        claims: &Claims,
        known: u64,
        renewal: &Renewal<'_>,
    ) -> Result<Reply, Fault> {
        let (keys, owner) = (names(claims), claims.owner().as_str());
        match keys.as_slice() {
            [key] => read(self.core.renew(*key, owner, renewal)),
            keys => {
                let whose = (owner, rlock_core::Fence::new(known));
                match self.core.renew_all(keys, whose, renewal) {
                    messages::Reply::Number(held) if held == keys.len() as u64 => {
                        Ok(Reply::Fence(known))
                    }
                    messages::Reply::Error(_) => Err(refused()),
                    _ => Ok(Reply::Nil),
                }
            }
        }
    }

    fn release(&mut self, claims: &Claims, fence: Option<u64>) -> Reply {
        let fence = fence.and_then(rlock_core::Fence::new);
        let (keys, owner) = (names(claims), claims.owner().as_str());
        match keys.as_slice() {
            [key] => match self.core.release(*key, owner, true, fence) {
                messages::Reply::Nil => Reply::Nil,
                _ => Reply::Done,
            },
            keys => match self.core.release_all(keys, owner, true, fence) {
                messages::Reply::Number(held) if held == keys.len() as u64 => Reply::Done,
                _ => Reply::Nil,
            },
        }
    }

    /// How many permits the hold with this fence has; none if there is no such hold.
    pub(crate) fn permits(&self, claims: &Claims, fence: u64) -> Option<u32> {
        let (key, owner) = (names(claims)[0], claims.owner().as_str());
        let held = self.core.store.get(self.core.now, key)?.held()?;
        let mut holders = held.live_holders(self.core.now);
        let is_ours = |it: &rlock_core::Fence| it.get() == fence;
        let (_, hold) =
            holders.find(|(name, it)| *name == owner && it.fence.as_ref().is_some_and(is_ours))?;
        Some(hold.permits)
    }

    fn downgrade(&mut self, claims: &Claims) -> Reply {
        let (key, owner) = (names(claims)[0], claims.owner().as_str());
        match self.core.downgrade(key, owner) {
            messages::Reply::Fence(fence) => Reply::Fence(fence.get()),
            _ => Reply::Nil,
        }
    }

    fn cancel(&mut self, session: u64, claims: &Claims) -> u64 {
        let (key, owner) = (names(claims)[0], claims.owner().as_str());
        match self.core.cancel(key, owner, session) {
            messages::Reply::Number(places) => places,
            _ => 0,
        }
    }
}

fn names(claims: &Claims) -> Vec<Name<'_>> {
    claims.keys().map(|key| Name { db: 0, key }).collect()
}

fn read(reply: messages::Reply<rlock_core::Fence>) -> Result<Reply, Fault> {
    match reply {
        messages::Reply::Fence(fence) => Ok(Reply::Fence(fence.get())),
        messages::Reply::Nil => Ok(Reply::Nil),
        messages::Reply::Waiting => Ok(Reply::Queued),
        messages::Reply::Number(number) => Ok(Reply::Count(number)),
        messages::Reply::Blocked | messages::Reply::Error(_) => Err(refused()),
    }
}

fn grace(grace: Duration) -> Grace {
    Grace::from_millis(u32::try_from(grace.as_millis()).expect("a short grace"))
}

fn refused() -> Fault {
    Fault::Refused(Error::Protocol("refused".into()))
}
