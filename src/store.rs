//! The hold as the server keeps it: a hash with a time to live.
//!
//! An exclusive hold is the field of its owner, with the hold count, and the
//! field of its fence. A shared one says so in the field of its mode; each
//! holder has a field with its count, and one with the end of its lease, its
//! fence and its permits. This file reads; `write` writes; `fields` has the names.

use std::sync::Arc;

use rlock_core::{
    Fence, Hold, Holder, Name, Shared, Timestamp, Who,
    syntax::{OWNER_LEN_MAX, RESERVED_PREFIX, decimal},
};

use crate::{
    api::{Key, KeyKind, OwnedText, Text},
    fields::{
        FENCE_FIELD, FIELDS_OF_EXCLUSIVE, FIELDS_OF_ONE, MODE_SHARED, constants, holder_field,
        scan, sole_owner, stored_count, stored_holder,
    },
    known::{Known, Stamp},
};

/// What a key held before an operation, as far as writing has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    Free,
    Exclusive {
        /// How often the owner who asks has entered; `None` if it is another's.
        count: Option<u32>,
        fence: Option<Fence>,
        deadline: Timestamp,
    },
    Shared {
        /// When the key expires.
        deadline: Timestamp,
        /// The fence in its own field.
        fence: Option<Fence>,
        fields: usize,
    },
    NoLock,
}

impl Before {
    pub(crate) const fn deadline(&self) -> Option<Timestamp> {
        match self {
            Self::Exclusive { deadline, .. } | Self::Shared { deadline, .. } => Some(*deadline),
            Self::Free | Self::NoLock => None,
        }
    }
}

/// Reads the hold of a key as `owner` sees it.
///
/// Costs one look-up of two fields if the key is free or `owner`'s alone, and
/// three if it is shared and its holders are known.
pub(crate) fn load(
    key: &Key<'_>,
    name: Name<'_>,
    owner: Option<Text>,
    known: &mut Known,
    now: Timestamp,
) -> (Hold, Before) {
    let stored = match read(key, owner) {
        Stored::Hold(hold) => hold,
        Stored::Shared {
            deadline,
            fence,
            count,
        } => {
            let caller = owner.map(|owner| (owner, count));
            return load_shared(key, name, deadline, fence, known, caller, now);
        }
        Stored::Sole {
            holder,
            deadline,
            fence,
        } => return load_sole(owner, holder, deadline, fence),
    };
    let before = match &stored {
        Hold::Exclusive {
            who,
            fence,
            deadline,
        } => Before::Exclusive {
            count: match who {
                Who::Caller { count } => Some(*count),
                Who::Waiter { .. } | Who::Other => None,
            },
            fence: *fence,
            deadline: *deadline,
        },
        Hold::NoLock => Before::NoLock,
        Hold::Free | Hold::Shared(_) => Before::Free,
    };
    (stored, before)
}

/// The one who holds a key in exclusive mode, if it is easily told: the owner
/// is copied to where `room` is.
pub(crate) fn exclusive_owner<'a>(
    key: &Key<'_>,
    now: Timestamp,
    room: &'a mut [u8; OWNER_LEN_MAX],
) -> Option<&'a [u8]> {
    let is_small_hash = key.kind() == KeyKind::Hash && key.len() <= FIELDS_OF_EXCLUSIVE;
    let ends = key.expires_at_ms().map(Timestamp::from_millis);
    if !is_small_hash || ends.is_none_or(|ends| ends.has_passed(now)) {
        return None;
    }
    let mut found = None;
    let mut sound = true;
    key.for_each_field(&mut |field, value| {
        if field == FENCE_FIELD {
            return;
        }
        sound &= found.is_none() && !field.starts_with(RESERVED_PREFIX);
        sound &= stored_count(value).is_some();
        if let Some(room) = room.get_mut(..field.len()) {
            room.copy_from_slice(field);
            found = Some(field.len());
        }
    });
    room.get(..found.filter(|_| sound)?)
}

/// Reads all holders of a key, of whichever mode, without changing anything.
/// `None` if the key holds something that is no lock.
pub(crate) fn holders(key: &Key<'_>, now: Timestamp) -> Option<Holding> {
    let mut holding = match read(key, None) {
        Stored::Hold(Hold::Free) => Holding::default(),
        Stored::Hold(Hold::Exclusive {
            fence, deadline, ..
        }) => {
            let (owner, count) = sole_owner(key)?;
            let holder = Holder {
                count,
                permits: 1,
                fence,
                deadline,
            };
            Holding {
                is_shared: false,
                holders: vec![(owner, holder)],
            }
        }
        // Nobody asks here, so nobody is seen to be alone.
        Stored::Hold(Hold::NoLock | Hold::Shared(_)) | Stored::Sole { .. } => return None,
        Stored::Shared { deadline, .. } => {
            let mut holders = scan(key, deadline)?.holders;
            for (_, holder) in &mut holders {
                holder.deadline = holder.deadline.min(deadline);
            }
            Holding {
                is_shared: true,
                holders,
            }
        }
    };
    holding.holders.retain(|it| !it.1.deadline.has_passed(now));
    Some(holding)
}

/// Whether a key is free or holds a lock; told soonest if it is `owner`'s.
pub(crate) fn is_lock(key: &Key<'_>, name: Name<'_>, owner: Option<Text>, known: &Known) -> bool {
    match read(key, owner) {
        Stored::Hold(hold) => hold != Hold::NoLock,
        Stored::Sole { .. } => true,
        Stored::Shared {
            deadline, fence, ..
        } => known.look(name, stamp(key, fence)).is_some() || scan(key, deadline).is_some(),
    }
}

/// Whether a key is held in shared mode, and by whom, if that is known without
/// looking through it.
pub(crate) fn known_holders<'a>(
    key: &Key<'_>,
    name: Name<'_>,
    known: &'a Known,
) -> Option<&'a Shared> {
    match read(key, None) {
        Stored::Shared { fence, .. } => known.look(name, stamp(key, fence)),
        Stored::Hold(_) | Stored::Sole { .. } => None,
    }
}

/// Who holds a lock.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    pub(crate) is_shared: bool,
    pub(crate) holders: Vec<(Arc<[u8]>, Holder)>,
}

enum Stored {
    Hold(Hold),
    Shared {
        deadline: Timestamp,
        fence: Option<Fence>,
        /// The count of the owner who asks.
        count: Option<OwnedText>,
    },
    /// The owner who asks, alone, in shared mode.
    Sole {
        holder: Holder,
        deadline: Timestamp,
        fence: Option<Fence>,
    },
}

fn read(key: &Key<'_>, owner: Option<Text>) -> Stored {
    let deadline = match key.kind() {
        KeyKind::Empty => return Stored::Hold(Hold::Free),
        KeyKind::Other => return Stored::Hold(Hold::NoLock),
        KeyKind::Hash => match key.expires_at_ms() {
            Some(at_ms) => Timestamp::from_millis(at_ms),
            None => return Stored::Hold(Hold::NoLock),
        },
    };
    let fence_field = constants().fence.text();
    let [count, fence] = match owner {
        Some(owner) => key.fields(owner, fence_field),
        None => [None, key.field(fence_field)],
    };
    let seen = usize::from(count.is_some()) + usize::from(fence.is_some());
    let fence = fence.and_then(|text| Fence::new(decimal(text.bytes())?));
    let hold = |who| Hold::Exclusive {
        who,
        fence,
        deadline,
    };
    if let Some(count) = &count
        && seen == key.len()
    {
        let count = stored_count(count.bytes());
        return Stored::Hold(count.map_or(Hold::NoLock, |count| hold(Who::Caller { count })));
    }
    if let (Some(owner), Some(count)) = (owner, &count)
        && key.len() == FIELDS_OF_ONE
    {
        // Most shared locks have one holder.
        let [mode, terms] = key.fields(constants().mode.text(), holder_field(owner.bytes()).text());
        let shared = mode.is_some_and(|mode| mode.bytes() == MODE_SHARED);
        let holder = terms.and_then(|terms| stored_holder(count.bytes(), terms.bytes()));
        if let Some(holder) = holder.filter(|_| shared) {
            return Stored::Sole {
                holder,
                deadline,
                fence,
            };
        }
    }
    match key.field(constants().mode.text()) {
        Some(mode) if mode.bytes() == MODE_SHARED => {
            return Stored::Shared {
                deadline,
                fence,
                count,
            };
        }
        Some(_) => return Stored::Hold(Hold::NoLock),
        None => {}
    }
    let caller = |of: &[u8]| owner.is_some_and(|owner| *owner.bytes() == *of);
    Stored::Hold(match sole_owner(key) {
        Some((owner, count)) if caller(&owner) => hold(Who::Caller { count }),
        Some(_) => hold(Who::Other),
        None => Hold::NoLock,
    })
}

fn load_shared(
    key: &Key<'_>,
    name: Name<'_>,
    deadline: Timestamp,
    fence: Option<Fence>,
    known: &mut Known,
    caller: Option<(Text, Option<OwnedText>)>,
    now: Timestamp,
) -> (Hold, Before) {
    let stamp = stamp(key, fence);
    let before = Before::Shared {
        deadline,
        fence,
        fields: stamp.fields,
    };
    let shared = known.take(name, stamp);
    let shared = shared.filter(|shared| agrees(key, shared, caller.as_ref(), now));
    let shared = shared.or_else(|| {
        let scanned = scan(key, deadline)?;
        let mut shared = Shared::stored(scanned.holders, fence);
        // What is missing is written, so that it is not another each time.
        scanned.bare.iter().for_each(|owner| shared.rewrite(owner));
        Some(shared)
    });
    match shared.filter(|shared| !shared.is_empty()) {
        Some(mut shared) => {
            // Whoever sets the time to live of the key sets the lease.
            shared.cut_to(deadline);
            (Hold::Shared(shared), before)
        }
        None => (Hold::NoLock, Before::NoLock),
    }
}

/// Whether what is known of a shared lock is what its key says of those who are
/// decided upon: the owner who asks, and whoever is to be dropped. What others
/// have changed of it by hand then comes to light.
fn agrees(
    key: &Key<'_>,
    shared: &Shared,
    caller: Option<&(Text, Option<OwnedText>)>,
    now: Timestamp,
) -> bool {
    let stored = |owner: &[u8], count: Option<&OwnedText>| {
        let terms = key.field(holder_field(owner).text())?;
        stored_holder(count?.bytes(), terms.bytes())
    };
    let caller_agrees = caller.is_none_or(|(owner, count)| match shared.get(owner.bytes()) {
        Some(holder) => stored(owner.bytes(), count.as_ref()) == Some(*holder),
        None => count.is_none(),
    });
    caller_agrees
        && shared.ended(now).all(|(owner, holder)| {
            let count = key.field(OwnedText::new(owner).text());
            stored(owner, count.as_ref()) == Some(*holder)
        })
}

fn load_sole(
    owner: Option<Text>,
    holder: Holder,
    deadline: Timestamp,
    fence: Option<Fence>,
) -> (Hold, Before) {
    let before = Before::Shared {
        deadline,
        fence,
        fields: FIELDS_OF_ONE,
    };
    let owner = owner.as_ref().map(|owner| owner.bytes().into());
    let holders = owner.map(|owner| (owner, holder));
    let mut shared = Shared::stored(holders, fence);
    shared.cut_to(deadline);
    (Hold::Shared(shared), before)
}

/// What a shared lock is recognised by.
pub(crate) fn stamp(key: &Key<'_>, fence: Option<Fence>) -> Stamp {
    Stamp {
        fields: key.len(),
        fence,
    }
}
