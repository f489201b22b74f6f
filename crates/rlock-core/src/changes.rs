//! Whose holds have changed since the store was read.

use std::sync::Arc;

use crate::Holder;

/// A hold that is not as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose it is.
    pub owner: Arc<[u8]>,
    /// The hold count that the store has, if it has the hold.
    pub stored_count: Option<u32>,
    /// What the owner holds now, if anything.
    pub holder: Option<Holder>,
}

type Stored = (Arc<[u8]>, Option<u32>);

/// Owners, and the hold counts that the store had before their first change.
/// The first needs no allocation of its own: most operations change one hold.
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

    /// The only owner there is, if there is only one.
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
            // Stable: of several changes the first knows what the store had.
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
