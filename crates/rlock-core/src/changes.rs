//! Whose holds have changed since the store was read.

use std::sync::Arc;

/// Owners, and whether the store had them before their first change. The first
/// needs no allocation of its own: most operations change one hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    first: Option<(Arc<[u8]>, bool)>,
    more: Vec<(Arc<[u8]>, bool)>,
}

impl Changes {
    pub(crate) fn push(&mut self, owner: Arc<[u8]>, was_stored: bool) {
        match self.first {
            None => self.first = Some((owner, was_stored)),
            Some(_) => self.more.push((owner, was_stored)),
        }
    }

    /// The only owner there is, if there is only one.
    pub(crate) fn only(&self) -> Option<&(Arc<[u8]>, bool)> {
        self.first.as_ref().filter(|_| self.more.is_empty())
    }

    /// Each owner once.
    pub(crate) fn take(&mut self) -> Vec<(Arc<[u8]>, bool)> {
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
