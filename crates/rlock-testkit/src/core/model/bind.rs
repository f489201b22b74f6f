//! Holds whose loss is reported, or that end with a connection.

use super::{Bind, Kind, Model, Renewed, Via, Wanted, Watching};
use crate::core::messages::Ask;

impl Via {
    pub const fn is_channel(&self) -> bool {
        matches!(self, Self::Channel { .. })
    }

    pub const fn session(&self) -> Option<u64> {
        match self {
            Self::Call { session, .. } | Self::Channel { session, .. } => Some(*session),
            Self::Kept => None,
        }
    }
}

impl Model {
    pub(super) fn watch(&mut self, at: usize, fence: u64, ask: &Ask<'static>) {
        let grace = Wanted::asked(ask).grace;
        self.watch_as(at, ask.owner(), fence, &Via::asked(ask), grace);
    }

    /// Replaces the channel and the grace of the hold, if given. A binding moves
    /// to the connection that asked last.
    pub(super) fn watch_as(
        &mut self,
        at: usize,
        owner: &str,
        fence: u64,
        via: &Via,
        grace: Option<u64>,
    ) {
        let watching = &mut self.locks[at].watching;
        let earlier = watching.iter().position(|it| it.owner == owner);
        let place = earlier.unwrap_or(watching.len());
        let earlier = earlier.map(|place| watching.remove(place));
        let (channel, bind) = earlier.map_or((None, None), |it| (it.channel, it.bind));
        let channel = match via {
            Via::Channel { session, channel } => Some((*session, channel.clone())),
            Via::Call { .. } | Via::Kept => channel,
        };
        let grace = grace.or(bind.map(|bind| bind.grace));
        let bind = grace.zip(via.session()).map(|(grace, session)| Bind {
            session,
            grace,
            closed: None,
        });
        if channel.is_some() || bind.is_some() {
            let owner = owner.to_owned();
            let new = Watching {
                owner,
                fence,
                channel,
                bind,
            };
            watching.insert(place, new);
        }
    }

    /// Whether renewing the owner's holds of these keys would exceed the limit of
    /// watches.
    pub(super) fn lacks_watches_to_renew(
        &self,
        keys: &[usize],
        owner: &str,
        renewed: &Renewed,
    ) -> bool {
        let unwatched = |at: &&usize| {
            let lock = &self.locks[**at];
            lock.data.holder(owner).is_some() && !lock.is_watched(owner)
        };
        let more = keys.iter().filter(unwatched).count();
        renewed.watches() && more > 0 && self.watches() + more > self.limits.watches_max
    }

    /// Whether granting all of these keys, and ending the owner's waits for them,
    /// would exceed the limit of watches.
    pub(super) fn lacks_watches(&self, keys: &[usize], ask: &Ask<'_>, kind: Kind) -> bool {
        let replaced = self.watched_holds(keys, ask) + self.watched_places(keys, ask, kind);
        self.lacks_more_watches(replaced, keys, ask)
    }

    /// Whether it would exceed the limit if the owner holds all of them and asks again.
    pub(super) fn lacks_watches_to_stay(&self, keys: &[usize], ask: &Ask<'_>) -> bool {
        self.lacks_more_watches(self.watched_holds(keys, ask), keys, ask)
    }

    /// Whether it would exceed the limit if the request were queued: its holds are kept too.
    pub(super) fn lacks_watches_to_queue(&self, keys: &[usize], ask: &Ask<'_>, kind: Kind) -> bool {
        self.lacks_more_watches(self.watched_places(keys, ask, kind), keys, ask)
    }

    fn watched_holds(&self, keys: &[usize], ask: &Ask<'_>) -> usize {
        let watched = |at: &&usize| self.locks[**at].is_watched(ask.owner());
        keys.iter().filter(watched).count()
    }

    fn watched_places(&self, keys: &[usize], ask: &Ask<'_>, kind: Kind) -> usize {
        let place = self.place_of_any(keys, ask.owner());
        let place = place.filter(|it| it.repeats(keys, ask, kind) && it.watches());
        place.map_or(0, |it| it.keys.len())
    }

    fn lacks_more_watches(&self, replaced: usize, keys: &[usize], ask: &Ask<'_>) -> bool {
        let wanted = if ask.watches() { keys.len() } else { 0 };
        // Existing watches may be replaced at any number of watches.
        let more = wanted.saturating_sub(replaced);
        more > 0 && self.watches() + more > self.limits.watches_max
    }

    /// A connection ends, without its blocked calls.
    pub fn close(&mut self, closed: u64) {
        let of_it = |via: &Via| via.is_channel() && via.session() == Some(closed);
        let gone = self.requests.iter().filter(|it| of_it(&it.via));
        for id in gone.map(|it| it.id).collect::<Vec<_>>() {
            self.counters.waiters_gone += 1;
            self.end_call(id, "kept for a closed connection");
        }
        for lock in &mut self.locks {
            for it in &mut lock.watching {
                it.channel = it.channel.take().filter(|it| it.0 != closed);
            }
            lock.watching
                .retain(|it| it.channel.is_some() || it.bind.is_some());
        }
        // Owners that are admitted after these holds may hold for longer than the cut holds.
        self.end_waits();
        for at in 0..self.locks.len() {
            // One by one: the end of one hold may admit another owner, whose hold is then bound to the connection that
            // asked for it.
            for owner in self.unbind(at, closed) {
                self.settle(at);
                self.cut(at, &owner);
                self.settle(at);
                self.value_message(at);
            }
        }
    }

    /// The owners of the holds that have now lost their connection.
    fn unbind(&mut self, at: usize, closed: u64) -> Vec<String> {
        let now = self.now;
        let mut owners = Vec::new();
        for it in &mut self.locks[at].watching {
            let bind = it.bind.as_mut().filter(|it| it.closed.is_none());
            if let Some(bind) = bind.filter(|it| it.session == closed) {
                bind.closed = Some(now);
                owners.push(it.owner.clone());
            }
        }
        owners
    }

    /// Cuts the lease of a hold to its grace, if it has lost its connection.
    fn cut(&mut self, at: usize, owner: &str) {
        let now = self.now;
        let lock = &mut self.locks[at];
        let mut watching = lock.watching.iter();
        let bind = watching.find(|it| it.owner == owner);
        let bind = bind.and_then(|it| it.bind.as_ref());
        let Some(bind) = bind.filter(|it| it.closed.is_some()) else {
            return;
        };
        if lock.data.holder(owner).is_none() {
            // Another owner's hold with the same fence is here now.
            return;
        }
        if bind.grace == 0 {
            self.end_hold(at, owner);
            self.locks[at].owes_message = true;
            return;
        }
        let end = now + bind.grace;
        let hash = lock.data.lock_mut().expect("what is bound is held");
        let before = hash.clone();
        let holder = hash.holders.iter_mut().find(|it| it.owner == owner);
        let holder = holder.expect("what is bound is held");
        holder.ends = before.end_of(holder).min(end);
        hash.end_with_the_last();
        if hash.ends < before.ends {
            self.unlock(at);
        }
    }
}
