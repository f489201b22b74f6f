//! Several locks that are changed together, with all their keys open.

use rlock_core::{Announce, Hold, Name, TicketId};

use super::{
    loaded::{Loaded, Message},
    other_holders::ReadHolder,
};
use crate::{
    api::{Key, OwnedText, Published, Text},
    delivery,
    notes::Changing,
    operation::{Failure, Operation},
    state::State,
    store,
};

/// Several locks that are being changed: all loaded, none written yet.
pub(crate) struct LoadedAll<'a> {
    loaded: Vec<Loaded<'a>>,
    pub(crate) names: Vec<Name<'a>>,
    pub(crate) holds: Vec<Hold>,
    /// The notifications for each lock that do not go to its queue.
    pub(crate) announces: Vec<Announce>,
    changing: Changing,
}

impl<'a> LoadedAll<'a> {
    /// Opens several locks to change them together, after it has settled those
    /// with waiters.
    ///
    /// # Errors
    ///
    /// One of the keys holds other data; then only due changes have been made.
    pub(crate) fn load(
        state: &mut State,
        op: &Operation<'a>,
        keys: &'a [Text<'a>],
    ) -> Result<Self, Failure> {
        state.check_writable(op)?;
        let loaded = Self::settled(state, op, keys);
        match loaded
            .holds
            .iter()
            .position(|hold| matches!(hold, Hold::NoLock))
        {
            None => Ok(loaded),
            Some(key) => {
                loaded.save(state);
                Err(Failure::WrongType { key })
            }
        }
    }

    /// Opens all keys, and settles the locks with waiters before, if that changes
    /// anything.
    fn settled(state: &mut State, op: &Operation<'a>, keys: &'a [Text<'a>]) -> Self {
        let loaded = Self::as_they_are(state, op, keys);
        let mut read = loaded.names.iter().zip(&loaded.holds);
        if read.all(|(name, hold)| state.locks.is_settled(op.now, *name, hold)) {
            return loaded;
        }
        // No key may be open when another one is settled.
        loaded.close(state);
        for key in keys {
            let op = op.at(*key);
            if state.locks.is_contended(op.name()) {
                super::settle(state, &op);
            }
        }
        Self::as_they_are(state, op, keys)
    }

    /// Closes the keys without a change.
    fn close(self, state: &mut State) {
        for (mut loaded, hold) in self.loaded.into_iter().zip(self.holds) {
            loaded.hold = hold;
            loaded.close(state);
        }
    }

    /// The locks, and their exclusive holders as stored.
    pub(crate) fn parts(&mut self) -> (&[Name<'a>], &mut [Hold], Vec<ReadHolder<'_>>) {
        let read = self.names.iter().zip(&self.loaded);
        let owners = read.filter_map(|(name, it)| Some((*name, it.before.exclusive_owner()?)));
        (&self.names, &mut self.holds, owners.collect())
    }

    /// Opens all keys as they are.
    fn as_they_are(state: &mut State, op: &Operation<'a>, keys: &'a [Text<'a>]) -> Self {
        let changing = Changing::new(keys);
        let load = |key: &Text<'a>| Loaded::new(state, &op.at(*key));
        let mut loaded: Vec<_> = keys.iter().map(load).collect();
        let holds: Vec<_> = loaded.iter_mut().map(|it| it.hold.take()).collect();
        let names = keys.iter().map(|key| Name {
            db: op.db,
            key: key.bytes(),
        });
        Self {
            loaded,
            names: names.collect(),
            announces: vec![Announce::No; holds.len()],
            holds,
            changing,
        }
    }

    /// Writes the new holds. All keys are closed when the first key event is
    /// emitted.
    pub(crate) fn save(self, state: &mut State) {
        let mut saved = Vec::with_capacity(self.loaded.len());
        let changed = self.loaded.into_iter().zip(self.holds).zip(self.announces);
        for ((mut loaded, hold), mut announce) in changed {
            loaded.hold = hold;
            if matches!(loaded.hold, Hold::Exclusive { .. }) && loaded.ends_sooner() {
                announce = Announce::Sooner;
            }
            let place = loaded.place();
            saved.push((place, loaded.save(state, announce)));
        }
        drop(self.changing);
        for ((ctx, key), saved) in saved {
            let message = saved.message;
            saved.emit(ctx, key);
            if message == Message::Due {
                delivery::announce(ctx, key);
            }
        }
    }
}

/// Checks that every key is free or holds a lock, and may be changed.
///
/// # Errors
///
/// The key that holds something else.
pub(crate) fn check_all(
    state: &mut State,
    op: &Operation<'_>,
    keys: &[Text],
) -> Result<(), Failure> {
    state.check_writable(op)?;
    for (index, key) in keys.iter().enumerate() {
        let op = op.at(*key);
        let Some(opened) = Key::open_to_read(op.ctx, *key) else {
            continue;
        };
        let (name, known) = (op.name(), &state.shared_cache);
        if !store::is_lock(&opened, name, op.caller, known, op.now) {
            // The next one who asks gets the same.
            state.shared_cache.forget(name);
            return Err(Failure::WrongType { key: index });
        }
    }
    Ok(())
}

/// Grants the next request for several keys that changes have made first in all
/// its queues. Returns the locks to settle then: the locks of a request that
/// could not be delivered. `None` if there is no such request.
pub(super) fn grant_next(state: &mut State, op: &Operation<'_>) -> Option<Vec<OwnedText>> {
    let ticket = state.locks.next_ready()?;
    let keys = state.locks.keys_of(ticket);
    Some(grant(state, op, ticket, &keys))
}

fn grant(
    state: &mut State,
    op: &Operation<'_>,
    ticket: TicketId,
    keys: &[(u32, Box<[u8]>)],
) -> Vec<OwnedText> {
    if keys.iter().any(|(db, _)| *db != op.db) {
        // This needs that database to be selected.
        for (db, key) in keys {
            state.locks.settle_later(Name { db: *db, key });
        }
        return Vec::new();
    }
    let texts: Vec<_> = keys.iter().map(|(_, key)| OwnedText::new(key)).collect();
    let keys: Vec<_> = texts.iter().map(OwnedText::text).collect();
    // The server has asked only for the command's keys.
    let is_ours = |key: &Text<'_>| state.is_ours(&op.at(*key));
    if !keys.iter().all(is_ours) {
        return Vec::new();
    }
    match hand_over(state, op, ticket, &keys) {
        Some(Published::ToNobody) => texts,
        Some(Published::ToSomebody) | None => Vec::new(),
    }
}

/// Completes a granted request, and notifies its owner.
fn hand_over(
    state: &mut State,
    op: &Operation<'_>,
    ticket: TicketId,
    keys: &[Text<'_>],
) -> Option<Published> {
    let nobody = Operation {
        caller: None,
        ..*op
    };
    op.ctx.expect_changes(keys.len());
    let mut loaded = LoadedAll::as_they_are(state, &nobody, keys);
    let (names, holds) = (&loaded.names, &mut loaded.holds);
    let granted = state.locks.grant_all(op.now, ticket, names, holds);
    let delivered = granted.map(|granted| {
        let named = keys.iter().map(|key| key.bytes().into()).collect();
        match state.deliveries.grant(op.ctx, op.db, named, granted) {
            Ok(()) => Published::ToSomebody,
            Err(granted) => {
                state.locks.skip_all(op.now, names, holds, &granted);
                Published::ToNobody
            }
        }
    });
    loaded.save(state);
    delivered
}
