//! Grants: the hold and its data beside the store, the checks before a request is
//! queued, and hand-offs until their delivery is certain.

use std::sync::Arc;
use std::time::Duration;

use super::graph::Verdict;
use super::wait_for::{self, Search, Target};
use crate::table::QueueId;
use crate::ticket::MultiId;
use crate::watch::{Binding, Watch};
use crate::{
    Channel, Fence, Grace, Hold, Holders, Limits, Listener, Locks, Mode, Name, Refusal, Renewal,
    Request, Ticket, TicketId, Timestamp,
};

/// The data of a hold beside the store.
#[derive(Clone, Copy)]
pub(super) struct WatchRequest<'a> {
    pub(super) owner: &'a [u8],
    session: Option<u64>,
    channel: Option<Channel<'a>>,
    bind: Option<Grace>,
    has_value: bool,
}

impl WatchRequest<'_> {
    /// Whether a watch is requested that may be new.
    const fn is_asked_for(&self) -> bool {
        self.channel.is_some() || self.bind.is_some()
    }
}

impl<'a> Request<'a> {
    pub(super) const fn watch_request(&self) -> WatchRequest<'a> {
        WatchRequest {
            owner: self.owner,
            session: self.session,
            channel: self.channel,
            bind: self.options.bind,
            has_value: self.extras.value.is_some(),
        }
    }
}

impl<'a> Renewal<'a> {
    pub(super) const fn watch_request(&self, owner: &'a [u8]) -> WatchRequest<'a> {
        WatchRequest {
            owner,
            session: self.session,
            channel: self.channel,
            bind: self.bind,
            has_value: self.extras.value.is_some(),
        }
    }
}

impl Locks {
    /// Stores what a request or a renewal sets beside its hold. Everything else
    /// stays, except that a bound hold moves to the connection that asked last.
    pub(super) fn remember(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &Hold,
        fence: Fence,
        watch: &WatchRequest<'_>,
    ) {
        let Some(queue) = self.queue_to_remember_in(name, watch.is_asked_for()) else {
            return;
        };
        let (session, bind) = (watch.session, watch.bind);
        let notice = session.zip(watch.channel);
        let notice = notice.map(|(session, channel)| self.table.listener(session, channel));
        self.keep_watch(queue, watch.owner, fence, notice, session, bind);
        self.schedule_check(now, queue, hold);
        // The only watch may have been from before a demotion.
        self.table.drop_if_idle(queue);
    }

    /// Stores what a ticket has requested.
    pub(super) fn remember_ticket(&mut self, queue: QueueId, ticket: &Ticket, fence: Fence) {
        let notice = ticket.delivery.listener().cloned();
        let session = ticket.delivery.session();
        let bind = ticket.options.bind;
        self.keep_watch(queue, &ticket.owner, fence, notice, session, bind);
    }

    /// Whether the hold of an owner is bound to a connection.
    #[must_use]
    pub fn is_bound(&self, name: Name<'_>, owner: &[u8]) -> bool {
        let watch = self.table.watch_named(name, owner);
        watch.is_some_and(|watch| watch.binding.is_some())
    }

    /// The fence of an owner's hold, and the listener for its loss.
    pub(super) fn listener_of(
        &self,
        queue: QueueId,
        owner: &[u8],
    ) -> Option<(Fence, Arc<Listener>)> {
        let known = self.table.watch_of(queue, owner);
        let watch = self
            .table
            .watch(known.filter(|id| !self.is_watch_stale(*id))?)?;
        Some((watch.fence, watch.notice.clone()?))
    }

    fn queue_to_remember_in(&mut self, name: Name<'_>, is_new: bool) -> Option<QueueId> {
        if is_new {
            Some(self.table.find_or_insert(name))
        } else {
            self.table.find(name)
        }
    }

    pub(super) fn keep_watch(
        &mut self,
        queue: QueueId,
        owner: &[u8],
        fence: Fence,
        notice: Option<Arc<Listener>>,
        session: Option<u64>,
        bind: Option<Grace>,
    ) {
        let new = session.zip(bind).map(|(session, grace)| Binding {
            session,
            grace,
            closed: None,
        });
        let mut known = self.table.watch_of(queue, owner);
        if let Some(stale) = known.filter(|id| self.is_watch_stale(*id)) {
            self.table.remove_watch(stale);
            known = None;
        }
        if let Some(id) = known {
            self.table.change_watch(id, |watch| {
                watch.fence = fence;
                watch.notice = notice.or(watch.notice.take());
                match (new, session) {
                    (Some(new), _) => watch.binding = Some(new),
                    (None, Some(session)) => move_binding(watch, session),
                    (None, None) => {}
                }
            });
        } else if notice.is_some() || new.is_some() {
            self.table.set_watch(Watch {
                queue,
                owner: owner.into(),
                fence,
                notice,
                binding: new,
            });
        }
    }

    /// Whether the request's new places are within the limit. A place that only
    /// waits for its withdrawal counts until it is gone, for its user too: it
    /// takes as much memory as any other.
    pub(super) fn check_waiters(&self, places: u64, limits: &Limits) -> Result<(), Refusal> {
        let taken = self.table.places_len();
        if taken.saturating_add(places) > limits.waiters_max {
            return Err(Refusal::TooManyWaiters {
                limit: limits.waiters_max,
            });
        }
        Ok(())
    }

    /// Checks the places of the user against `most`, for a request that must
    /// wait; 0 for no limit. A place that the owner already has, and that counts
    /// for the same user, is not new.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyOfUser`]; nothing has changed then.
    pub fn check_user(
        &self,
        names: &[Name<'_>],
        request: &Request<'_>,
        most: u64,
    ) -> Result<(), Refusal> {
        let (Some(user), 1..) = (request.user, most) else {
            return Ok(());
        };
        let place = |name: &Name<'_>| {
            let queue = self.table.find(*name)?;
            self.table.ticket_of(queue, request.owner)
        };
        let of_user = self.table.user(user);
        let counts = |id: &TicketId| self.table.ticket(*id).is_some_and(|it| it.user == of_user);
        let own = names.first().and_then(place).filter(counts);
        let own = own.map_or(0, |id| self.members_of(id).len());
        let more = names.len().saturating_sub(own) as u64;
        let places = self.table.places_of_user(user);
        if more > 0 && places.saturating_add(more) > most {
            return Err(Refusal::TooManyOfUser { limit: most });
        }
        Ok(())
    }

    /// Checks that the watches that the request needs do not exceed the limit.
    pub(super) fn check_watches(
        &self,
        watch: &WatchRequest<'_>,
        watches_max: u64,
        more: impl FnOnce() -> u64,
    ) -> Result<(), Refusal> {
        if !watch.is_asked_for() && !watch.has_value {
            return Ok(());
        }
        let more = more();
        if more > 0 && self.gauges().watches.saturating_add(more) > watches_max {
            return Err(Refusal::TooManyWatches { limit: watches_max });
        }
        Ok(())
    }

    /// The same for holds of these locks; some may already be remembered.
    pub(super) fn check_watches_of<'a>(
        &self,
        names: impl IntoIterator<Item = Name<'a>>,
        watch: &WatchRequest<'_>,
        watches_max: u64,
    ) -> Result<(), Refusal> {
        let more = || self.table.count_unwatched(names, watch.owner);
        self.check_watches(watch, watches_max, more)
    }

    /// Checks that there may be one more shared holder, now or when its turn
    /// comes: queued requests count as if they were granted. So nobody is refused
    /// after a wait.
    pub(super) fn check_shared(
        &self,
        now: Timestamp,
        hold: &Hold,
        request: &Request<'_>,
        limits: &Limits,
    ) -> Result<(), Refusal> {
        let here = match hold {
            Hold::Shared(shared) => shared.live(now) as u64,
            Hold::Free | Hold::Exclusive { .. } | Hold::NoLock => 0,
        };
        let others = here + self.table.shared_places();
        let is_one_too_many = limits.shared_elsewhere.saturating_add(others) >= limits.shared_max;
        if request.options.mode == Mode::Exclusive || !is_one_too_many {
            return Ok(());
        }
        Err(Refusal::TooManyShared {
            limit: limits.shared_max,
        })
    }

    /// Refuses a request that would wait for itself.
    pub(super) fn search(
        &mut self,
        now: Timestamp,
        request: &Request<'_>,
        targets: &[Target<'_>],
        limits: &Limits,
        holders: &dyn Holders,
    ) -> Result<(), Refusal> {
        if !limits.detects_deadlocks || wait_for::nobody_waits(self, now, request, targets, holders)
        {
            return Ok(());
        }
        let (owner, mode) = (request.owner, request.options.mode);
        let search = || Search::new(now, self, holders, owner, mode, targets);
        let verdict = match search().verdict() {
            Verdict::ExistingDeadlock if !holders.is_over() => search().whole().verdict(),
            verdict => verdict,
        };
        match verdict {
            Verdict::NoCycle | Verdict::ExistingDeadlock => Ok(()),
            Verdict::Cycle(owners) => {
                self.counters.deadlocks += 1;
                Err(Refusal::Deadlock { owners })
            }
        }
    }
}

fn move_binding(watch: &mut Watch, session: u64) {
    if let Some(binding) = &mut watch.binding {
        binding.session = session;
        binding.closed = None;
    }
}

/// One lock or several locks, granted to a waiter.
#[derive(Debug)]
pub struct Granted {
    /// Its former place in the queue.
    pub ticket: Box<Ticket>,
    /// The fence of its hold.
    pub fence: Fence,
    /// How long it has waited.
    pub waited: Duration,
    /// Whether it already held the lock, and was upgraded.
    pub(super) was_upgraded: bool,
    /// The fence of its owner's earlier hold, and the listener for the loss.
    pub(super) replaced: Option<(Fence, Arc<Listener>)>,
    /// The numbers of its places, in the order of the keys.
    pub(super) places: Places,
}

/// The numbers of the places of one request.
#[derive(Debug)]
pub(super) enum Places {
    One(TicketId),
    Several(Box<[TicketId]>),
}

impl Places {
    fn as_slice(&self) -> &[TicketId] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Several(ids) => ids,
        }
    }
}

impl Locks {
    /// Keeps a place for a waiter that did not get its grant, if it has asked for
    /// that. Nothing is kept for an owner that has asked again meanwhile.
    pub fn keep_place(&mut self, now: Timestamp, names: &[Name<'_>], granted: &Granted) {
        let (ticket, places) = (&granted.ticket, granted.places.as_slice());
        let Some(until) = ticket.kept_until(now) else {
            return;
        };
        let is_queued = |name: &Name<'_>| {
            let queue = self.table.find(*name);
            queue.is_some_and(|id| self.table.ticket_of(id, &ticket.owner).is_some())
        };
        if names.iter().any(is_queued) {
            return;
        }
        let multi = ticket.multi.map(|_| MultiId(self.table.next_id()));
        for (name, id) in names.iter().zip(places) {
            let is_new = self.table.find(*name).is_none();
            let queue = self.table.find_or_insert(*name);
            let mut ticket = ticket.clone();
            (ticket.queue, ticket.multi) = (queue, multi);
            ticket.keep_until(until);
            self.table.insert(*id, ticket);
            if is_new {
                // The time of the next check of the lock is not known yet.
                self.table.mark_due(queue);
            }
        }
        if let Some(multi) = multi {
            self.table.join(multi, places.to_vec());
        }
    }
}
