//! Commands for several keys.

use rlock_core::{Admission, Announce, Fence, Hold, Name, Renewal, TicketId};

use crate::core::{
    driver::Driver,
    messages::{Ask, Reply},
    stored::Others,
    transact::Opened,
};

impl Driver {
    pub fn acquire_all(&mut self, names: &[Name<'_>], ask: &Ask<'_>) -> Reply<Fence> {
        self.commands(names, ask.owner(), |driver, opened| {
            let ends: Vec<_> = opened.iter().map(|it| it.hold.deadline()).collect();
            let mut holds: Vec<Hold> = opened.iter_mut().map(|it| it.hold.take()).collect();
            let (answer, announce) = driver.ask_for_all(names, &mut holds, ask);
            for ((opened, hold), before) in opened.iter_mut().zip(holds).zip(ends) {
                if announce == Announce::Sooner && hold.deadline() < before {
                    opened.announce = Announce::Sooner;
                }
                opened.hold = hold;
            }
            answer
        })
    }

    fn ask_for_all(
        &mut self,
        names: &[Name<'_>],
        holds: &mut [Hold],
        ask: &Ask<'_>,
    ) -> (Reply<Fence>, Announce) {
        let others = Others {
            store: &self.store,
            now: self.now,
        };
        let (now, limits, request) = (self.now, &self.limits, &ask.request);
        let step = self
            .locks
            .acquire_all(now, names, holds, request, limits, &others);
        let step = match step {
            Err(refusal) => return (self.refused(refusal), Announce::No),
            Ok(step) => step,
        };
        self.perform(names[0], &mut Hold::Free, step.effects, Announce::No);
        let reply = match step.reply {
            Admission::Granted(fence) => Reply::Fence(fence),
            Admission::Busy => Reply::Nil,
            Admission::MustWait => {
                let most = self.places_per_user;
                if let Err(refusal) = self.locks.check_user(names, request, most) {
                    return (self.refused(refusal), step.announce);
                }
                let delivery = self.delivery(ask);
                let placed = self
                    .locks
                    .enqueue_all(now, names, holds, request, &delivery);
                self.place(names[0], ask, placed.expect("there are keys"))
            }
        };
        (reply, step.announce)
    }

    pub fn renew_all(
        &mut self,
        names: &[Name<'_>],
        (owner, fence): (&str, Option<Fence>),
        renewal: &Renewal<'_>,
    ) -> Reply<Fence> {
        self.commands(names, owner, |driver, opened| {
            let (now, most) = (driver.now, driver.limits.watches_max);
            let mut holds: Vec<Hold> = opened.iter_mut().map(|it| it.hold.take()).collect();
            let locks = &mut driver.locks;
            let whose = (owner.as_bytes(), fence);
            let steps = locks.renew_all(now, names, &mut holds, whose, renewal, most);
            for (opened, hold) in opened.iter_mut().zip(holds) {
                opened.hold = hold;
            }
            let steps = match steps {
                Ok(steps) => steps,
                Err(refusal) => return driver.refused(refusal),
            };
            let mut renewed = 0;
            for ((name, opened), step) in names.iter().zip(opened).zip(steps) {
                renewed += u64::from(driver.carry_on(*name, opened, step).is_some());
            }
            Reply::Number(renewed)
        })
    }

    pub fn release_all(
        &mut self,
        names: &[Name<'_>],
        owner: &str,
        all: bool,
        fence: Option<Fence>,
    ) -> Reply<Fence> {
        self.commands(names, owner, |driver, opened| {
            let mut released = 0;
            for (name, opened) in names.iter().zip(opened) {
                let (now, hold) = (driver.now, &mut opened.hold);
                let owner = owner.as_bytes();
                let step = driver.locks.release(now, *name, hold, owner, all, fence);
                released += u64::from(driver.carry_on(*name, opened, step).is_some());
            }
            Reply::Number(released)
        })
    }

    /// Runs a command for several keys; nothing changes if one of them is not a
    /// lock.
    fn commands(
        &mut self,
        names: &[Name<'_>],
        owner: &str,
        operation: impl FnOnce(&mut Self, &mut [Opened]) -> Reply<Fence>,
    ) -> Reply<Fence> {
        let opened = names.iter().map(|name| self.open(*name, Some(owner)));
        let mut opened: Vec<_> = opened.collect();
        let reply = if opened.iter().any(|it| it.hold == Hold::NoLock) {
            Reply::WRONG_TYPE
        } else {
            operation(self, &mut opened)
        };
        for (name, opened) in names.iter().zip(opened) {
            // If a key holds other data, nothing changes except what was due already.
            if reply != Reply::WRONG_TYPE || opened.settled {
                self.close_up(*name, Some(owner), opened);
            }
        }
        self.finish();
        reply
    }

    pub fn grant_all(&mut self) {
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
        let mut skipped = false;
        if let Some(granted) = self.locks.grant_all(self.now, id, &names, &mut holds) {
            if self.has_listener(&granted.ticket.delivery) {
                self.deliver_grant(&names, granted);
            } else {
                self.locks.skip_all(self.now, &names, &mut holds, &granted);
                skipped = true;
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
            // The timer serves the next in the queue, in the same turn.
            self.turn();
        }
    }
}
