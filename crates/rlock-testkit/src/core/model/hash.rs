//! The content of a key, for locks.

use rlock_core::{Extras, Mode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Absent,
    Hash(Hash),
    Text,
}

/// A hash that is a lock while it has an end and holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hash {
    pub mode: HashMode,
    pub holders: Vec<Holder>,
    /// The fence of an exclusive hold, or the largest granted to shared holds.
    pub fence: Option<u64>,
    /// The extras of an exclusive hold; without such a hold they have no meaning.
    pub extras: Extras<&'static str>,
    /// The key's own end.
    pub ends: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashMode {
    Exclusive,
    Shared,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub owner: String,
    pub count: u32,
    pub permits: u32,
    pub fence: Option<u64>,
    pub ends: u64,
}

impl Hash {
    pub fn is_lock(&self) -> bool {
        self.ends.is_some()
            && match self.mode {
                HashMode::Exclusive => self.holders.len() == 1,
                HashMode::Shared => !self.holders.is_empty(),
            }
    }

    /// The end of a holder: its own, or the key's if that is earlier.
    pub fn end_of(&self, holder: &Holder) -> u64 {
        let key = self.ends.unwrap_or(u64::MAX);
        match self.mode {
            HashMode::Shared => holder.ends.min(key),
            HashMode::Exclusive => key,
        }
    }

    pub const fn is_shared(&self) -> bool {
        matches!(self.mode, HashMode::Shared)
    }

    /// The extras of an exclusive hold.
    pub const fn extras(&self) -> Extras<&'static str> {
        if self.is_shared() {
            Extras::NONE
        } else {
            self.extras
        }
    }

    /// Sets the key's end to the end of its longest lease.
    pub fn end_with_the_last(&mut self) {
        self.ends = self.holders.iter().map(|it| it.ends).max();
    }
}

impl Data {
    /// The hash, if it is a lock with a holder.
    pub fn lock(&self) -> Option<&Hash> {
        match self {
            Self::Hash(hash) if hash.is_lock() => Some(hash),
            _ => None,
        }
    }

    pub fn lock_mut(&mut self) -> Option<&mut Hash> {
        match self {
            Self::Hash(hash) if hash.is_lock() => Some(hash),
            _ => None,
        }
    }

    /// The hash, if it belongs to the module although it is no lock.
    pub fn orphan(&self) -> Option<&Hash> {
        match self {
            Self::Hash(hash) if !hash.is_lock() => {
                Some(hash).filter(|hash| hash.fence.is_some() || hash.is_shared())
            }
            _ => None,
        }
    }

    /// Whether it is not a lock, not even a free one.
    pub fn is_other(&self) -> bool {
        *self != Self::Absent && self.lock().is_none()
    }

    pub fn holders(&self) -> &[Holder] {
        self.lock().map_or(&[], |hash| &hash.holders)
    }

    pub fn holder(&self, owner: &str) -> Option<&Holder> {
        self.holders().iter().find(|it| it.owner == owner)
    }

    pub fn holder_mut(&mut self, owner: &str) -> Option<&mut Holder> {
        let mut holders = self.lock_mut()?.holders.iter_mut();
        holders.find(|it| it.owner == owner)
    }

    /// The fence of a hold with a value, and the value.
    pub fn published(&self) -> Option<(u64, &'static str)> {
        let hash = self.lock()?;
        Some((hash.fence?, hash.extras().value?))
    }

    pub fn is_exclusive(&self) -> bool {
        self.lock().is_some_and(|it| !it.is_shared())
    }

    pub fn is_shared(&self) -> bool {
        self.lock().is_some_and(Hash::is_shared)
    }

    /// Whether `owner` can hold in this mode beside the existing holders.
    pub fn admits(&self, owner: &str, mode: Mode) -> bool {
        let all = self.holders().iter();
        match mode {
            _ if self.is_other() => false,
            Mode::Exclusive => all.filter(|it| it.owner != owner).count() == 0,
            Mode::Shared { .. } if self.is_exclusive() => false,
            Mode::Shared { limit: None, .. } => true,
            Mode::Shared {
                permits,
                limit: Some(limit),
            } => all.map(|it| it.permits).sum::<u32>() + permits <= limit,
        }
    }
}
