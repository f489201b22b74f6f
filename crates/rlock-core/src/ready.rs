//! When the turn of a request for several keys has come: it is first in all
//! queues, and all locks are free.

use crate::{
    Granted, Hold, Locks, Name, TicketId, Timestamp,
    granted::Places,
    queue::{Look, Queue},
};

impl Locks {
    /// The next request for several keys whose turn may have come with all of
    /// them; to be granted by [`Locks::grant_all`].
    pub fn next_ready(&mut self) -> Option<TicketId> {
        self.ready.pop_front()
    }

    /// Whether there is such a request.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Leaves such requests to [`Locks::next_due`].
    pub fn settle_ready_later(&mut self) {
        while let Some(id) = self.ready.pop_front() {
            if let Some(ticket) = self.table.tickets.get(&id) {
                self.table.mark_due(ticket.queue);
            }
        }
    }

    /// The keys of a request, in its order; the first is what messages name.
    #[must_use]
    pub fn keys_of(&self, ticket: TicketId) -> Vec<(u32, Box<[u8]>)> {
        let key = |id: &TicketId| {
            let queue = self.table.tickets.get(id)?.queue;
            let queue = self.table.queues.get(&queue)?;
            Some((queue.db, queue.key.clone()))
        };
        self.members_of(ticket).iter().filter_map(key).collect()
    }

    /// Grants a request for several keys, if it is first in all queues and all
    /// locks are free; `names` and `holds` are those of its keys, in its order. The
    /// hand-off stands for all keys.
    pub fn grant_all(
        &mut self,
        now: Timestamp,
        id: TicketId,
        names: &[Name<'_>],
        holds: &mut [Hold],
    ) -> Option<Granted> {
        let members = self.members_of(id);
        let mut grantable = !holds.is_empty() && members.len() == holds.len();
        for ((member, name), hold) in members.iter().zip(names).zip(&mut *holds) {
            self.view(now, *name, hold, None);
            let ticket = self.table.tickets.get(member)?;
            let (queue, gone) = (ticket.queue, self.is_gone(ticket) || self.is_left(*member));
            let over = ticket.wait_ends.has_passed(now);
            let front = self.table.front(queue);
            let offered = self.is_offered(now, queue);
            self.look_at(now, queue, hold);
            let free = *hold == Hold::Free && !offered;
            grantable &= free
                && self.is_granting(now, Some(queue))
                && front == Some(*member)
                && !over
                && !gone;
        }
        if !grantable {
            return None;
        }
        self.hand_all(now, &members, names, holds)
    }

    /// Takes a grant of several keys back that nobody was there to hear of,
    /// before it was written down. Those who were behind it come next.
    pub fn skip_all(
        &mut self,
        now: Timestamp,
        names: &[Name<'_>],
        holds: &mut [Hold],
        granted: &Granted,
    ) {
        self.counters.grants -= 1;
        self.counters.handoffs -= 1;
        self.counters.waiters_gone += 1;
        for (name, hold) in names.iter().zip(holds) {
            *hold = Hold::Free;
            let Some(id) = self.table.find(*name) else {
                continue;
            };
            self.uncount_in_streak(id);
            if let Some(watch) = self.table.watch_of(id, &granted.ticket.owner) {
                self.table.remove_watch(watch);
            }
            self.table.look(id, Look::Never);
            self.table.mark_due(id);
            self.table.drop_if_idle(id);
        }
        self.keep_granted(now, names, granted);
    }

    /// Takes note that a request for several keys is first for all of them,
    /// and that all locks were free when they were last looked at.
    pub(crate) fn note_if_ready(&mut self, id: TicketId) {
        let Some(multi) = self.table.tickets.get(&id).and_then(|it| it.multi) else {
            return;
        };
        let Some(request) = self.table.multis.get(&multi) else {
            return;
        };
        let (len, from) = (request.members.len(), request.unready);
        let mut order = (from..len).chain(0..from.min(len));
        let unready = order.find(|at| {
            let member = request.members.get(*at);
            member.is_some_and(|member| !self.is_ready(*member, id))
        });
        match (unready, request.members.first().copied()) {
            (Some(at), _) => {
                if let Some(request) = self.table.multis.get_mut(&multi) {
                    request.unready = at;
                }
            }
            (None, Some(leader)) if !self.ready.contains(&leader) => self.ready.push_back(leader),
            (None, _) => {}
        }
    }

    /// Whether a ticket is first for its lock, and that was free when it was
    /// last looked at. Of the lock that is settled `now` it is known.
    fn is_ready(&self, id: TicketId, now: TicketId) -> bool {
        let Some(ticket) = self.table.tickets.get(&id) else {
            return true;
        };
        let queue = self.table.queues.get(&ticket.queue);
        let free = |queue: &Queue| queue.look() == Look::Never && !queue.offered;
        self.table.front(ticket.queue) == Some(id)
            && (id == now || queue.is_some_and(|it| free(it)))
    }

    /// All tickets of the request that a ticket belongs to.
    pub(crate) fn members_of(&self, id: TicketId) -> Vec<TicketId> {
        let multi = self.table.tickets.get(&id).and_then(|it| it.multi);
        multi.map_or_else(|| vec![id], |multi| self.table.members(multi).to_vec())
    }

    fn hand_all(
        &mut self,
        now: Timestamp,
        members: &[TicketId],
        names: &[Name<'_>],
        holds: &mut [Hold],
    ) -> Option<Granted> {
        let first = self.table.tickets.get(members.first()?)?;
        let multi = first.multi?;
        let fence = self.fences.next(now, names.iter().copied());
        self.budget.spend(members.len());
        self.counters.grants += 1;
        self.counters.handoffs += 1;
        self.table.part(multi);
        let mut leader = None;
        for (member, hold) in members.iter().zip(holds) {
            let ticket = self.table.remove(*member)?;
            hold.enter(fence, now, ticket.lease_ms);
            hold.seen_from_elsewhere(&ticket.owner);
            self.count_in_streak(ticket.queue);
            self.remember_ticket(ticket.queue, &ticket, fence);
            self.look_at(now, ticket.queue, hold);
            self.table.drop_if_idle(ticket.queue);
            leader = leader.or(Some(ticket));
        }
        let ticket = leader?;
        Some(Granted {
            waited: now.since(ticket.since),
            ticket,
            fence,
            was_upgraded: false,
            places: Places::Several(members.into()),
        })
    }
}
