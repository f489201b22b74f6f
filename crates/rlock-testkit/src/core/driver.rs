//! The core with a keyspace, a clock, connections and channels, all as plain data. On a server this is the shell's job.

use std::collections::{BTreeMap, BTreeSet};

use rlock_core::{
    Admission, Announce, Channel, Delivery, Effect, Ended, Fence, Granted, Hold, Limits, Locks,
    Name, Refusal, Renewal, Step, TicketId, Timestamp,
};

use crate::core::{
    messages::{Ask, Error, MessageKind, OnChannel, Outcome, Reply, Sent},
    operation::CHANNELS,
    perform::on_channel,
    store::{Store, Stored},
    stored::Others,
};

/// A hand-off that may turn out to be undelivered.
pub struct HandedOff {
    keys: Vec<(u32, Box<[u8]>)>,
    granted: Granted,
}

pub struct Driver {
    pub locks: Locks,
    pub store: Store,
    pub now: Timestamp,
    pub limits: Limits,
    /// The limit of places for each user; 0 for none.
    pub places_per_user: u64,
    pub listened: BTreeSet<OnChannel>,
    /// Whether a client listens on the unlock channels.
    pub has_listeners: bool,
    /// Messages and answers to others since the last check.
    pub sent: Vec<Sent<Fence>>,
    /// Locks that a command has freed.
    pub freed: Vec<(u32, Box<[u8]>)>,
    /// The owners of the last refusal that was a cycle.
    pub cycle: Vec<String>,
    /// Blocked calls, including answered ones, and their tickets.
    pub calls: BTreeMap<u64, TicketId>,
    /// The hand-offs whose places must be kept if they fail.
    handed_off: Vec<HandedOff>,
}

impl Driver {
    pub fn new(now: Timestamp, limits: Limits) -> Self {
        Self {
            locks: Locks::default(),
            store: Store::default(),
            now,
            limits,
            places_per_user: 0,
            listened: BTreeSet::new(),
            has_listeners: true,
            sent: Vec::new(),
            freed: Vec::new(),
            cycle: Vec::new(),
            calls: BTreeMap::new(),
            handed_off: Vec::new(),
        }
    }

    pub fn acquire(&mut self, name: Name<'_>, ask: &Ask<'_>) -> Reply<Fence> {
        self.command(name, Some(ask.owner()), |driver, hold| {
            let others = Others {
                store: &driver.store,
                now: driver.now,
            };
            let (now, request) = (driver.now, &ask.request);
            let limits = Limits {
                shared_elsewhere: others.shared_elsewhere(name),
                ..driver.limits
            };
            let step = driver
                .locks
                .acquire(now, name, hold, request, &limits, &others);
            let step = match step {
                Ok(step) => step,
                Err(refusal) => return (driver.refused(refusal), Announce::No),
            };
            let announce = driver.perform(name, hold, step.effects, step.announce);
            let reply = match step.reply {
                Admission::Granted(fence) => Reply::Fence(fence),
                Admission::Busy => Reply::Nil,
                Admission::MustWait => {
                    let most = driver.places_per_user;
                    if let Err(refusal) = driver.locks.check_user(&[name], request, most) {
                        return (driver.refused(refusal), announce);
                    }
                    let delivery = driver.delivery(ask);
                    let placed = driver.locks.enqueue(now, name, hold, request, delivery);
                    driver.place(name, ask, placed)
                }
            };
            (reply, announce)
        })
    }

    pub fn delivery(&mut self, ask: &Ask<'_>) -> Delivery {
        let (session, handle) = (ask.session(), ask.call);
        match ask.request.channel {
            Some(channel) => self.locks.by_message(session, channel),
            None => Delivery::blocked(session, handle),
        }
    }

    /// Records a place in a queue, and answers the call that had it before.
    pub fn place(
        &mut self,
        name: Name<'_>,
        ask: &Ask<'_>,
        (ticket, effects): (TicketId, impl IntoIterator<Item = Effect>),
    ) -> Reply<Fence> {
        for effect in effects {
            if let Effect::Withdrawn(earlier) = effect {
                self.answer(name, &earlier, Outcome::Superseded);
            }
        }
        if ask.request.channel.is_some() {
            return Reply::Waiting;
        }
        self.calls.insert(ask.call, ticket);
        Reply::Blocked
    }

    pub fn renew(&mut self, name: Name<'_>, owner: &str, renewal: &Renewal<'_>) -> Reply<Fence> {
        self.command(name, Some(owner), |driver, hold| {
            let (now, most) = (driver.now, driver.limits.watches_max);
            let step = driver
                .locks
                .renew(now, name, hold, owner.as_bytes(), renewal, most);
            match step {
                Ok(step) => {
                    let announce = driver.perform(name, hold, step.effects, step.announce);
                    (step.reply.map_or(Reply::Nil, Reply::Fence), announce)
                }
                Err(refusal) => (driver.refused(refusal), Announce::No),
            }
        })
    }

    pub fn release(
        &mut self,
        name: Name<'_>,
        owner: &str,
        all: bool,
        fence: Option<Fence>,
    ) -> Reply<Fence> {
        self.step(name, Some(owner), |locks, now, hold| {
            let step = locks.release(now, name, hold, owner.as_bytes(), all, fence);
            let left = step.reply;
            step.with(left.map_or(Reply::Nil, |it| Reply::Number(it.into())))
        })
    }

    pub fn release_permits(
        &mut self,
        name: Name<'_>,
        owner: &str,
        permits: u32,
        fence: Option<Fence>,
    ) -> Reply<Fence> {
        self.command(name, Some(owner), |driver, hold| {
            let (now, owner) = (driver.now, owner.as_bytes());
            let locks = &mut driver.locks;
            match locks.release_permits(now, name, hold, owner, permits, fence) {
                Ok(step) => {
                    let announce = driver.perform(name, hold, step.effects, step.announce);
                    let left = step.reply.map_or(Reply::Nil, |it| Reply::Number(it.into()));
                    (left, announce)
                }
                Err(refusal) => (driver.refused(refusal), Announce::No),
            }
        })
    }

    pub fn downgrade(&mut self, name: Name<'_>, owner: &str) -> Reply<Fence> {
        self.step(name, Some(owner), |locks, now, hold| {
            let step = locks.downgrade(now, name, hold, owner.as_bytes());
            let fence = step.reply;
            step.with(fence.map_or(Reply::Nil, Reply::Fence))
        })
    }

    pub fn force(&mut self, name: Name<'_>, queue: bool, fence: Option<Fence>) -> Reply<Fence> {
        let orphan = self.store.orphan(self.now, name);
        if queue {
            if orphan.is_none() && self.store.load(self.now, name, None) == Hold::NoLock {
                return Reply::WRONG_TYPE;
            }
            for ended in self.locks.clear_queue(name) {
                self.withdraw(&ended, None);
            }
        }
        if let Some(orphan) = orphan {
            if fence.is_some() && orphan.fence != fence {
                return Reply::Number(0);
            }
            self.locks.note_orphan(self.now, name, orphan.fence);
            self.store.delete(self.now, name);
            return self.step(name, None, |locks, now, _| {
                let step = locks.end_orphan(now, name, orphan.owners);
                step.with(Reply::Number(orphan.owners))
            });
        }
        self.step(name, None, |locks, now, hold| {
            let step = locks.force(now, name, hold, fence);
            let removed = step.reply;
            step.with(Reply::Number(removed))
        })
    }

    /// Records a hand-off whose place must be kept if it is not delivered.
    pub fn may_come_back(&mut self, names: &[Name<'_>], granted: Granted) {
        if granted.ticket.options.keep.is_some() {
            let keys = names.iter().map(|it| (it.db, it.key.into())).collect();
            self.handed_off.push(HandedOff { keys, granted });
        }
    }

    /// The shell's reaction when the reply of a grant could not be written.
    pub fn undeliver(&mut self, names: &[Name<'_>], owner: &str, fence: Fence) -> Reply<Fence> {
        let mut taken = Vec::new();
        for name in names {
            let mut opened = self.open(*name, Some(owner));
            let (now, hold) = (self.now, &mut opened.hold);
            if *hold != Hold::NoLock {
                let owner = owner.as_bytes();
                let step = self.locks.undeliver(now, *name, hold, owner, fence);
                taken.extend(Some(*name).filter(|_| step.reply));
                self.carry_on(*name, &mut opened, step.with(()));
            }
            self.close_up(*name, Some(owner), opened);
        }
        self.finish();
        if !taken.is_empty() {
            self.locks.count_undelivered();
            if let Some(HandedOff { keys, granted }) = self.take_handed_off(&taken, owner, fence) {
                let names = keys.iter().map(|(db, key)| Name { db: *db, key });
                let names: Vec<_> = names.collect();
                self.locks.keep_place(self.now, &names, &granted);
            }
        }
        Reply::Number(u64::from(!taken.is_empty()))
    }

    /// Takes the record of the first of these keys that has one: another key may
    /// have the same fence, if both are ahead of the clock.
    fn take_handed_off(
        &mut self,
        names: &[Name<'_>],
        owner: &str,
        fence: Fence,
    ) -> Option<HandedOff> {
        let is_of = |it: &HandedOff| {
            let (granted, ticket) = (&it.granted, &it.granted.ticket);
            granted.fence == fence && *ticket.owner == *owner.as_bytes()
        };
        let at = names.iter().find_map(|name| {
            let is_at = |it: &HandedOff| {
                it.keys
                    .iter()
                    .any(|key| (key.0, &*key.1) == (name.db, name.key))
            };
            let mut all = self.handed_off.iter();
            all.position(|it| is_of(it) && is_at(it))
        })?;
        Some(self.handed_off.swap_remove(at))
    }

    /// The server restarts with its keys only.
    pub fn restart(&mut self) {
        let store = std::mem::take(&mut self.store);
        let before = std::mem::replace(self, Self::new(self.now, self.limits));
        self.store.keys = store.keys;
        (self.listened, self.has_listeners) = (before.listened, before.has_listeners);
        self.places_per_user = before.places_per_user;
    }

    /// From now on reports the end of a hold with a value, because a client has seen the holder.
    pub fn follow(&mut self, name: Name<'_>) {
        let held = self.store.get(self.now, name).and_then(Stored::held);
        let published =
            held.and_then(|it| Some(((it.fence?, it.extras.value.as_deref()?), it.ends)));
        if let Some((value, ends)) = published {
            self.locks.follow_value(self.now, name, value, ends);
        }
    }

    /// A client subscribes to one of the channels, or leaves it.
    pub fn listen(&mut self, channel: usize, on: bool) {
        let Channel { kind, name } = CHANNELS[channel];
        let channel = on_channel(kind, name);
        if on {
            self.listened.insert(channel);
        } else {
            self.listened.remove(&channel);
        }
    }

    /// Reads no hold, so it works for any content of the key.
    pub fn cancel(&mut self, name: Name<'_>, owner: &str, session: u64) -> Reply<Fence> {
        let cancelled = self.locks.cancel(name, owner.as_bytes());
        self.locks.settle_later(name);
        let Some(ended) = cancelled else {
            return Reply::Number(0);
        };
        self.withdraw(&ended, Some(session));
        Reply::Number(1)
    }

    /// Reports a request's withdrawal, by its own connection or by another one.
    pub fn withdraw(&mut self, ended: &Ended, by: Option<u64>) {
        let (db, key) = (0, &*ended.key);
        let name = Name { db, key };
        match &ended.delivery {
            Delivery::Notify(listener) if Some(listener.session) != by => {
                self.publish(name, listener, MessageKind::Withdrawn, &ended.owner, None);
            }
            delivery => self.answer(name, delivery, Outcome::Cancelled),
        }
    }

    /// Ends the connection of a blocked call; false if the call was answered
    /// before.
    pub fn hang_up(&mut self, handle: u64) -> bool {
        let ticket = self.calls.get(&handle).copied();
        ticket.is_some_and(|ticket| self.locks.caller_gone(self.now, ticket, handle))
    }

    /// Ends a connection, and withdraws its requests.
    pub fn close(&mut self, session: u64) {
        self.locks.session_closed(self.now, session);
    }

    pub fn refused(&mut self, refusal: Refusal) -> Reply<Fence> {
        Reply::Error(match refusal {
            Refusal::TooManyOfUser { .. }
            | Refusal::TooManyWaiters { .. }
            | Refusal::TooManyWatches { .. }
            | Refusal::TooManyShared { .. } => Error::QueueFull,
            Refusal::CountOverflow => Error::CountFull,
            Refusal::TooManyPermits { .. } => Error::TooManyPermits,
            Refusal::OtherRequest { .. } => Error::OtherRequest,
            Refusal::PartlyHeld { .. } => Error::HeldInPart,
            Refusal::FenceTooLarge { .. } => Error::FenceTooLarge,
            Refusal::FenceTaken { .. } => Error::FenceTaken,
            Refusal::ValueOfShared => Error::ValueOfShared,
            Refusal::Deadlock { owners } => {
                self.cycle = owners.iter().map(|it| text(it)).collect();
                Error::Deadlock
            }
            Refusal::UpgradeDeadlock { owners } => {
                self.cycle = owners.iter().map(|it| text(it)).collect();
                Error::SecondUpgrade
            }
        })
    }

    /// Carries out a step that concerns only its own lock.
    pub fn carry_on<R>(
        &mut self,
        name: Name<'_>,
        opened: &mut crate::core::transact::Opened,
        step: Step<R>,
    ) -> R {
        let announce = self.perform(name, &mut opened.hold, step.effects, step.announce);
        opened.announce = opened.announce.max(announce);
        step.reply
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
