//! The holders of other locks, for the deadlock search: read from their keys.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use rlock_core::{Holders, Name, Timestamp, VisitHolder, syntax::OWNER_LEN_MAX};

use crate::{
    api::{Context, Key, OwnedText},
    operation::Operation,
    store::{self, SharedCache},
};

/// How long a deadlock search collects who waits for whom.
const SEARCH_MAX: Duration = Duration::from_millis(1);

/// A lock and its exclusive holder.
pub(crate) type ReadHolder<'a> = (Name<'a>, &'a [u8]);

pub(crate) struct OtherHolders<'a> {
    ctx: &'a Context,
    now: Timestamp,
    db: u32,
    /// The exclusive holders of the operation's locks, as stored.
    read: &'a [ReadHolder<'a>],
    /// The search asks for them in this order, so only the next one is tried.
    next: Cell<usize>,
    known: &'a SharedCache,
    /// When the search began, if it is long enough to check the clock.
    began: Cell<Option<Instant>>,
}

impl<'a> OtherHolders<'a> {
    pub(crate) fn new(
        op: &'a Operation<'a>,
        read: &'a [ReadHolder<'a>],
        known: &'a SharedCache,
    ) -> Self {
        Self {
            ctx: op.ctx,
            now: op.now,
            db: op.db,
            read,
            next: Cell::new(0),
            known,
            began: Cell::new(None),
        }
    }

    fn visit_key(&self, name: Name<'_>, visit: &mut VisitHolder<'_>) {
        let Some(key) = Key::open_to_read(self.ctx, OwnedText::new(name.key).text()) else {
            return;
        };
        let mut room = [0; OWNER_LEN_MAX];
        if let Some(owner) = store::exclusive_owner(&key, self.now, &mut room) {
            let _ = visit(owner, None);
        } else if let Some(shared) = store::known_holders(&key, name, self.known) {
            let held = shared.iter();
            for (owner, it) in held.filter(|it| !it.1.deadline.has_passed(self.now)) {
                if visit(owner, Some(it.permits)).is_break() {
                    return;
                }
            }
        } else if let Some(holding) = store::holders(&key, self.now, &|| self.is_over()) {
            for (owner, it) in holding.holders {
                if visit(&owner, holding.is_shared.then_some(it.permits)).is_break() {
                    return;
                }
            }
        }
    }
}

impl Holders for OtherHolders<'_> {
    fn is_over(&self) -> bool {
        let began = self.began.get().unwrap_or_else(Instant::now);
        self.began.set(Some(began));
        began.elapsed() > SEARCH_MAX
    }

    fn visit(&self, name: Name<'_>, visit: &mut VisitHolder<'_>) {
        let next = self.next.get();
        if let Some((_, owner)) = self.read.get(next).filter(|read| read.0 == name) {
            self.next.set((next + 1) % self.read.len());
            let _ = visit(owner, None);
            return;
        }
        // An owner may wait in a database other than the selected one.
        let elsewhere = name.db != self.db;
        if !elsewhere || self.ctx.select_db(name.db) {
            self.visit_key(name, visit);
        }
        if elsewhere {
            self.ctx.select_db(self.db);
        }
    }
}
