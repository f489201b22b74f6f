//! Settling: drop what lapsed, hand off to all who fit. Who is next, and
//! whether it is anybody's turn, is decided here and nowhere else.

use std::sync::Arc;

use crate::{
    Announce, Delivery, Effect, Fence, Hold, Locks, Name, Step, Ticket, Timestamp, Who,
    queue::{Look, QueueId, Watch},
};

/// How many ended waits one settling takes out of a queue before it leaves the
/// rest for the next turn.
const WAITS_ENDED_MAX: usize = 64;

/// How long until a key that holds no lock is looked at again, in
/// milliseconds. Nearly every way out of that state is told by a key event;
/// this is for the others.
const NO_LOCK_LOOK_MS: u64 = 1000;

impl Locks {
    /// Whether the lock has waiters or watches, so that it has to be settled
    /// before anything else is done with it.
    #[must_use]
    pub fn is_contended(&self, name: Name<'_>) -> bool {
        self.table.find(name).is_some()
    }

    /// Whether any lock has waiters or watches.
    #[must_use]
    pub fn has_contended(&self) -> bool {
        !self.table.queues.is_empty()
    }

    /// Drops what has lapsed and hands the lock to all who fit, from the front.
    ///
    /// Losses come before grants among the effects.
    pub fn settle(&mut self, now: Timestamp, name: Name<'_>, hold: &mut Hold) -> Step<()> {
        let mut effects = Vec::new();
        let lapsed = self.view(now, hold, None);
        if let Some(id) = self.table.find(name) {
            if !lapsed {
                self.count_unseen_lapse(now, id, hold);
            }
            self.tell_losses(id, hold, &mut effects);
            self.hand_off(now, id, hold, &mut effects);
            self.look_at(now, id, hold);
            self.table.drop_if_idle(id);
        }
        Step {
            reply: (),
            effects,
            announce: Announce::No,
        }
    }

    /// Takes a grant back that nobody was there to hear of, before it was
    /// written down, and hands the lock to the next.
    pub fn skip(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        ticket: &Ticket,
        fence: Fence,
    ) -> Step<()> {
        if !self.take_back(name, hold, ticket, fence) {
            return Step::quiet(());
        }
        self.settle(now, name, hold)
    }

    /// Takes a grant back as [`Locks::skip`] does, but leaves the next hand-off
    /// to [`Locks::next_due`], so that a long queue of which nobody listens is
    /// gone through in pieces.
    pub fn skip_and_leave(
        &mut self,
        name: Name<'_>,
        hold: &mut Hold,
        ticket: &Ticket,
        fence: Fence,
    ) {
        if self.take_back(name, hold, ticket, fence)
            && let Some(id) = self.table.find(name)
        {
            self.table.mark_due(id);
            self.table.look(id, Look::Never);
            self.table.drop_if_idle(id);
        }
    }

    /// Undoes a hand-off; false, and nothing changes, if it is not the hold's.
    fn take_back(
        &mut self,
        name: Name<'_>,
        hold: &mut Hold,
        ticket: &Ticket,
        fence: Fence,
    ) -> bool {
        if hold.fence() != Some(fence) {
            return false;
        }
        self.counters.grants -= 1;
        self.counters.handoffs -= 1;
        self.counters.waiters_gone += 1;
        *hold = Hold::Free;
        if let Some(id) = self.table.find(name) {
            self.table.remove_watch(id, &ticket.owner);
        }
        true
    }

    /// Sets when the lock has to be looked at, given its hold.
    pub(crate) fn look_at(&mut self, now: Timestamp, id: QueueId, hold: &Hold) {
        let look = match hold {
            Hold::Exclusive { deadline, .. } => Look::LeaseEnd(*deadline),
            Hold::NoLock => Look::Again(now.plus_millis(NO_LOCK_LOOK_MS)),
            Hold::Free => match self.granting_from {
                Some(from) if now < from => Look::Again(from),
                _ => Look::Never,
            },
        };
        self.table.look(id, look);
    }

    /// Counts a lease that ended unseen: the key is gone, and it was time.
    fn count_unseen_lapse(&mut self, now: Timestamp, id: QueueId, hold: &Hold) {
        let look = self
            .table
            .queues
            .get(&id)
            .map_or(Look::Never, |queue| queue.look);
        let ended = match look {
            Look::LeaseEnd(at) => at.has_passed(now),
            Look::LeaseEnded => true,
            Look::Never | Look::Again(_) => false,
        };
        if ended && *hold == Hold::Free {
            self.counters.lease_expirations += 1;
        }
    }

    fn tell_losses(&mut self, id: QueueId, hold: &Hold, effects: &mut Vec<Effect>) {
        let held = hold.fence();
        while let Some(watch) = self.table.remove_watch_if(id, |it| Some(it.fence) != held) {
            if !self.sweep.closed.contains(&watch.session) {
                effects.push(Effect::Lost(watch));
            }
        }
    }

    fn hand_off(
        &mut self,
        now: Timestamp,
        id: QueueId,
        hold: &mut Hold,
        effects: &mut Vec<Effect>,
    ) {
        if !self.is_granting(now) {
            return;
        }
        let most = effects.len() + WAITS_ENDED_MAX;
        while let Some(front) = self.table.queues.get(&id).and_then(|queue| queue.front) {
            let Some(ticket) = self.table.tickets.get(&front) else {
                return;
            };
            if !hold.admits(ticket.mode) {
                return;
            }
            if effects.len() >= most {
                self.table.mark_due(id);
                return;
            }
            let over = ticket.wait_ends.has_passed(now);
            let gone = self.is_gone(ticket);
            let Some(ticket) = self.table.remove(front) else {
                return;
            };
            if gone {
                self.counters.waiters_gone += 1;
                effects.push(Effect::Withdrawn(ticket.delivery));
            } else if over {
                self.counters.wait_timeouts += 1;
                effects.push(Effect::WaitEnded(ticket));
            } else {
                effects.push(self.grant(now, id, hold, ticket));
            }
        }
    }

    fn grant(
        &mut self,
        now: Timestamp,
        id: QueueId,
        hold: &mut Hold,
        ticket: Box<Ticket>,
    ) -> Effect {
        let fence = self.fences.next(now);
        *hold = Hold::Exclusive {
            who: Who::Waiter(ticket.owner.clone()),
            fence: Some(fence),
            deadline: now.plus_millis(ticket.lease_ms),
        };
        self.counters.grants += 1;
        self.counters.handoffs += 1;
        if let Delivery::Notify { session, channel } = &ticket.delivery {
            let (owner, channel) = (ticket.owner.clone(), Arc::clone(channel));
            self.table.set_watch(
                id,
                Watch {
                    owner,
                    fence,
                    channel,
                    session: *session,
                },
            );
        }
        Effect::HandOff {
            waited: now.since(ticket.since),
            ticket,
            fence,
        }
    }

    fn is_gone(&self, ticket: &Ticket) -> bool {
        match &ticket.delivery {
            Delivery::Notify { session, .. } => self.sweep.closed.contains(session),
            Delivery::Blocked { .. } => false,
        }
    }
}
