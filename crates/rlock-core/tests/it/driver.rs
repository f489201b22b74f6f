//! The core with everything around it that it needs: a keyspace, a clock,
//! connections and channels. This is what the shell does on a server, done
//! here with plain data.

use std::collections::{BTreeMap, BTreeSet};

use rlock_core::{
    Admission, Announce, Delivery, Effect, Fence, Hold, Limits, Locks, Name, Refusal, Request,
    Step, TicketId, Timestamp,
};

use crate::{
    store::Store,
    stored::Others,
    told::{Ask, Mode, Outcome, Reply, Told, Via},
};

/// A request that was given a place in a queue.
#[derive(Debug)]
pub(crate) struct Queued {
    /// Its first key.
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) ticket: TicketId,
}

pub(crate) struct Driver {
    pub(crate) locks: Locks,
    pub(crate) store: Store,
    pub(crate) now: Timestamp,
    pub(crate) limits: Limits,
    pub(crate) listened: BTreeSet<String>,
    /// Whether somebody listens on the unlock channels.
    pub(crate) overheard: bool,
    /// What others were told since somebody looked.
    pub(crate) told: Vec<Told<Fence>>,
    /// What was queued since somebody looked.
    pub(crate) queued: Vec<Queued>,
    /// Locks that a command has left free.
    pub(crate) freed: Vec<(u32, Box<[u8]>)>,
    /// The owners of the last refusal that was a cycle.
    pub(crate) cycle: Vec<String>,
    /// Blocked calls, those that have been answered too, and their tickets.
    pub(crate) calls: BTreeMap<u64, TicketId>,
}

impl Driver {
    pub(crate) fn new(now: Timestamp, limits: Limits) -> Self {
        Self {
            locks: Locks::default(),
            store: Store::default(),
            now,
            limits,
            listened: BTreeSet::new(),
            overheard: true,
            told: Vec::new(),
            queued: Vec::new(),
            freed: Vec::new(),
            cycle: Vec::new(),
            calls: BTreeMap::new(),
        }
    }

    pub(crate) fn acquire(&mut self, name: Name<'_>, ask: &Ask<'_>) -> Reply<Fence> {
        let request = request(ask);
        self.command(name, Some(ask.owner), |driver, hold| {
            let others = Others {
                store: &driver.store,
                now: driver.now,
            };
            let (now, limits) = (driver.now, &driver.limits);
            let step = driver
                .locks
                .acquire(now, name, hold, &request, limits, &others);
            let step = match step {
                Ok(step) => step,
                Err(refusal) => return (driver.refused(refusal), Announce::No),
            };
            let announce = driver.perform(name, hold, step.effects, step.announce);
            let reply = match step.reply {
                Admission::Granted(fence) => Reply::Fence(fence),
                Admission::Busy => Reply::Nil,
                Admission::MustWait => driver.enqueue(name, hold, &request, &ask.via),
            };
            (reply, announce)
        })
    }

    fn enqueue(
        &mut self,
        name: Name<'_>,
        hold: &Hold,
        request: &Request<'_>,
        via: &Via,
    ) -> Reply<Fence> {
        let delivery = self.delivery(via);
        let placed = self.locks.enqueue(self.now, name, hold, request, delivery);
        self.place(name, request, via, placed)
    }

    pub(crate) fn delivery(&self, via: &Via) -> Delivery {
        match via {
            Via::Call { session, handle } => Delivery::Blocked {
                session: *session,
                handle: *handle,
            },
            Via::Channel { session, channel } => {
                self.locks.by_message(*session, channel.as_bytes())
            }
        }
    }

    /// Takes note of a place in a queue, and tells whoever had it.
    pub(crate) fn place(
        &mut self,
        name: Name<'_>,
        request: &Request<'_>,
        via: &Via,
        (ticket, effect): (TicketId, Option<Effect>),
    ) -> Reply<Fence> {
        if let Some(Effect::Withdrawn(earlier)) = effect {
            self.answer(name, &earlier, Outcome::Superseded);
        }
        self.queued.push(Queued {
            key: text(name.key),
            owner: text(request.owner),
            ticket,
        });
        match via {
            Via::Call { handle, .. } => {
                self.calls.insert(*handle, ticket);
                Reply::Blocked
            }
            Via::Channel { .. } => Reply::Waiting,
        }
    }

    pub(crate) fn renew(
        &mut self,
        name: Name<'_>,
        owner: &str,
        lease_ms: u32,
        session: u64,
    ) -> Reply<Fence> {
        self.step(name, Some(owner), |locks, now, hold| {
            let owner = owner.as_bytes();
            let step = locks.renew(now, name, hold, owner, lease_ms, Some(session));
            reply(step, |fence| fence.map_or(Reply::Nil, Reply::Fence))
        })
    }

    pub(crate) fn release(&mut self, name: Name<'_>, owner: &str, all: bool) -> Reply<Fence> {
        self.step(name, Some(owner), |locks, now, hold| {
            let step = locks.release(now, name, hold, owner.as_bytes(), all);
            reply(step, |left| {
                left.map_or(Reply::Nil, |it| Reply::Number(it.into()))
            })
        })
    }

    pub(crate) fn downgrade(&mut self, name: Name<'_>, owner: &str) -> Reply<Fence> {
        self.step(name, Some(owner), |locks, now, hold| {
            let step = locks.downgrade(now, name, hold, owner.as_bytes());
            reply(step, |fence| fence.map_or(Reply::Nil, Reply::Fence))
        })
    }

    pub(crate) fn force(&mut self, name: Name<'_>) -> Reply<Fence> {
        self.step(name, None, |locks, now, hold| {
            reply(locks.force(now, name, hold), Reply::Number)
        })
    }

    /// What the shell does when the reply of a grant could not be written.
    pub(crate) fn undeliver(
        &mut self,
        names: &[Name<'_>],
        owner: &str,
        fence: Fence,
    ) -> Reply<Fence> {
        let mut taken = false;
        for name in names {
            let mut opened = self.open(*name, Some(owner));
            let (now, hold) = (self.now, &mut opened.hold);
            if *hold != Hold::NoLock {
                let owner = owner.as_bytes();
                let step = self.locks.undeliver(now, *name, hold, owner, fence);
                taken |= step.reply;
                self.carry_on(*name, &mut opened, step.with(Reply::Nil));
            }
            self.close_up(*name, Some(owner), opened);
        }
        if taken {
            self.locks.count_undelivered();
        }
        self.finish();
        Reply::Number(taken.into())
    }

    /// Looks at no hold, so that it works whatever the key holds.
    pub(crate) fn cancel(&mut self, name: Name<'_>, owner: &str) -> Reply<Fence> {
        let cancelled = self.locks.cancel(name, owner.as_bytes());
        self.locks.settle_later(name);
        let Some(delivery) = cancelled else {
            return Reply::Number(0);
        };
        self.answer(name, &delivery, Outcome::Cancelled);
        Reply::Number(1)
    }

    /// The end of the connection of a blocked call; false if the call was
    /// answered before.
    pub(crate) fn hang_up(&mut self, handle: u64) -> bool {
        let ticket = self.calls.get(&handle).copied();
        ticket.is_some_and(|ticket| self.locks.caller_gone(ticket, handle))
    }

    /// The end of a connection, and of what it asked for.
    pub(crate) fn close(&mut self, session: u64) {
        self.locks.session_closed(self.now, session);
        while !self.locks.sweep(1) {}
    }

    pub(crate) fn refused(&mut self, refusal: Refusal) -> Reply<Fence> {
        match refusal {
            Refusal::AlreadyQueued { .. } => Reply::AlreadyQueued,
            Refusal::TooManyWaiters { .. } | Refusal::TooManyWatches { .. } => Reply::QueueFull,
            Refusal::CountOverflow => Reply::CountFull,
            Refusal::OtherRequest { .. } => Reply::Conflict,
            Refusal::PartlyHeld { .. } => Reply::HeldInPart,
            Refusal::Deadlock { owners } => {
                self.cycle = owners.iter().map(|it| text(it)).collect();
                Reply::Deadlock
            }
            Refusal::UpgradeDeadlock { owners } => {
                self.cycle = owners.iter().map(|it| text(it)).collect();
                Reply::SecondUpgrade
            }
        }
    }
}

pub(crate) fn request<'a>(ask: &'a Ask<'_>) -> Request<'a> {
    let channel = match &ask.via {
        Via::Channel { channel, .. } => Some(channel.as_bytes()),
        Via::Call { .. } => None,
    };
    Request {
        owner: ask.owner.as_bytes(),
        mode: match ask.mode {
            Mode::Exclusive => rlock_core::Mode::Exclusive,
            Mode::Shared { permits, limit } => rlock_core::Mode::Shared { permits, limit },
        },
        lease_ms: ask.lease_ms,
        once: ask.once,
        wait: ask.wait,
        session: Some(ask.via.session()),
        channel,
        grace_ms: ask.grace_ms,
    }
}

pub(crate) fn reply<T>(step: Step<T>, with: impl FnOnce(T) -> Reply<Fence>) -> Step<Reply<Fence>> {
    Step {
        reply: with(step.reply),
        effects: step.effects,
        announce: step.announce,
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
