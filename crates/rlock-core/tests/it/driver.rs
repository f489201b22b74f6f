//! The core with everything around it that it needs: a keyspace, a clock,
//! connections and channels. This is what the shell does on a server, done
//! here with plain data.

use std::collections::{BTreeMap, BTreeSet};

use rlock_core::{
    Admission, Announce, Delivery, Due, Effect, Fence, Hold, Limits, Locks, Mode, Name, Refusal,
    Request, Step, TicketId, Timestamp,
};

use crate::{
    store::Store,
    told::{Ask, Outcome, Reply, Told, Via},
};

/// A request that was given a place in a queue.
#[derive(Debug)]
pub(crate) struct Queued {
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
    /// What others were told since somebody looked.
    pub(crate) told: Vec<Told<Fence>>,
    /// What was queued since somebody looked.
    pub(crate) queued: Vec<Queued>,
    /// Blocked calls, those that have been answered too, and their tickets.
    calls: BTreeMap<u64, TicketId>,
}

impl Driver {
    pub(crate) fn new(now: Timestamp, limits: Limits) -> Self {
        Self {
            locks: Locks::default(),
            store: Store::default(),
            now,
            limits,
            listened: BTreeSet::new(),
            told: Vec::new(),
            queued: Vec::new(),
            calls: BTreeMap::new(),
        }
    }

    pub(crate) fn acquire(&mut self, name: Name<'_>, ask: &Ask<'_>) -> Reply<Fence> {
        let notify = match &ask.via {
            Via::Channel { session, channel } => Some((*session, channel.as_bytes())),
            Via::Call { .. } => None,
        };
        let request = Request {
            owner: ask.owner.as_bytes(),
            mode: Mode::Exclusive,
            lease_ms: ask.lease_ms,
            once: ask.once,
            wait: ask.wait,
            notify,
        };
        self.command(name, Some(ask.owner), |driver, hold| {
            let (now, limits) = (driver.now, driver.limits);
            let step = driver.locks.acquire(now, name, hold, &request, &limits);
            let step = match step {
                Ok(step) => step,
                Err(refusal) => return (refused(refusal), Announce::No),
            };
            driver.perform(name, hold, step.effects);
            let reply = match step.reply {
                Admission::Granted(fence) => Reply::Fence(fence),
                Admission::Busy => Reply::Nil,
                Admission::MustWait => driver.enqueue(name, hold, &request, &ask.via),
            };
            (reply, step.announce)
        })
    }

    fn enqueue(
        &mut self,
        name: Name<'_>,
        hold: &mut Hold,
        request: &Request<'_>,
        via: &Via,
    ) -> Reply<Fence> {
        let delivery = match via {
            Via::Call { session, handle } => Delivery::Blocked {
                session: *session,
                handle: *handle,
            },
            Via::Channel { session, channel } => {
                self.locks.by_message(*session, channel.as_bytes())
            }
        };
        let (ticket, effect) = self.locks.enqueue(self.now, name, hold, request, delivery);
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

    pub(crate) fn renew(&mut self, name: Name<'_>, owner: &str, lease_ms: u64) -> Reply<Fence> {
        self.step(name, Some(owner), |locks, now, hold| {
            let step = locks.renew(now, name, hold, owner.as_bytes(), lease_ms);
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

    pub(crate) fn force(&mut self, name: Name<'_>) -> Reply<Fence> {
        self.step(name, None, |locks, now, hold| {
            reply(locks.force(now, name, hold), Reply::Number)
        })
    }

    /// What the shell does when the reply of a grant could not be written.
    pub(crate) fn undeliver(&mut self, name: Name<'_>, owner: &str, fence: Fence) -> Reply<Fence> {
        self.step(name, Some(owner), |locks, now, hold| {
            let step = locks.undeliver(now, name, hold, owner.as_bytes(), fence);
            reply(step, |taken| Reply::Number(taken.into()))
        })
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

    fn step(
        &mut self,
        name: Name<'_>,
        owner: Option<&str>,
        operation: impl FnOnce(&mut Locks, Timestamp, &mut Hold) -> Step<Reply<Fence>>,
    ) -> Reply<Fence> {
        self.command(name, owner, |driver, hold| {
            let step = operation(&mut driver.locks, driver.now, hold);
            driver.perform(name, hold, step.effects);
            (step.reply, step.announce)
        })
    }

    /// The way of every command: load, settle if somebody waits, do it, write
    /// down what changed, tell those who only listen.
    fn command(
        &mut self,
        name: Name<'_>,
        owner: Option<&str>,
        operation: impl FnOnce(&mut Self, &mut Hold) -> (Reply<Fence>, Announce),
    ) -> Reply<Fence> {
        let before = self.store.load(self.now, name, owner);
        let mut hold = before.clone();
        if self.locks.is_contended(name) {
            let step = self.locks.settle(self.now, name, &mut hold);
            self.perform(name, &mut hold, step.effects);
        }
        let (reply, announce) = match hold {
            Hold::NoLock => (Reply::WrongType, Announce::No),
            _ => operation(self, &mut hold),
        };
        self.store.save(self.now, name, owner, &before, &hold);
        let held = matches!(before, Hold::Exclusive { .. });
        let due = match announce {
            Announce::No => false,
            Announce::IfFree => held && hold == Hold::Free,
            Announce::Sooner => true,
        };
        if due {
            let key = text(name.key);
            self.told.push(Told::Unlock { key });
        }
        reply
    }

    /// Settles a lock without anybody asking for it.
    pub(crate) fn settle(&mut self, name: Name<'_>) {
        if self.locks.is_contended(name) {
            let before = self.store.load(self.now, name, None);
            let mut hold = before.clone();
            let step = self.locks.settle(self.now, name, &mut hold);
            self.perform(name, &mut hold, step.effects);
            self.store.save(self.now, name, None, &before, &hold);
        }
    }

    /// Lets time pass, and does on the way what becomes due, when it does.
    pub(crate) fn advance(&mut self, to: Timestamp) {
        while let Some(at) = self.locks.next_deadline(self.now)
            && at <= to
        {
            self.now = at.max(self.now);
            self.turn();
        }
        self.now = to;
    }

    /// One turn of the timer: all that is due is done.
    pub(crate) fn turn(&mut self) {
        loop {
            let swept = self.locks.sweep(64);
            let mut done = 0;
            while let Some(due) = self.locks.next_due(self.now) {
                done += 1;
                assert!(done < 20_000, "what is due stays due");
                match due {
                    Due::WaitEnd(ticket) => self.end_wait(ticket),
                    Due::Settle { db, key } => self.settle(Name { db, key: &key }),
                }
            }
            if swept && done == 0 {
                let next = self.locks.next_deadline(self.now);
                assert_ne!(next, Some(self.now), "the timer would fire for nothing");
                return;
            }
        }
    }

    fn end_wait(&mut self, ticket: TicketId) {
        if let Some((ticket, key)) = self.locks.end_wait(self.now, ticket) {
            let name = Name { db: 0, key: &key };
            self.perform(name, &mut Hold::NoLock, vec![Effect::WaitEnded(ticket)]);
        }
    }
}

fn refused(refusal: Refusal) -> Reply<Fence> {
    match refusal {
        Refusal::AlreadyQueued => Reply::AlreadyQueued,
        Refusal::TooManyWaiters { .. } | Refusal::TooManyWatches { .. } => Reply::QueueFull,
        Refusal::CountOverflow => Reply::CountFull,
    }
}

fn reply<T>(step: Step<T>, with: impl FnOnce(T) -> Reply<Fence>) -> Step<Reply<Fence>> {
    Step {
        reply: with(step.reply),
        effects: step.effects,
        announce: step.announce,
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
