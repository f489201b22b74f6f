//! Several locks while they are changed together: all their keys are open.

use rlock_core::{Announce, Hold};

use crate::{
    api::{Key, Text},
    delivery,
    notes::Changing,
    opened::{Message, Opened},
    site::{Failure, Site},
    state::State,
    store,
};

/// Several locks that are being changed: all opened, none written yet.
pub(crate) struct OpenedMany<'a> {
    opened: Vec<Opened<'a>>,
    pub(crate) holds: Vec<Hold>,
    /// What those who wait outside the queues are to be told of each.
    pub(crate) announces: Vec<Announce>,
    changing: Changing,
}

impl<'a> OpenedMany<'a> {
    /// Opens all keys as they are.
    pub(crate) fn open(state: &mut State, site: &Site<'a>, keys: &[Text<'a>]) -> Self {
        let changing = Changing::new(keys);
        let open = |key: &Text<'a>| Opened::new(&mut state.known, &Site { key: *key, ..*site });
        let mut opened: Vec<_> = keys.iter().map(open).collect();
        let holds: Vec<_> = opened.iter_mut().map(|it| it.hold.take()).collect();
        Self {
            opened,
            announces: vec![Announce::No; holds.len()],
            holds,
            changing,
        }
    }

    /// The first of the keys that holds no lock.
    pub(crate) fn no_lock(&self) -> Option<usize> {
        self.holds.iter().position(|hold| *hold == Hold::NoLock)
    }

    /// Writes down what has become of the holds. All keys are closed when the
    /// first key event is emitted.
    pub(crate) fn save(self, state: &mut State) {
        let mut saved = Vec::with_capacity(self.opened.len());
        let changed = self.opened.into_iter().zip(self.holds).zip(self.announces);
        for ((mut opened, hold), mut announce) in changed {
            opened.hold = hold;
            if matches!(opened.hold, Hold::Exclusive { .. }) && opened.ends_sooner() {
                announce = Announce::Sooner;
            }
            let place = opened.place();
            saved.push((place, opened.save(&mut state.known, announce)));
        }
        drop(self.changing);
        for ((ctx, key), (events, message)) in saved {
            events.emit(ctx, key);
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
/// Which key holds something else.
pub(crate) fn check(state: &mut State, site: &Site<'_>, keys: &[Text]) -> Result<(), Failure> {
    state.check_writable(site)?;
    for (index, key) in keys.iter().enumerate() {
        let site = Site { key: *key, ..*site };
        let Some(opened) = Key::open_to_read(site.ctx, *key) else {
            continue;
        };
        let (name, known) = (site.name(), &state.known);
        if !store::is_lock(&opened, name, site.caller, known, site.now) {
            // The next one who asks is told the same.
            state.known.forget(name);
            return Err(Failure::WrongType { key: index });
        }
    }
    Ok(())
}
