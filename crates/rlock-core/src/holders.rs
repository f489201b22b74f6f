//! Owners and what they hold, found by owner and by the end of their leases.
//!
//! One is kept as it is, a few in a list, many in ordered sets.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
    sync::Arc,
};

use crate::{Holder, Timestamp};

/// Up to how many holders are kept in a list.
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

/// The holders as a list, if they are few.
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

    /// Those whose leases have ended.
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

    /// How many leases have ended.
    pub(crate) fn ended_count(&self, now: Timestamp) -> usize {
        match self.kept() {
            Kept::List(_) => self.ended(now).count(),
            Kept::Sets(many) => {
                let ended = many.by_end.iter().take_while(|it| it.0.has_passed(now));
                ended.count()
            }
        }
    }

    /// The owner whose lease ends first, and when that is.
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

    /// Adds an owner that is not there.
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

    /// Has those leases end at `end` that would end later, and tells of each.
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

    /// Forgets any of them, up to `most`, and says how many.
    pub(crate) fn shed(&mut self, most: usize) -> usize {
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
        // Nearly always nothing is to be done.
        if self.by_end.last().is_none_or(|it| it.0 <= end) {
            return;
        }
        // No owner is empty, so this comes before all those that end then.
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
    /// From many at once: ordered maps are made from ordered entries much
    /// faster than entry by entry.
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
    /// Of an owner that comes twice the last hold counts.
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
