//! The format of a hold in the hash of its key.
//!
//! An exclusive hold has a field named after its owner with the hold count, a
//! field for its fence, and a field for each of its [`Extras`]. A shared lock
//! has a field for its mode. Each shared holder has a field with its count, and
//! one with its terms: the end of its lease, its fence and its permits. The key's
//! time to live is the end of the last lease.
//!
//! Servers of earlier or later versions may read and write the same hash, and
//! others may write it too: nothing that is read counts as well formed before a
//! check.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::hold::COUNT_MAX;
use crate::syntax::{OWNER_LEN_MAX, RESERVED_PREFIX, decimal};
use crate::{Extra, Extras, Fence, Holder, Timestamp};

/// The field of the last granted fence.
pub const FENCE: &str = "rlock:fence";
/// The field of the mode. An exclusive lock has none.
pub const MODE: &str = "rlock:mode";
/// The mode field's content for a shared lock.
pub const SHARED: &str = "shared";
/// The prefix of a shared holder's terms field; its owner follows.
const TERMS_PREFIX: &[u8] = b"rlock:holder:";

/// A field of a lock, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// The hold count of this owner.
    Count(&'a [u8]),
    /// The terms of this shared holder.
    Terms(&'a [u8]),
    /// The last granted fence.
    Fence,
    /// This extra of an exclusive hold.
    Extra(Extra),
    /// Another reserved field: the mode, or a field of a later version.
    Reserved,
}

impl<'a> Field<'a> {
    /// The field with this name.
    #[must_use]
    pub fn named(name: &'a [u8]) -> Self {
        if !name.starts_with(RESERVED_PREFIX) {
            Self::Count(name)
        } else if let Some(owner) = name.strip_prefix(TERMS_PREFIX) {
            Self::Terms(owner)
        } else if name == FENCE.as_bytes() {
            Self::Fence
        } else {
            Extra::named(name).map_or(Self::Reserved, Self::Extra)
        }
    }
}

/// Reads a hold count.
#[must_use]
pub fn count(value: &[u8]) -> Option<u32> {
    let count = u32::try_from(decimal(value)?).ok()?;
    (1..=COUNT_MAX).contains(&count).then_some(count)
}

/// Reads a fence.
#[must_use]
pub fn fence(value: &[u8]) -> Option<Fence> {
    Fence::new(decimal(value)?)
}

/// The shared holder with these terms, entered once.
#[must_use]
pub fn holder(terms: &[u8]) -> Option<Holder> {
    let mut words = terms.split(|byte| *byte == b' ').map(decimal);
    let (end, fence, permits) = (words.next()??, words.next()??, words.next()??);
    let permits = u32::try_from(permits).ok().filter(|it| *it > 0)?;
    words.next().is_none().then(|| Holder {
        permits,
        ..Holder::new(Fence::new(fence), Timestamp::from_millis(end))
    })
}

/// The shared holder with this count and these terms.
#[must_use]
pub fn counted_holder(count: &[u8], terms: &[u8]) -> Option<Holder> {
    let count = self::count(count)?;
    Some(Holder {
        count,
        ..holder(terms)?
    })
}

/// Passes the name of a shared holder's terms field to `then`.
pub fn with_terms_field<R>(owner: &[u8], then: impl FnOnce(&[u8]) -> R) -> R {
    joined(&[TERMS_PREFIX, owner], then)
}

/// Passes the terms of a shared holder to `then`. A missing fence is 0.
pub fn with_terms<R>(holder: &Holder, then: impl FnOnce(&[u8]) -> R) -> R {
    let fence = holder.fence.map_or(0, Fence::get);
    let [mut end, mut middle, mut last] = [[0; DIGITS_MAX]; 3];
    let parts = [
        digits(holder.deadline.millis(), &mut end),
        b" ",
        digits(fence, &mut middle),
        b" ",
        digits(holder.permits.into(), &mut last),
    ];
    joined(&parts, then)
}

/// The largest number of digits.
const DIGITS_MAX: usize = 20;

/// Writes a number to the end of `room`.
fn digits(number: u64, room: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let (mut rest, mut start) = (number, DIGITS_MAX);
    for digit in room.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        start -= 1;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    room.get(start..).unwrap_or_default()
}

/// The largest text that is built without an allocation.
const SHORT: usize = TERMS_PREFIX.len() + OWNER_LEN_MAX;

/// Passes a message of the module to `then`: `<what> <fence> <owner> <key>`, with
/// the fence 0 without a hold.
pub fn with_message<R>(
    what: &str,
    fence: Option<Fence>,
    (owner, key): (&[u8], &[u8]),
    then: impl FnOnce(&[u8]) -> R,
) -> R {
    let mut room = [0; DIGITS_MAX];
    let fence = digits(fence.map_or(0, Fence::get), &mut room);
    joined(
        &[what.as_bytes(), b" ", fence, b" ", owner, b" ", key],
        then,
    )
}

/// Passes the joined parts to `then`. Short texts are built without an allocation.
pub fn joined<R>(parts: &[&[u8]], then: impl FnOnce(&[u8]) -> R) -> R {
    let mut short = [0; SHORT];
    let mut len = 0;
    for part in parts {
        match short.get_mut(len..len + part.len()) {
            Some(room) => room.copy_from_slice(part),
            None => return then(&parts.concat()),
        }
        len += part.len();
    }
    then(short.get(..len).unwrap_or_default())
}

/// The holder of an exclusive lock, as its hash shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExclusiveHolder {
    /// The owner.
    pub owner: Arc<[u8]>,
    /// The hold count.
    pub count: u32,
    /// Its extras.
    pub extras: Extras,
}

/// A hash that belongs to this module, whether it is a lock or not: it has a field
/// for a fence or for a mode.
#[derive(Debug, Default)]
pub struct Orphan {
    /// The number of owners.
    pub owners: u64,
    /// The fence in its own field.
    pub fence: Option<Fence>,
    is_ours: bool,
}

impl Orphan {
    /// Adds a field.
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        match Field::named(name) {
            Field::Count(_) => self.owners += 1,
            Field::Fence => {
                self.fence = fence(value);
                self.is_ours = true;
            }
            Field::Reserved => self.is_ours |= name == MODE.as_bytes(),
            Field::Terms(_) | Field::Extra(_) => {}
        }
    }

    /// The orphan; `None` if the hash does not belong to this module.
    #[must_use]
    pub fn found(self) -> Option<Self> {
        self.is_ours.then_some(self)
    }
}

/// Finds the holder of an exclusive lock, field by field.
#[derive(Debug, Default)]
pub struct SoleHolder {
    found: Option<(Arc<[u8]>, u32)>,
    extras: Extras,
    is_none: bool,
}

impl SoleHolder {
    /// Adds a field. Breaks if the hash cannot be an exclusive lock.
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> ControlFlow<()> {
        match Field::named(name) {
            Field::Count(owner) => {
                let count = count(value).filter(|_| self.found.is_none());
                self.is_none |= count.is_none();
                self.found = count.map(|count| (owner.into(), count));
            }
            Field::Extra(extra) => self.extras.read(extra, value),
            Field::Terms(_) | Field::Fence | Field::Reserved => {}
        }
        continue_if(!self.is_none)
    }

    /// The holder; `None` if the hash is not an exclusive lock.
    #[must_use]
    pub fn found(self) -> Option<ExclusiveHolder> {
        let (owner, count) = self.found.filter(|_| !self.is_none)?;
        let extras = self.extras;
        Some(ExclusiveHolder {
            owner,
            count,
            extras,
        })
    }
}

/// Collects the holders of a shared lock, field by field.
#[derive(Debug)]
pub struct SharedHolders {
    counts: Vec<(Arc<[u8]>, u32)>,
    terms: HashMap<Box<[u8]>, Option<Holder>>,
    is_none: bool,
}

impl SharedHolders {
    /// For a lock with this number of fields.
    #[must_use]
    pub fn of(fields: usize) -> Self {
        Self {
            counts: Vec::with_capacity(fields / 2),
            terms: HashMap::with_capacity(fields / 2),
            is_none: false,
        }
    }

    /// Adds a field. Breaks if the hash cannot be a shared lock.
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> ControlFlow<()> {
        match Field::named(name) {
            Field::Terms(owner) => drop(self.terms.insert(owner.into(), holder(value))),
            Field::Count(owner) => match count(value) {
                Some(count) => self.counts.push((owner.into(), count)),
                None => self.is_none = true,
            },
            Field::Fence | Field::Extra(_) | Field::Reserved => {}
        }
        continue_if(!self.is_none)
    }

    /// The holders of a lock that ends at `end`; `None` if it is not a shared
    /// lock. A holder without valid terms gets a lease until the key's end, no
    /// fence and one permit; `on_missing_terms` is called for each of them.
    #[must_use]
    pub fn found(
        mut self,
        end: Timestamp,
        mut on_missing_terms: impl FnMut(&Arc<[u8]>),
    ) -> Option<Vec<(Arc<[u8]>, Holder)>> {
        if self.is_none || self.counts.is_empty() {
            return None;
        }
        let holder = |(owner, count): (Arc<[u8]>, u32)| {
            let holder = self.terms.remove(&*owner).flatten();
            let holder = holder.unwrap_or_else(|| {
                on_missing_terms(&owner);
                Holder::new(None, end)
            });
            (owner, Holder { count, ..holder })
        };
        Some(self.counts.into_iter().map(holder).collect())
    }
}

const fn continue_if(continues: bool) -> ControlFlow<()> {
    if continues {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}
