//! An operation on a lock: where, when and for whom; and why it is refused.

use rlock_core::{Name, Refusal, Timestamp};

use crate::api::{Context, Text};

/// Where, when and for whom a lock is changed.
#[derive(Clone, Copy)]
pub(crate) struct Operation<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) now: Timestamp,
    pub(crate) db: u32,
    pub(crate) key: Text<'a>,
    /// The owner that makes the request; none when a deadline has come.
    pub(crate) caller: Option<Text<'a>>,
}

impl<'a> Operation<'a> {
    pub(crate) const fn new(
        ctx: &'a Context,
        now: Timestamp,
        (db, key): (u32, Text<'a>),
        caller: Option<Text<'a>>,
    ) -> Self {
        Self {
            ctx,
            now,
            db,
            key,
            caller,
        }
    }

    /// The name of the lock. It must not be kept over key events: see
    /// [`Text::bytes`].
    pub(crate) fn name(&self) -> Name<'a> {
        Name {
            db: self.db,
            key: self.key.bytes(),
        }
    }

    /// The same for another key of the database.
    pub(crate) const fn at<'b>(&self, key: Text<'b>) -> Operation<'b>
    where
        'a: 'b,
    {
        Operation::new(self.ctx, self.now, (self.db, key), self.caller)
    }
}

/// Why a command is refused; nothing has changed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// This one of the named keys holds something that is not a lock.
    WrongType { key: usize },
    /// The core has refused it.
    Refused(Refusal),
    /// The server cannot block this connection.
    CannotBlock,
    /// Writes are paused, but this command runs anyway.
    Paused,
    /// The server is a replica that accepts writes, but grants no locks.
    Replica,
}

impl Failure {
    /// The same for one of several keys.
    pub(crate) fn at(self, key: usize) -> Self {
        match self {
            Self::WrongType { .. } => Self::WrongType { key },
            other => other,
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
