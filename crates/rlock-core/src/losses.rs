//! Holds that have ended without a release: whose loss has to be told.
//!
//! Watches are compared with the hold: one is lost if its fence is not that of
//! its owner's hold. A lock may have a hundred thousand watches, so the search
//! goes on from turn to turn, and nothing is granted until it is through.

use crate::{
    Announce, Effect, Hold, Locks, Step, Timestamp,
    queue::QueueId,
    watch::{Watch, WatchId},
};

/// How many watches are looked at for the price of one that is told.
const LOOKS_PER_TICKET: usize = 8;

/// How far a search through the watches of a lock has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    from: (u64, WatchId),
    /// Whether a hold has ended since it began, so that it has to begin anew.
    again: bool,
}

impl Search {
    const START: Self = Self {
        from: (0, WatchId::MIN),
        again: false,
    };
}

impl Locks {
    /// Tells of the holds that have ended since the last time, as many as this
    /// turn allows. Of shared ones only those are looked at that are known to
    /// have ended, if all is known.
    pub(crate) fn tell_losses(
        &mut self,
        now: Timestamp,
        id: QueueId,
        hold: &mut Hold,
        step: &mut Step<()>,
    ) {
        if self.table.queues.get(&id).is_none_or(|it| it.watches == 0) {
            self.table.searches.remove(&id);
            return;
        }
        let ended = match hold {
            Hold::Shared(shared) => shared.take_ended(),
            Hold::Free | Hold::Exclusive { .. } | Hold::NoLock => None,
        };
        let searching = self.table.searches.get(&id).copied();
        match (ended, searching) {
            (Some(ended), None) if ended.len() <= self.budget.left() => {
                for owner in &ended {
                    if let Some(watch) = self.table.watch_of(id, owner) {
                        self.tell_loss(now, watch, step);
                    }
                }
            }
            (ended, Some(search)) => {
                let again = search.again || ended.is_none_or(|ended| !ended.is_empty());
                self.search_losses(now, id, hold, Search { again, ..search }, step);
            }
            (_, None) => self.search_losses(now, id, hold, Search::START, step),
        }
    }

    /// Goes on looking for watches of holds that are no more.
    fn search_losses(
        &mut self,
        now: Timestamp,
        id: QueueId,
        hold: &Hold,
        mut search: Search,
        step: &mut Step<()>,
    ) {
        let mut looks = self.budget.left().max(1).saturating_mul(LOOKS_PER_TICKET);
        loop {
            let Some((entry, watch)) = self.table.next_watch(id, search.from) else {
                if !search.again {
                    self.table.searches.remove(&id);
                    return;
                }
                search = Search::START;
                continue;
            };
            if looks == 0 || (self.budget.is_spent() && !step.effects.is_empty()) {
                self.table.searches.insert(id, search);
                self.table.mark_due(id);
                return;
            }
            looks -= 1;
            search.from = (entry.0, entry.1.next());
            if hold.fence_of(&watch.owner) != Some(watch.fence) {
                self.tell_loss(now, entry.1, step);
            }
        }
    }

    fn tell_loss(&mut self, now: Timestamp, id: WatchId, step: &mut Step<()>) {
        let Some(watch) = self.table.remove_watch(id) else {
            return;
        };
        self.budget.spend(1);
        let Watch {
            owner,
            fence,
            notice,
            binding,
            ..
        } = watch;
        if binding.is_some_and(|it| it.has_ended(now)) {
            step.announce = step.announce.max(Announce::IfFree);
        }
        let heard = notice.filter(|it| !self.sweep.closed.contains_key(&it.session));
        if let Some(listener) = heard {
            step.effects.push(Effect::Lost {
                owner,
                fence,
                listener,
            });
        }
    }
}
