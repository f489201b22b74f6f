//! Commands for several keys.

use rlock_core::{Admission, Announce, Effect, Fence, Hold, Name, TicketId};

use crate::{
    driver::{Driver, reply, request, text},
    stored::Others,
    told::{Ask, Outcome, Reply, Via, Word},
    transact::Opened,
};

impl Driver {
    pub(crate) fn acquire_all(&mut self, names: &[Name<'_>], ask: &Ask<'_>) -> Reply<Fence> {
        let request = request(ask);
        self.commands(names, ask.owner, |driver, opened| {
            let ends: Vec<_> = opened.iter().map(|it| it.hold.deadline()).collect();
            let mut holds: Vec<Hold> = opened.iter_mut().map(|it| it.hold.take()).collect();
            let others = Others {
                store: &driver.store,
                now: driver.now,
            };
            let (now, limits) = (driver.now, &driver.limits);
            let step = driver
                .locks
                .acquire_all(now, names, &mut holds, &request, limits, &others);
            let (answer, announce) = match step {
                Err(refusal) => (driver.refused(refusal), Announce::No),
                Ok(step) => {
                    assert!(step.effects.is_empty(), "it concerns nobody else");
                    let reply = match step.reply {
                        Admission::Granted(fence) => Reply::Fence(fence),
                        Admission::Busy => Reply::Nil,
                        Admission::MustWait => {
                            driver.enqueue_all(names, &holds, &request, &ask.via)
                        }
                    };
                    (reply, step.announce)
                }
            };
            for ((opened, hold), before) in opened.iter_mut().zip(holds).zip(ends) {
                if announce == Announce::Sooner && hold.deadline() < before {
                    opened.announce = Announce::Sooner;
                }
                opened.hold = hold;
            }
            answer
        })
    }

    fn enqueue_all(
        &mut self,
        names: &[Name<'_>],
        holds: &[Hold],
        request: &rlock_core::Request<'_>,
        via: &Via,
    ) -> Reply<Fence> {
        let (now, delivery) = (self.now, self.delivery(via));
        let placed = self
            .locks
            .enqueue_all(now, names, holds, request, &delivery);
        let placed = placed.expect("there are keys");
        self.place(names[0], request, via, placed)
    }

    pub(crate) fn renew_all(
        &mut self,
        names: &[Name<'_>],
        owner: &str,
        lease_ms: u32,
        session: u64,
    ) -> Reply<Fence> {
        self.commands(names, owner, |driver, opened| {
            let mut renewed = 0;
            for (name, opened) in names.iter().zip(opened) {
                let (now, hold) = (driver.now, &mut opened.hold);
                let owner = owner.as_bytes();
                let session = Some(session);
                let step = driver
                    .locks
                    .renew(now, *name, hold, owner, lease_ms, session);
                renewed += u64::from(step.reply.is_some());
                driver.carry_on(*name, opened, reply(step, |_| Reply::Nil));
            }
            Reply::Number(renewed)
        })
    }

    pub(crate) fn release_all(
        &mut self,
        names: &[Name<'_>],
        owner: &str,
        all: bool,
    ) -> Reply<Fence> {
        self.commands(names, owner, |driver, opened| {
            let mut released = 0;
            for (name, opened) in names.iter().zip(opened) {
                let (now, hold) = (driver.now, &mut opened.hold);
                let owner = owner.as_bytes();
                let step = driver.locks.release(now, *name, hold, owner, all);
                released += u64::from(step.reply.is_some());
                driver.carry_on(*name, opened, reply(step, |_| Reply::Nil));
            }
            Reply::Number(released)
        })
    }

    /// Tells what one step of several has brought about.
    pub(crate) fn carry_on(
        &mut self,
        name: Name<'_>,
        opened: &mut Opened,
        step: rlock_core::Step<Reply<Fence>>,
    ) {
        let announce = self.perform(name, &mut opened.hold, step.effects, step.announce);
        opened.announce = opened.announce.max(announce);
    }

    /// The way of a command for several keys: none is changed if one of them
    /// holds what is no lock.
    fn commands(
        &mut self,
        names: &[Name<'_>],
        owner: &str,
        operation: impl FnOnce(&mut Self, &mut [Opened]) -> Reply<Fence>,
    ) -> Reply<Fence> {
        let opened = names.iter().map(|name| self.open(*name, Some(owner)));
        let mut opened: Vec<_> = opened.collect();
        let reply = if opened.iter().any(|it| it.hold == Hold::NoLock) {
            Reply::WrongType
        } else {
            operation(self, &mut opened)
        };
        for (name, opened) in names.iter().zip(opened) {
            // Beside other data nothing is changed but what was due anyhow.
            if reply != Reply::WrongType || opened.settled {
                self.close_up(*name, Some(owner), opened);
            }
        }
        self.finish();
        reply
    }

    pub(crate) fn grant_all(&mut self) {
        while let Some(id) = self.locks.next_ready() {
            self.grant_ready(id);
        }
    }

    fn grant_ready(&mut self, id: TicketId) {
        let keys = self.locks.keys_of(id);
        let names = keys.iter().map(|(db, key)| Name { db: *db, key });
        let names: Vec<_> = names.collect();
        let before = names
            .iter()
            .map(|name| self.store.load(self.now, *name, None));
        let before: Vec<_> = before.collect();
        let mut holds = before.clone();
        let granted = self.locks.grant_all(self.now, id, &mut holds);
        let mut skipped = false;
        if let Some(Effect::HandOff { ticket, fence, .. }) = granted {
            match &ticket.delivery {
                rlock_core::Delivery::Notify { channel, .. }
                    if !self.listened.contains(&text(channel)) =>
                {
                    self.locks.skip_all(&names, &mut holds, &ticket);
                    skipped = true;
                }
                rlock_core::Delivery::Notify { channel, .. } => {
                    let (owner, fence) = (&ticket.owner, Some(fence));
                    self.publish(names[0], channel, Word::Grant, owner, fence);
                }
                delivery @ rlock_core::Delivery::Blocked { .. } => {
                    self.answer(names[0], delivery, Outcome::Granted(fence));
                }
            }
        }
        for ((name, before), hold) in names.iter().zip(before).zip(holds) {
            let announce = Announce::No;
            let opened = Opened {
                before,
                hold,
                announce,
                settled: true,
            };
            self.close_up(*name, None, opened);
        }
        if skipped {
            // Whoever was behind it is served by the timer, in the same turn.
            self.turn();
        }
    }
}
