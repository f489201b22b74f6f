//! The content of a key before an operation, as far as a write needs it.

use std::sync::Arc;

use rlock_core::{Extras, Fence, Holder, Timestamp};

use crate::api::{KeyEvent, OwnedText, Text, Word};

/// What a key held.
#[derive(PartialEq, Eq)]
pub(crate) enum Before<'a> {
    Free,
    /// A hold of one owner, with all fields known.
    One(One<'a>),
    /// Shared; holders and fields are not kept here.
    Several {
        /// The fence in its own field.
        fence: Option<Fence>,
        /// When the key expires.
        deadline: Timestamp,
    },
    NoLock,
}

/// The hold of one owner alone.
#[derive(PartialEq, Eq)]
pub(crate) struct One<'a> {
    pub(crate) owner: Owner<'a>,
    pub(crate) is_shared: bool,
    /// Its content, with the separate fence field and the key's expiry.
    pub(crate) holder: Holder,
    /// Its extras, if it is exclusive.
    pub(crate) extras: Extras,
}

/// The owner of a hold.
pub(crate) enum Owner<'a> {
    Caller(Text<'a>),
    Other(Arc<[u8]>),
}

impl<'a> Before<'a> {
    pub(crate) const fn deadline(&self) -> Option<Timestamp> {
        match self {
            Self::One(one) => Some(one.holder.deadline),
            Self::Several { deadline, .. } => Some(*deadline),
            Self::Free | Self::NoLock => None,
        }
    }

    /// The owner of an exclusive hold.
    pub(crate) fn exclusive_owner(&self) -> Option<&[u8]> {
        match self {
            Self::One(one) if !one.is_shared => Some(one.owner.bytes()),
            Self::One(_) | Self::Free | Self::Several { .. } | Self::NoLock => None,
        }
    }

    /// The hold of one owner, if there is one and its lease has not ended.
    pub(crate) fn one(&self, now: Timestamp) -> Option<&One<'a>> {
        match self {
            Self::One(one) if !one.holder.deadline.has_passed(now) => Some(one),
            Self::One(_) | Self::Free | Self::Several { .. } | Self::NoLock => None,
        }
    }

    /// Fence and end of the holds of several owners, if there are any and their
    /// leases have not ended.
    pub(crate) fn several(&self, now: Timestamp) -> Option<(Option<Fence>, Timestamp)> {
        match self {
            Self::Several { fence, deadline } if !deadline.has_passed(now) => {
                Some((*fence, *deadline))
            }
            Self::Several { .. } | Self::Free | Self::One(_) | Self::NoLock => None,
        }
    }

    /// What the key becomes if its hold ends.
    pub(crate) fn ending(&self, now: Timestamp) -> Option<KeyEvent> {
        let lapsed = self.deadline()?.has_passed(now);
        Some(if lapsed {
            KeyEvent::Expired
        } else {
            KeyEvent::Del
        })
    }
}

impl<'a> Owner<'a> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Caller(owner) => owner.bytes(),
            Self::Other(owner) => owner,
        }
    }

    pub(crate) fn word(&self) -> Word<'a> {
        match self {
            Self::Caller(owner) => (*owner).into(),
            Self::Other(owner) => OwnedText::new(owner).into(),
        }
    }

    /// The holder, from the view of the owner that makes the request.
    pub(crate) fn new(owner: Arc<[u8]>, caller: Option<Text<'a>>) -> Self {
        match caller.filter(|caller| *caller.bytes() == *owner) {
            Some(caller) => Self::Caller(caller),
            None => Self::Other(owner),
        }
    }
}

impl PartialEq for Owner<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Owner<'_> {}
