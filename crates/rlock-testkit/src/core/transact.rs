//! The steps of every command: load, settle if somebody waits, carry out, write
//! the changes, notify listeners. Also the actions without a command.

use rlock_core::{
    Announce, Due, Fence, Hold, Locks, Name, Step, TicketId, Timestamp, ValueMessage,
};

use crate::core::{
    driver::{Driver, text},
    messages::{Reply, Sent},
};

/// A lock during a change.
#[derive(Debug)]
pub struct Opened {
    pub before: Hold,
    pub hold: Hold,
    pub announce: Announce,
    /// Whether it was settled, because somebody waited or watched.
    pub settled: bool,
}

impl Driver {
    pub fn step(
        &mut self,
        name: Name<'_>,
        owner: Option<&str>,
        operation: impl FnOnce(&mut Locks, Timestamp, &mut Hold) -> Step<Reply<Fence>>,
    ) -> Reply<Fence> {
        self.command(name, owner, |driver, hold| {
            let step = operation(&mut driver.locks, driver.now, hold);
            let announce = driver.perform(name, hold, step.effects, step.announce);
            (step.reply, announce)
        })
    }

    pub fn command(
        &mut self,
        name: Name<'_>,
        owner: Option<&str>,
        operation: impl FnOnce(&mut Self, &mut Hold) -> (Reply<Fence>, Announce),
    ) -> Reply<Fence> {
        let mut opened = self.open(name, owner);
        if self.locks.has_ready() {
            self.close_up(name, owner, opened);
            self.grant_all();
            opened = self.open(name, owner);
        }
        let reply = if opened.hold == Hold::NoLock {
            Reply::WRONG_TYPE
        } else {
            let (reply, announce) = operation(self, &mut opened.hold);
            opened.announce = opened.announce.max(announce);
            reply
        };
        self.close_up(name, owner, opened);
        if matches!(reply, Reply::Waiting | Reply::Blocked) {
            self.locks.settle_ready_later();
        }
        self.finish();
        reply
    }

    /// Reads a lock, and settles it if somebody waits.
    pub fn open(&mut self, name: Name<'_>, owner: Option<&str>) -> Opened {
        let before = self.store.load(self.now, name, owner);
        let mut opened = Opened {
            hold: before.clone(),
            before,
            announce: Announce::No,
            settled: self.locks.is_contended(name),
        };
        if !self.locks.is_settled(self.now, name, &opened.hold) {
            let step = self.locks.settle(self.now, name, &mut opened.hold);
            let hold = &mut opened.hold;
            opened.announce = self.perform(name, hold, step.effects, step.announce);
        }
        opened
    }

    pub fn close_up(&mut self, name: Name<'_>, owner: Option<&str>, opened: Opened) {
        let Opened {
            before,
            hold,
            announce,
            ..
        } = opened;
        let free = hold == Hold::Free;
        let freed = match announce {
            Announce::No | Announce::Sooner => false,
            Announce::IfFreed => free && before != Hold::Free,
            Announce::IfFree => free,
        };
        let sent = self.locks.value_message(self.now, name, &hold);
        if before != Hold::NoLock {
            self.store.save(self.now, name, owner, &before, hold);
        }
        if let Some(ValueMessage { fence, value }) = sent {
            let (key, value) = (text(name.key), value.map(|value| text(&value)));
            self.sent.push(Sent::Value { key, fence, value });
        }
        if announce == Announce::Sooner {
            self.unlocked(name);
        }
        if freed {
            self.freed.push((name.db, name.key.into()));
        }
    }

    /// Grants the requests for several keys whose turn has come. Publishes an
    /// unlock message for each lock that is free after that.
    pub fn finish(&mut self) {
        let freed = std::mem::take(&mut self.freed);
        self.grant_all();
        for (db, key) in freed {
            let name = Name { db, key: &key };
            if self.store.get(self.now, name).is_none() {
                self.unlocked(name);
            }
        }
    }

    /// The unlock message.
    pub fn unlocked(&mut self, name: Name<'_>) {
        let key = text(name.key);
        self.sent.push(Sent::Unlock { key });
    }

    /// Settles a lock without a command.
    pub fn settle(&mut self, name: Name<'_>) {
        if self.locks.is_contended(name) {
            let opened = self.open(name, None);
            self.close_up(name, None, opened);
            self.finish();
        }
    }

    /// Lets time pass, and carries out everything when it becomes due.
    pub fn advance(&mut self, to: Timestamp) {
        loop {
            let deadline = self.locks.next_deadline(self.now);
            let expiry = self.store.next_expiry_of_others();
            let next = [deadline, expiry].into_iter().flatten().min();
            let Some(at) = next.filter(|at| *at <= to) else {
                break;
            };
            self.now = at.max(self.now);
            self.turn();
        }
        self.now = to;
    }

    /// One turn of the timer: carries out everything that is due, up to the limit
    /// of the turn; true if there was anything.
    pub fn turn(&mut self) -> bool {
        let mut changed = self.locks.next_deadline(self.now) == Some(self.now);
        for (db, key) in self.store.expire_others(self.now) {
            self.locks.settle_later(Name { db, key: &key });
        }
        let mut done = 0;
        while !self.locks.turn_is_over()
            && let Some(due) = self.locks.next_due(self.now)
        {
            done += 1;
            changed = true;
            assert!(done < 20_000, "what is due stays due");
            match due {
                Due::WaitEnd(ticket) => self.end_wait(ticket),
                Due::TurnAway(ended) | Due::Withdraw(ended) => self.withdraw(&ended, None),
                Due::Settle { db, key } => self.settle(Name { db, key: &key }),
                Due::Unbind { db, key, owner } => self.unbind(Name { db, key: &key }, &owner),
            }
        }
        let next = self.locks.next_deadline(self.now);
        if !self.locks.turn_is_over() {
            assert_ne!(next, Some(self.now), "the timer would fire for nothing");
        }
        changed
    }

    fn unbind(&mut self, name: Name<'_>, owner: &[u8]) {
        let owner = text(owner);
        self.step(name, Some(&owner), |locks, now, hold| {
            let step = locks.unbind(now, name, hold, owner.as_bytes());
            step.with(Reply::Nil)
        });
    }

    fn end_wait(&mut self, ticket: TicketId) {
        if let Some(ended) = self.locks.end_wait(self.now, ticket) {
            let name = Name {
                db: 0,
                key: &ended.key,
            };
            self.deliver_wait_over(name, &ended.owner, &ended.delivery);
        }
    }
}
