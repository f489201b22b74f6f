//! What a hold may have beside its holder.
//!
//! Each extra is an option of a request, goes through the queue to the grant, and
//! is a field of the hash. Only this file and the rule that reads it know it:
//! the store and the second model compare and write whatever is in [`Extra::ALL`].

use std::borrow::Cow;
use std::sync::Arc;

use crate::syntax::VALUE_LEN_MAX;

/// The extras of a request, of a place in a queue and of an exclusive hold. `B`
/// are bytes: of a command, or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extras<B = Arc<[u8]>> {
    /// The value that the hold publishes: for instance the address of a leader.
    pub value: Option<B>,
}

/// One of the extras, as a field of the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// [`Extras::value`].
    Value,
}

impl Extra {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::Value];

    /// The name of the field.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Value => "rlock:value",
        }
    }

    /// The extra with this field.
    #[must_use]
    pub fn named(field: &[u8]) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|it| it.field().as_bytes() == field)
    }
}

impl<B> Extras<B> {
    /// Nothing.
    pub const NONE: Self = Self { value: None };

    /// Whether there is none.
    #[must_use]
    pub const fn are_none(&self) -> bool {
        self.value.is_none()
    }

    /// Takes over each of the extras that is given.
    pub fn change(&mut self, new: Self) {
        if new.value.is_some() {
            self.value = new.value;
        }
    }

    /// The same extras, with other bytes.
    #[must_use]
    pub fn map<C>(self, bytes: impl FnMut(B) -> C) -> Extras<C> {
        Extras {
            value: self.value.map(bytes),
        }
    }
}

impl<B> Default for Extras<B> {
    fn default() -> Self {
        Self::NONE
    }
}

impl Extras<&[u8]> {
    /// The same extras, kept.
    pub(crate) fn kept(self) -> Extras {
        self.map(Into::into)
    }
}

impl Extras {
    /// The content of a field; `None` if there is no such field.
    #[must_use]
    pub fn get(&self, extra: Extra) -> Option<Cow<'_, [u8]>> {
        match extra {
            Extra::Value => self.value.as_deref().map(Cow::Borrowed),
        }
    }

    /// Reads the content of a field. What is not well formed counts as missing:
    /// others may write any bytes.
    pub fn read(&mut self, extra: Extra, content: &[u8]) {
        match extra {
            Extra::Value => {
                self.value = (content.len() <= VALUE_LEN_MAX).then(|| content.into());
            }
        }
    }
}
