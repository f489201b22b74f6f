//! Reads the hold of a key.

use std::{ops::ControlFlow, sync::Arc};

use rlock_core::{
    Extra, Extras, Fence, Hold, Holder, Holding, Locks, Name, Shared, Timestamp, Who,
    codec::{self, Field, Orphan},
    syntax::OWNER_LEN_MAX,
};

use super::{
    before::{Before, One, Owner},
    fields::{
        FIELDS_OF_EXCLUSIVE, FIELDS_OF_ONE, FIELDS_OF_PLAIN, constants, count_holders,
        extra_fields, holder_field, scan, sole_owner,
    },
    shared_cache::{SharedCache, Stamp},
};
use crate::api::{Key, KeyKind, OwnedText, Text};

/// Reads the hold of a key as `owner` sees it.
///
/// Costs one look-up of two fields if the key is free or only `owner` holds it; one
/// field more if another holds it and several wait; and three look-ups if it is
/// shared and its holders are known.
pub(crate) fn load<'a>(
    key: &Key<'_>,
    name: Name<'_>,
    owner: Option<Text<'a>>,
    known: (&Locks, &mut SharedCache),
    now: Timestamp,
) -> (Hold, Before<'a>) {
    let (locks, known) = known;
    match read(key, owner, |fence| locks.known_holder(name, fence)) {
        Stored::Free => (Hold::Free, Before::Free),
        Stored::NoLock => (Hold::NoLock, Before::NoLock),
        Stored::Exclusive(one) => {
            let who = match one.owner {
                Owner::Caller(_) => Who::Caller,
                Owner::Other(_) => Who::Other,
            };
            let (holder, extras) = (one.holder, one.extras.clone());
            let hold = Hold::Exclusive {
                who,
                holder,
                extras,
            };
            (hold, Before::One(one))
        }
        Stored::Sole { one, holder } => {
            let holder = (one.owner.bytes().into(), holder);
            let mut shared = Shared::stored([holder], one.holder.fence);
            shared.cut_to(one.holder.deadline);
            (Hold::Shared(shared), Before::One(one))
        }
        Stored::Shared(stored) => load_shared(key, name, stored, known, owner, now),
    }
}

/// The exclusive holder of a key, if that is easy to find; the owner is copied
/// to `room`.
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
    let scanned = key.for_each_field(&mut |field, value| match Field::named(field) {
        Field::Fence | Field::Extra(_) => ControlFlow::Continue(()),
        Field::Count(owner) if found.is_none() && codec::count(value).is_some() => {
            let Some(room) = room.get_mut(..owner.len()) else {
                return ControlFlow::Break(());
            };
            room.copy_from_slice(owner);
            found = Some(owner.len());
            ControlFlow::Continue(())
        }
        Field::Count(_) | Field::Terms(_) | Field::Reserved => ControlFlow::Break(()),
    });
    room.get(..found.filter(|_| scanned.is_continue())?)
}

/// Reads all holders of a key, in any mode, without changing anything. `None`
/// if the key holds something that is not a lock, or if there was no time to
/// read it.
pub(crate) fn holders(
    key: &Key<'_>,
    now: Timestamp,
    is_over: &dyn Fn() -> bool,
) -> Option<Holding> {
    let mut holding = match read(key, None, |_| None) {
        Stored::Free => Holding::default(),
        Stored::Exclusive(one) => Holding {
            is_shared: false,
            holders: vec![(one.owner.bytes().into(), one.holder)],
            extras: one.extras,
        },
        // There is no requesting owner, so nobody counts as the only holder.
        Stored::NoLock | Stored::Sole { .. } => return None,
        Stored::Shared(StoredShared { deadline, .. }) => {
            let mut holders = scan(key, deadline, is_over)?.holders;
            for (_, holder) in &mut holders {
                holder.deadline = holder.deadline.min(deadline);
            }
            Holding {
                is_shared: true,
                holders,
                extras: Extras::NONE,
            }
        }
    };
    holding.holders.retain(|it| !it.1.deadline.has_passed(now));
    Some(holding)
}

/// Whether a key is free or holds a lock, as [`load`] will find it; fastest if
/// the lock is `owner`'s.
pub(crate) fn is_lock(
    key: &Key<'_>,
    name: Name<'_>,
    owner: Option<Text>,
    known: &SharedCache,
    now: Timestamp,
) -> bool {
    match read(key, owner, |_| None) {
        Stored::NoLock => false,
        Stored::Free | Stored::Exclusive(_) | Stored::Sole { .. } => true,
        Stored::Shared(stored) => {
            let asking = owner.map(|owner| (owner, stored.count));
            let is_known = |shared: &Shared| agrees(key, shared, asking.as_ref(), now);
            let known = known.peek(name, stamp(key, stored.fence));
            known.is_some_and(is_known) || scan(key, stored.deadline, &|| false).is_some()
        }
    }
}

/// The hash of this module that a key holds, although it is no lock: for instance
/// because its time to live was removed.
pub(crate) fn orphan(
    key: &Key<'_>,
    name: Name<'_>,
    known: &SharedCache,
    now: Timestamp,
) -> Option<Orphan> {
    if key.kind() != KeyKind::Hash || is_lock(key, name, None, known, now) {
        return None;
    }
    let mut orphan = Orphan::default();
    let _ = key.for_each_field(&mut |field, value| {
        orphan.add(field, value);
        ControlFlow::Continue(())
    });
    orphan.found()
}

/// Whether a key is held in shared mode, and by whom, if that is known without
/// a scan.
pub(crate) fn known_holders<'a>(
    key: &Key<'_>,
    name: Name<'_>,
    known: &'a SharedCache,
) -> Option<&'a Shared> {
    match read(key, None, |_| None) {
        Stored::Shared(StoredShared { fence, .. }) => known.peek(name, stamp(key, fence)),
        Stored::Free | Stored::NoLock | Stored::Exclusive(_) | Stored::Sole { .. } => None,
    }
}

/// Whether a key has as many shared holders as known, after a scan of all of
/// its fields.
pub(crate) fn confirms(key: &Key<'_>, name: Name<'_>, known: &SharedCache, now: Timestamp) -> bool {
    let counted = || count_holders(key, now);
    known_holders(key, name, known)
        .is_some_and(|shared| counted() == Some([shared.len(), shared.live(now)]))
}

enum Stored<'a> {
    Free,
    NoLock,
    Exclusive(One<'a>),
    /// The requesting owner, alone, in shared mode.
    Sole {
        one: One<'a>,
        holder: Holder,
    },
    Shared(StoredShared),
}

struct StoredShared {
    deadline: Timestamp,
    fence: Option<Fence>,
    /// The requesting owner's count.
    count: Option<OwnedText>,
}

/// The fields of a lock that one owner holds, in the order in which they are
/// looked up: its count and the fence come first.
const SEEN_OF_ONE: usize = 2;

/// The content of a key. `known` has the last owner of the hold with a fence, so
/// that its field need not be searched.
fn read<'a, 'k>(
    key: &Key<'_>,
    caller: Option<Text<'a>>,
    known: impl FnOnce(Fence) -> Option<&'k Arc<[u8]>>,
) -> Stored<'a> {
    let deadline = match key.kind() {
        KeyKind::Empty => return Stored::Free,
        KeyKind::Other => return Stored::NoLock,
        KeyKind::Hash => match key.expires_at_ms() {
            Some(at_ms) => Timestamp::from_millis(at_ms),
            None => return Stored::NoLock,
        },
    };
    let fence_field = constants().fence.text();
    let [count, fence] = match caller {
        Some(caller) => key.fields(caller, fence_field),
        None => [None, key.field(fence_field)],
    };
    let has_fence = usize::from(fence.is_some());
    let seen = usize::from(count.is_some()) + has_fence;
    let fence = fence.and_then(|text| codec::fence(text.bytes()));
    let stored = (fence, deadline);
    if let (Some(caller), Some(count)) = (caller, &count)
        && let Some(own) = read_own(key, caller, count, seen, stored)
    {
        return own;
    }
    if count.is_none()
        && key.len() == FIELDS_OF_PLAIN
        && let Some(owner) = fence.and_then(known)
        && let Some(count) = key.field(OwnedText::new(owner).text())
        && let Some(count) = codec::count(count.bytes())
    {
        return exclusive(
            Owner::new(Arc::clone(owner), caller),
            count,
            Extras::NONE,
            stored,
        );
    }
    // A shared lock has its mode and a holder's count besides the fence.
    let mode = (key.len() >= 2 + has_fence).then(|| key.field(constants().mode.text()));
    match mode.flatten() {
        Some(mode) if mode.bytes() == codec::SHARED.as_bytes() => Stored::Shared(StoredShared {
            deadline,
            fence,
            count,
        }),
        Some(_) => Stored::NoLock,
        None => sole_owner(key).map_or(Stored::NoLock, |it| {
            exclusive(Owner::new(it.owner, caller), it.count, it.extras, stored)
        }),
    }
}

fn exclusive<'a>(
    owner: Owner<'a>,
    count: u32,
    extras: Extras,
    (fence, deadline): (Option<Fence>, Timestamp),
) -> Stored<'a> {
    Stored::Exclusive(One {
        owner,
        is_shared: false,
        extras,
        holder: Holder {
            count,
            ..Holder::new(fence, deadline)
        },
    })
}

/// The hold of the requesting owner alone, which has this count; `seen` fields are
/// read already. `None` if it may have others beside it.
fn read_own<'a>(
    key: &Key<'_>,
    caller: Text<'a>,
    count: &OwnedText,
    seen: usize,
    (fence, deadline): (Option<Fence>, Timestamp),
) -> Option<Stored<'a>> {
    let (extras, found) = read_extras(key, key.len().saturating_sub(seen));
    if seen + found == key.len() {
        let count = codec::count(count.bytes());
        return Some(count.map_or(Stored::NoLock, |count| {
            exclusive(Owner::Caller(caller), count, extras, (fence, deadline))
        }));
    }
    // Most shared locks have one holder. Without the fence one of the four fields
    // could be another holder's.
    if seen != SEEN_OF_ONE || key.len() != FIELDS_OF_ONE {
        return None;
    }
    let holder = read_sole(key, caller, count)?;
    let one = One {
        owner: Owner::Caller(caller),
        is_shared: true,
        extras: Extras::NONE,
        holder: Holder {
            fence,
            deadline,
            ..holder
        },
    };
    Some(Stored::Sole { one, holder })
}

/// The extras of a hold whose key has this many fields more, and how many of these
/// they are.
#[inline(always)]
fn read_extras(key: &Key<'_>, more: usize) -> (Extras, usize) {
    let (mut extras, mut found) = (Extras::NONE, 0);
    if (1..=Extra::ALL.len()).contains(&more) {
        for (extra, field) in extra_fields() {
            if let Some(content) = key.field(field) {
                extras.read(extra, content.bytes());
                found += 1;
            }
        }
    }
    (extras, found)
}

fn read_sole(key: &Key<'_>, caller: Text, count: &OwnedText) -> Option<Holder> {
    let field = holder_field(caller.bytes());
    let [mode, terms] = key.fields(constants().mode.text(), field.text());
    mode.filter(|mode| mode.bytes() == codec::SHARED.as_bytes())?;
    codec::counted_holder(count.bytes(), terms?.bytes())
}

fn load_shared<'a>(
    key: &Key<'_>,
    name: Name<'_>,
    stored: StoredShared,
    known: &mut SharedCache,
    caller: Option<Text<'a>>,
    now: Timestamp,
) -> (Hold, Before<'a>) {
    let (fence, deadline) = (stored.fence, stored.deadline);
    let stamp = stamp(key, fence);
    let asking = caller.map(|caller| (caller, stored.count));
    let shared = known.take(name, stamp, |shared| {
        agrees(key, shared, asking.as_ref(), now)
    });
    let shared = shared.or_else(|| {
        let scanned = scan(key, deadline, &|| false)?;
        let mut shared = Shared::stored(scanned.holders, fence);
        // Missing data is written, so that it is the same each time.
        scanned
            .without_terms
            .iter()
            .for_each(|owner| shared.rewrite(owner));
        Some(shared)
    });
    let Some(mut shared) = shared.filter(|shared| !shared.is_empty()) else {
        return (Hold::NoLock, Before::NoLock);
    };
    let only = shared
        .iter()
        .next()
        .filter(|_| stamp.fields == FIELDS_OF_ONE && fence.is_some());
    let before = match only {
        Some((owner, holder)) if shared.len() == 1 => Before::One(One {
            owner: Owner::new(owner.into(), caller),
            is_shared: true,
            extras: Extras::NONE,
            holder: Holder {
                fence,
                deadline,
                ..*holder
            },
        }),
        Some(_) | None => Before::Several { fence, deadline },
    };
    // The time to live of the key sets the lease.
    shared.cut_to(deadline);
    (Hold::Shared(shared), before)
}

/// How many ended leases are compared with the key: one turn drops no more.
const DROPPED_MAX: usize = 256;

/// Whether the known state of a shared lock matches its key for the holders
/// that matter: the requesting owner, and those to drop. This reveals changes
/// that others made by hand.
fn agrees(
    key: &Key<'_>,
    shared: &Shared,
    caller: Option<&(Text, Option<OwnedText>)>,
    now: Timestamp,
) -> bool {
    let stored = |owner: &[u8], count: Option<&OwnedText>| {
        let terms = key.field(holder_field(owner).text())?;
        codec::counted_holder(count?.bytes(), terms.bytes())
    };
    let caller_agrees = caller.is_none_or(|(owner, count)| match shared.get(owner.bytes()) {
        Some(holder) => stored(owner.bytes(), count.as_ref()) == Some(*holder),
        None => count.is_none(),
    });
    caller_agrees
        && shared.ended(now).take(DROPPED_MAX).all(|(owner, holder)| {
            let count = key.field(OwnedText::new(owner).text());
            stored(owner, count.as_ref()) == Some(*holder)
        })
}

/// How a shared lock is recognised.
pub(crate) fn stamp(key: &Key<'_>, fence: Option<Fence>) -> Stamp {
    Stamp {
        fields: key.len(),
        fence,
    }
}
