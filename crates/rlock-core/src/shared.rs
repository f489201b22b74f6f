//! The shared holders of a lock, each with its own lease, indexed by owner and by
//! the end of their leases.
//!
//! Neither one more request nor the end of one lease touches all other holders.
//! The changes since the store was read are recorded too: only these must be
//! written. One owner is stored directly, a few in a list, many in ordered sets.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::Arc;

use crate::{Fence, Holder, Timestamp};

/// The holders of a lock in shared mode.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    holders: HolderSet,
    permits: u64,
    fence: Option<Fence>,
    /// The largest fence that the store has named for the holders.
    largest: Option<Fence>,
    /// The owners whose holds have changed, and whether the store had them.
    changed: Changes,
    /// The owners whose holds have ended without a release.
    ended: Vec<Arc<[u8]>>,
    known: bool,
    new: bool,
}

impl PartialEq for Shared {
    /// Compares the holders; pending writes do not matter.
    fn eq(&self, other: &Self) -> bool {
        let same = |(owner, holder): (&[u8], &Holder)| other.get(owner) == Some(holder);
        self.len() == other.len() && self.iter().all(same)
    }
}

impl Eq for Shared {}

impl Shared {
    /// No holders yet, of a lock that was not held in shared mode. `known`:
    /// whether all earlier ends are known; see [`Shared::take_ended`].
    pub(crate) fn begun(known: bool) -> Self {
        Self {
            known,
            new: true,
            ..Self::default()
        }
    }

    /// The holders in the store, and the last granted fence there; without it the
    /// largest fence of the holders counts.
    #[must_use]
    pub fn stored(
        holders: impl IntoIterator<Item = (Arc<[u8]>, Holder)>,
        fence: Option<Fence>,
    ) -> Self {
        let holders: HolderSet = holders.into_iter().collect();
        let permits = holders.iter().map(|it| u64::from(it.1.permits)).sum();
        let largest = holders.iter().filter_map(|it| it.1.fence).max();
        Self {
            permits,
            fence: fence.or(largest),
            largest,
            holders,
            ..Self::default()
        }
    }

    /// The holder with the name `owner`.
    #[must_use]
    pub fn get(&self, owner: &[u8]) -> Option<&Holder> {
        self.holders.get(owner)
    }

    /// Whether `owner` is a holder whose lease has not ended.
    pub(crate) fn has_live(&self, now: Timestamp, owner: &[u8]) -> bool {
        let holder = self.get(owner);
        holder.is_some_and(|it| !it.deadline.has_passed(now))
    }

    /// All holders, in no order.
    #[must_use]
    pub fn iter(&self) -> Box<dyn Iterator<Item = (&[u8], &Holder)> + '_> {
        self.holders.iter()
    }

    /// Whether the lock was not held in shared mode before, or was free for a
    /// moment since: then the holders in the store are obsolete.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.new
    }

    /// Notes that the store's data of an owner's hold is wrong.
    pub fn rewrite(&mut self, owner: &[u8]) {
        if let Some(holder) = self.get(owner).copied() {
            self.put(owner, holder);
        }
    }

    /// The number of holders.
    #[must_use]
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// The number of leases that have not ended.
    #[must_use]
    pub fn live(&self, now: Timestamp) -> usize {
        self.len() - self.holders.ended_count(now)
    }

    /// The holders whose leases have ended.
    #[must_use]
    pub fn ended(&self, now: Timestamp) -> Box<dyn Iterator<Item = (&[u8], &Holder)> + '_> {
        self.holders.ended(now)
    }

    /// Whether nobody holds it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The permits of holders whose leases have not ended.
    #[must_use]
    pub fn live_permits(&self, now: Timestamp) -> u64 {
        let ended = self.ended(now).map(|it| u64::from(it.1.permits));
        self.permits - ended.sum::<u64>()
    }

    /// The largest fence that was granted since the lock was free, or the one
    /// that somebody has set instead.
    #[must_use]
    pub const fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// The next fence must be above this one. Somebody may have set the last
    /// fence below the holders' fences.
    pub(crate) fn floor(&self) -> Option<Fence> {
        self.fence.max(self.largest)
    }

    /// When the first lease ends.
    #[must_use]
    pub fn first_end(&self) -> Option<Timestamp> {
        self.holders.first().map(|it| it.0)
    }

    /// When the last lease ends, and with it the lock.
    #[must_use]
    pub fn last_end(&self) -> Option<Timestamp> {
        self.holders.last_end()
    }

    /// Cuts every lease that ends after `end`, because the key ends then.
    pub fn cut_to(&mut self, end: Timestamp) {
        let changed = &mut self.changed;
        self.holders.cut_to(end, |owner, holder| {
            changed.push(Arc::clone(owner), Some(holder.count));
        });
    }

    /// Forgets up to `most` holders, in any order, and returns their number. All
    /// of them are obsolete; many at once take long to free.
    pub fn drop_some(&mut self, most: usize) -> usize {
        self.holders.drop_some(most)
    }

    /// Whether the end of each earlier holder is known.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.known
    }

    /// Others may have ended: these are the holders of another lock until now.
    pub const fn doubt(&mut self) {
        self.known = false;
    }

    /// Notes that the store now has these holders. The end of each of them is
    /// known, unless no report of one that has ended was taken.
    pub fn remember(&mut self) {
        self.known = self.ended.is_empty();
        self.new = false;
        self.ended.clear();
    }

    /// The holds that differ from the store, each once. They count as written
    /// from now on.
    pub fn take_changes(&mut self) -> Vec<Change> {
        let changed = self.changed.take();
        let now = |(owner, stored_count): (Arc<[u8]>, Option<u32>)| {
            let holder = self.get(&owner).copied();
            (stored_count.is_some() || holder.is_some()).then_some(Change {
                owner,
                stored_count,
                holder,
            })
        };
        changed.into_iter().filter_map(now).collect()
    }

    /// The hold that differs from the store, if there is no other hold. It counts
    /// as written from now on.
    pub fn take_first(&mut self) -> Option<Change> {
        let (owner, stored_count) = self.changed.only()?;
        let holder = self.get(owner).copied().filter(|_| self.len() == 1)?;
        let change = Change {
            owner: Arc::clone(owner),
            stored_count: *stored_count,
            holder: Some(holder),
        };
        self.changed.clear();
        Some(change)
    }

    /// Grants an owner this hold. Its fence is the largest, whatever somebody has
    /// set before.
    pub(crate) fn grant(&mut self, owner: &[u8], holder: Holder) {
        self.put(owner, holder);
        self.fence = holder.fence.or(self.fence);
    }

    /// Sets an owner's hold.
    pub(crate) fn put(&mut self, owner: &[u8], holder: Holder) {
        let (owner, before) = match self.remove_silently(owner) {
            Some((owner, before)) => (owner, Some(before)),
            None => (owner.into(), None),
        };
        let stored_count = before.map(|it| it.count);
        self.changed.push(Arc::clone(&owner), stored_count);
        if before.is_none_or(|before| before.fence != holder.fence) {
            self.fence = self.fence.max(holder.fence);
        }
        self.permits += u64::from(holder.permits);
        self.holders.insert(owner, holder);
    }

    /// Ends the hold of an owner.
    pub(crate) fn remove(&mut self, owner: &[u8]) -> Option<Holder> {
        let (owner, holder) = self.remove_silently(owner)?;
        self.changed.push(owner, Some(holder.count));
        Some(holder)
    }

    /// Ends the hold of an owner that does not know of it.
    pub(crate) fn lose(&mut self, owner: &[u8]) {
        if let Some((owner, holder)) = self.remove_silently(owner) {
            self.changed.push(Arc::clone(&owner), Some(holder.count));
            self.ended.push(owner);
        }
    }

    /// Drops up to `most` holds whose leases have ended, first the hold of
    /// `owner`, and returns their number.
    pub(crate) fn drop_lapsed(
        &mut self,
        now: Timestamp,
        owner: Option<&[u8]>,
        most: usize,
    ) -> usize {
        if self.first_end().is_none_or(|end| !end.has_passed(now)) {
            return 0;
        }
        let mut lapsed = 0;
        if let Some(owner) = owner
            && self
                .get(owner)
                .is_some_and(|it| it.deadline.has_passed(now))
        {
            self.lose(owner);
            lapsed += 1;
        }
        while lapsed < most
            && let Some(owner) = self.first_lapsed(now)
        {
            self.lose(&owner);
            lapsed += 1;
        }
        lapsed
    }

    /// The owners whose leases have ended; `None` if others may have ended too
    /// that are not known.
    pub(crate) fn take_ended(&mut self) -> Option<Vec<Arc<[u8]>>> {
        let ended = std::mem::take(&mut self.ended);
        std::mem::replace(&mut self.known, true).then_some(ended)
    }

    fn remove_silently(&mut self, owner: &[u8]) -> Option<(Arc<[u8]>, Holder)> {
        let (owner, holder) = self.holders.remove(owner)?;
        self.permits -= u64::from(holder.permits);
        Some((owner, holder))
    }

    fn first_lapsed(&self, now: Timestamp) -> Option<Arc<[u8]>> {
        let first = self.holders.first().filter(|it| it.0.has_passed(now));
        first.map(|it| Arc::clone(it.1))
    }
}

/// The largest number of holders in a list.
const FEW: usize = 8;

type Held = (Arc<[u8]>, Holder);

#[derive(Clone, Debug)]
pub(crate) enum HolderSet {
    One(Held),
    Few(Vec<Held>),
    Many(Many),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Many {
    by_owner: BTreeMap<Arc<[u8]>, Holder>,
    by_end: BTreeSet<(Timestamp, Arc<[u8]>)>,
}

impl Default for HolderSet {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// The holders as a list, if there are few.
enum Kept<'a> {
    List(&'a [Held]),
    Sets(&'a Many),
}

impl HolderSet {
    fn kept(&self) -> Kept<'_> {
        match self {
            Self::One(held) => Kept::List(slice::from_ref(held)),
            Self::Few(list) => Kept::List(list),
            Self::Many(many) => Kept::Sets(many),
        }
    }

    pub(crate) fn get(&self, owner: &[u8]) -> Option<&Holder> {
        match self.kept() {
            Kept::List(list) => list.iter().find(|it| *it.0 == *owner).map(|it| &it.1),
            Kept::Sets(many) => many.by_owner.get(owner),
        }
    }

    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = (&[u8], &Holder)> + '_> {
        match self.kept() {
            Kept::List(list) => Box::new(list.iter().map(|(owner, it)| (&**owner, it))),
            Kept::Sets(many) => Box::new(many.by_owner.iter().map(|(owner, it)| (&**owner, it))),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self.kept() {
            Kept::List(list) => list.len(),
            Kept::Sets(many) => many.by_owner.len(),
        }
    }

    /// The holders whose leases have ended.
    pub(crate) fn ended(&self, now: Timestamp) -> Box<dyn Iterator<Item = (&[u8], &Holder)> + '_> {
        match self.kept() {
            Kept::List(list) => {
                let ended = list.iter().filter(move |it| it.1.deadline.has_passed(now));
                Box::new(ended.map(|(owner, it)| (&**owner, it)))
            }
            Kept::Sets(many) => {
                let ended = many.by_end.iter();
                let ended = ended.take_while(move |it| it.0.has_passed(now));
                Box::new(ended.filter_map(|(_, owner)| Some((&**owner, many.by_owner.get(owner)?))))
            }
        }
    }

    /// The number of leases that have ended.
    pub(crate) fn ended_count(&self, now: Timestamp) -> usize {
        match self.kept() {
            Kept::List(_) => self.ended(now).count(),
            Kept::Sets(many) => {
                let ended = many.by_end.iter().take_while(|it| it.0.has_passed(now));
                ended.count()
            }
        }
    }

    /// The owner whose lease ends first, and that end.
    pub(crate) fn first(&self) -> Option<(Timestamp, &Arc<[u8]>)> {
        match self.kept() {
            Kept::List(list) => {
                let first = list.iter().min_by_key(|it| it.1.deadline)?;
                Some((first.1.deadline, &first.0))
            }
            Kept::Sets(many) => many.by_end.first().map(|it| (it.0, &it.1)),
        }
    }

    /// When the last lease ends.
    pub(crate) fn last_end(&self) -> Option<Timestamp> {
        match self.kept() {
            Kept::List(list) => list.iter().map(|it| it.1.deadline).max(),
            Kept::Sets(many) => many.by_end.last().map(|it| it.0),
        }
    }

    /// Adds a new owner.
    pub(crate) fn insert(&mut self, owner: Arc<[u8]>, holder: Holder) {
        match self {
            Self::Few(list) if list.is_empty() => *self = Self::One((owner, holder)),
            Self::Few(list) if list.len() < FEW => list.push((owner, holder)),
            Self::Many(many) => many.insert(owner, holder),
            Self::One(_) | Self::Few(_) => {
                let mut list = match std::mem::take(self) {
                    Self::One(held) => vec![held],
                    Self::Few(list) => list,
                    Self::Many(_) => Vec::new(),
                };
                list.push((owner, holder));
                *self = if list.len() <= FEW {
                    Self::Few(list)
                } else {
                    Self::Many(list.into_iter().collect())
                };
            }
        }
    }

    /// Cuts leases that would end after `end`, and reports each.
    pub(crate) fn cut_to(&mut self, end: Timestamp, mut cut: impl FnMut(&Arc<[u8]>, &Holder)) {
        let list = match self {
            Self::One(held) => slice::from_mut(held),
            Self::Few(list) => list,
            Self::Many(many) => return many.cut_to(end, cut),
        };
        for (owner, holder) in list.iter_mut().filter(|it| it.1.deadline > end) {
            holder.deadline = end;
            cut(owner, holder);
        }
    }

    /// Forgets up to `most` holders, in any order, and returns their number.
    pub(crate) fn drop_some(&mut self, most: usize) -> usize {
        let before = self.len();
        match self {
            Self::One(_) | Self::Few(_) => *self = Self::default(),
            Self::Many(many) => {
                for _ in 0..most.min(before) {
                    many.by_end.pop_first();
                    many.by_owner.pop_first();
                }
            }
        }
        before - self.len()
    }

    pub(crate) fn remove(&mut self, owner: &[u8]) -> Option<Held> {
        match self {
            Self::One(held) if *held.0 == *owner => match std::mem::take(self) {
                Self::One(held) => Some(held),
                Self::Few(_) | Self::Many(_) => None,
            },
            Self::One(_) => None,
            Self::Few(list) => {
                let at = list.iter().position(|it| *it.0 == *owner)?;
                Some(list.swap_remove(at))
            }
            Self::Many(many) => many.remove(owner),
        }
    }
}

impl Many {
    fn insert(&mut self, owner: Arc<[u8]>, holder: Holder) {
        self.by_end.insert((holder.deadline, Arc::clone(&owner)));
        self.by_owner.insert(owner, holder);
    }

    fn remove(&mut self, owner: &[u8]) -> Option<Held> {
        let (owner, holder) = self.by_owner.remove_entry(owner)?;
        let end = (holder.deadline, owner);
        self.by_end.remove(&end);
        Some((end.1, holder))
    }

    fn cut_to(&mut self, end: Timestamp, mut cut: impl FnMut(&Arc<[u8]>, &Holder)) {
        // There is nearly always nothing to do.
        if self.by_end.last().is_none_or(|it| it.0 <= end) {
            return;
        }
        // No owner is empty, so this comes before all holders with that end.
        let later = self.by_end.split_off(&(end, Arc::default()));
        for (_, owner) in later.iter().filter(|it| it.0 > end) {
            if let Some(holder) = self.by_owner.get_mut(owner) {
                holder.deadline = end;
                cut(owner, holder);
            }
        }
        let cut = later.into_iter().map(|(_, owner)| (end, owner));
        self.by_end.append(&mut cut.collect());
    }
}

impl FromIterator<Held> for Many {
    /// For many holders at once: an ordered map builds much faster from sorted
    /// entries than one by one.
    fn from_iter<I: IntoIterator<Item = Held>>(held: I) -> Self {
        let by_owner: BTreeMap<_, _> = held.into_iter().collect();
        let ends = by_owner.iter();
        Self {
            by_end: ends
                .map(|(owner, it)| (it.deadline, Arc::clone(owner)))
                .collect(),
            by_owner,
        }
    }
}

impl FromIterator<Held> for HolderSet {
    /// If an owner comes twice, its last hold counts.
    fn from_iter<I: IntoIterator<Item = Held>>(held: I) -> Self {
        let many: Many = held.into_iter().collect();
        if many.by_owner.len() > FEW {
            return Self::Many(many);
        }
        let mut set = Self::default();
        for (owner, holder) in many.by_owner {
            set.insert(owner, holder);
        }
        set
    }
}

/// A hold that differs from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The owner.
    pub owner: Arc<[u8]>,
    /// The hold count in the store, if the store has the hold.
    pub stored_count: Option<u32>,
    /// The current hold, if there is one.
    pub holder: Option<Holder>,
}

type Stored = (Arc<[u8]>, Option<u32>);

/// Owners, and their hold counts in the store before their first change. The
/// first needs no allocation: most operations change one hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    first: Option<Stored>,
    more: Vec<Stored>,
}

impl Changes {
    pub(crate) fn push(&mut self, owner: Arc<[u8]>, stored_count: Option<u32>) {
        match self.first {
            None => self.first = Some((owner, stored_count)),
            Some(_) => self.more.push((owner, stored_count)),
        }
    }

    /// The only owner, if there is just one.
    pub(crate) fn only(&self) -> Option<&Stored> {
        self.first.as_ref().filter(|_| self.more.is_empty())
    }

    /// Each owner once.
    pub(crate) fn take(&mut self) -> Vec<Stored> {
        let mut all = std::mem::take(&mut self.more);
        if let Some(first) = self.first.take() {
            all.insert(0, first);
        }
        if all.len() > 1 {
            // Stable: the first of several changes has the count in the store.
            all.sort_by(|one, other| one.0.cmp(&other.0));
            all.dedup_by(|later, first| later.0 == first.0);
        }
        all
    }

    pub(crate) fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }
}
