//! One owner at all the keys of one request: a single one, or several.

use std::fmt;
use std::sync::Arc;

use crate::engine::owner::Owner;

/// One owner at one key: `<owner> <key>`, as messages have it. No owner has a
/// space, so this names both.
pub(crate) type Name = Arc<[u8]>;

/// At least one name; in the order of their keys if there are several.
#[derive(Clone)]
pub(crate) struct Claims(Arc<Parts>);

struct Parts {
    owner: Owner,
    first: Name,
    rest: Vec<Name>,
}

impl Claims {
    pub(crate) fn new(owner: Owner, key: &[u8], rest: &[Arc<[u8]>]) -> Self {
        let first = name(&owner, key);
        let rest = rest.iter().map(|key| name(&owner, key)).collect();
        Self(Arc::new(Parts { owner, first, rest }))
    }

    /// Those of a name that the server wrote.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        let end = name.iter().position(|byte| *byte == b' ')?;
        let owner = std::str::from_utf8(name.get(..end)?).ok()?;
        Some(Self(Arc::new(Parts {
            owner: Owner::new(owner).ok()?,
            first: name.into(),
            rest: Vec::new(),
        })))
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.0.owner
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &Name> {
        std::iter::once(&self.0.first).chain(&self.0.rest)
    }

    /// Those for which that holds; none if there are none.
    pub(crate) fn filtered(&self, holds: impl Fn(&Name) -> bool) -> Option<Self> {
        if self.names().all(&holds) {
            return Some(self.clone());
        }
        let mut names = self.names().filter(|name| holds(name)).cloned();
        Some(Self(Arc::new(Parts {
            owner: self.owner().clone(),
            first: names.next()?,
            rest: names.collect(),
        })))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.names().map(|name| self.key_of(name))
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.key_of(&self.0.first)
    }

    fn key_of<'a>(&self, name: &'a Name) -> &'a [u8] {
        name.get(self.owner().as_str().len() + 1..)
            .unwrap_or_default()
    }

    pub(crate) fn count(&self) -> usize {
        1 + self.0.rest.len()
    }

    pub(crate) fn is_single(&self) -> bool {
        self.0.rest.is_empty()
    }

    /// The keys for a line of the log.
    pub(crate) fn label(&self) -> String {
        let first = String::from_utf8_lossy(self.key());
        match self.0.rest.len() {
            0 => first.into_owned(),
            others => format!("{first} and {others} more"),
        }
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.owner(), self.label())
    }
}

fn name(owner: &Owner, key: &[u8]) -> Name {
    [owner.as_str().as_bytes(), b" ", key].concat().into()
}
