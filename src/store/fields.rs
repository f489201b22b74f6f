//! The fields of a hash that is a lock, and what is in them.

use std::{cell::OnceCell, collections::HashMap, ops::ControlFlow, sync::Arc};

use rlock_core::{
    Fence, Holder, Timestamp,
    syntax::{OWNER_LEN_MAX, RESERVED_PREFIX, decimal},
};

use crate::api::{Key, MainThread, OwnedText};

/// The field in which the largest fence of a hold is kept.
pub(crate) const FENCE_FIELD: &[u8] = b"rlock:fence";
/// The field in which the mode of a hold is kept, unless it is exclusive.
const MODE_FIELD: &[u8] = b"rlock:mode";
pub(crate) const MODE_SHARED: &[u8] = b"shared";
/// What the field begins with in which more is kept of a shared holder.
const HOLDER_PREFIX: &[u8] = b"rlock:holder:";
/// How many fields an exclusive lock has.
pub(crate) const FIELDS_OF_EXCLUSIVE: usize = 2;
/// How many fields a lock has that one owner holds in shared mode.
pub(crate) const FIELDS_OF_ONE: usize = 4;
/// A hash with more fields than this is no exclusive lock, and is not looked
/// through. Such a hold has two.
const FIELDS_MAX: usize = 16;
/// The largest hold count.
const COUNT_MAX: u64 = i32::MAX as u64;

/// Strings that many grants need, made once.
pub(crate) struct Constants {
    pub(crate) fence: OwnedText,
    pub(crate) mode: OwnedText,
    pub(crate) shared: OwnedText,
    pub(crate) one: OwnedText,
}

pub(crate) static CONSTANTS: MainThread<OnceCell<Constants>> = MainThread::new(OnceCell::new());

pub(crate) fn constants() -> &'static Constants {
    CONSTANTS.get().get_or_init(|| Constants {
        fence: OwnedText::new(FENCE_FIELD),
        mode: OwnedText::new(MODE_FIELD),
        shared: OwnedText::new(MODE_SHARED),
        one: OwnedText::new(b"1"),
    })
}

/// Looks through a hash for its one holder; `None` if it is no exclusive lock.
pub(crate) fn sole_owner(key: &Key<'_>) -> Option<(Arc<[u8]>, u32)> {
    if key.len() > FIELDS_MAX {
        return None;
    }
    let mut owners = 0;
    let mut found = None;
    let only = key.for_each_field(&mut |field, value| {
        if field.starts_with(RESERVED_PREFIX) {
            return ControlFlow::Continue(());
        }
        owners += 1;
        found = stored_count(value).map(|count| (field.into(), count));
        broken_unless(owners == 1)
    });
    found.filter(|_| only.is_continue())
}

const fn broken_unless(sound: bool) -> ControlFlow<()> {
    if sound {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}

/// The shared holders of a lock.
pub(crate) struct Scanned {
    pub(crate) holders: Vec<(Arc<[u8]>, Holder)>,
    /// Those of whom nothing is kept but the count: their leases are as long
    /// as the key has to live.
    pub(crate) bare: Vec<Arc<[u8]>>,
}

/// How many fields are looked at before it is asked whether there is time left.
const FIELDS_AT_ONCE: usize = 64;

/// Looks through a hash for all its shared holders; `None` if it is no lock, or
/// if that takes too long.
pub(crate) fn scan(
    key: &Key<'_>,
    deadline: Timestamp,
    is_over: &dyn Fn() -> bool,
) -> Option<Scanned> {
    let most = key.len() / 2;
    let mut counts: Vec<(Arc<[u8]>, u32)> = Vec::with_capacity(most);
    let mut terms = HashMap::with_capacity(most);
    let mut seen = 0_usize;
    let sound = key.for_each_field(&mut |field, value| {
        if let Some(owner) = field.strip_prefix(HOLDER_PREFIX) {
            terms.insert(Box::<[u8]>::from(owner), stored_terms(value));
        } else if !field.starts_with(RESERVED_PREFIX) {
            let Some(count) = stored_count(value) else {
                return ControlFlow::Break(());
            };
            counts.push((field.into(), count));
        }
        seen += 1;
        broken_unless(!seen.is_multiple_of(FIELDS_AT_ONCE) || !is_over())
    });
    if sound.is_break() {
        return None;
    }
    let mut bare = Vec::new();
    let holder = |(owner, count): (Arc<[u8]>, u32)| {
        let terms = terms.remove(&*owner).flatten();
        let (end, fence, permits) = terms.unwrap_or_else(|| {
            bare.push(Arc::clone(&owner));
            (deadline, None, 1)
        });
        let holder = Holder {
            count,
            permits,
            fence,
            deadline: end,
        };
        (owner, holder)
    };
    let holders: Vec<_> = counts.into_iter().map(holder).collect();
    (!holders.is_empty()).then_some(Scanned { holders, bare })
}

/// Looks through a hash for how many shared holders it has, and how many of them
/// have leases that have not ended; `None` if that has to be looked at closely.
pub(crate) fn count_holders(key: &Key<'_>, now: Timestamp) -> Option<[usize; 2]> {
    let (mut owners, mut terms, mut live) = (0, 0, 0);
    let sound = key.for_each_field(&mut |field, value| {
        if field.starts_with(HOLDER_PREFIX) {
            let Some((end, ..)) = stored_terms(value) else {
                return ControlFlow::Break(());
            };
            terms += 1;
            live += usize::from(!end.has_passed(now));
        } else if !field.starts_with(RESERVED_PREFIX) {
            owners += 1;
            return broken_unless(stored_count(value).is_some());
        }
        ControlFlow::Continue(())
    });
    (sound.is_continue() && owners == terms).then_some([owners, live])
}

pub(crate) fn stored_count(bytes: &[u8]) -> Option<u32> {
    let count = decimal(bytes).filter(|count| (1..=COUNT_MAX).contains(count))?;
    u32::try_from(count).ok()
}

/// A shared holder, from its two fields.
pub(crate) fn stored_holder(count: &[u8], terms: &[u8]) -> Option<Holder> {
    let (deadline, fence, permits) = stored_terms(terms)?;
    Some(Holder {
        count: stored_count(count)?,
        permits,
        fence,
        deadline,
    })
}

/// The end of the lease, the fence, 0 if there is none, and the permits.
fn stored_terms(bytes: &[u8]) -> Option<(Timestamp, Option<Fence>, u32)> {
    let mut words = bytes.split(|byte| *byte == b' ').map(decimal);
    let (end, fence, permits) = (words.next()??, words.next()??, words.next()??);
    let permits = u32::try_from(permits).ok().filter(|it| *it > 0)?;
    let sound = words.next().is_none();
    sound.then(|| (Timestamp::from_millis(end), Fence::new(fence), permits))
}

/// The field in which more is kept of a shared holder.
pub(crate) fn holder_field(owner: &[u8]) -> OwnedText {
    joined(&[HOLDER_PREFIX, owner])
}

/// What is kept there.
pub(crate) fn holder_terms(holder: &Holder) -> OwnedText {
    let fence = holder.fence.map_or(0, Fence::get);
    let [mut end, mut middle, mut last] = [
        itoa::Buffer::new(),
        itoa::Buffer::new(),
        itoa::Buffer::new(),
    ];
    joined(&[
        end.format(holder.deadline.millis()).as_bytes(),
        b" ",
        middle.format(fence).as_bytes(),
        b" ",
        last.format(holder.permits).as_bytes(),
    ])
}

/// The most bytes of a text that is put together without an allocation.
const SHORT: usize = HOLDER_PREFIX.len() + OWNER_LEN_MAX;

/// A text out of parts. Those of fields and their values are short.
fn joined(parts: &[&[u8]]) -> OwnedText {
    let mut short = [0; SHORT];
    let mut len = 0;
    for part in parts {
        match short.get_mut(len..len + part.len()) {
            Some(room) => room.copy_from_slice(part),
            None => return OwnedText::new(&parts.concat()),
        }
        len += part.len();
    }
    OwnedText::new(short.get(..len).unwrap_or_default())
}
