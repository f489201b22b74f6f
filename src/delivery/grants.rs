//! Grants by hand-off, until it is known whether they have reached their
//! owners. Undelivered grants are passed on.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::BuildHasher,
};

use foldhash::quality::RandomState;
use rlock_core::Granted;
use smallvec::SmallVec;

/// The keys of a request; a request for one lock has one.
pub(crate) type Keys = SmallVec<[Box<[u8]>; 1]>;

/// A grant that may not have reached its owner.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) db: u32,
    pub(crate) keys: Keys,
    pub(crate) granted: Granted,
}

impl Grant {
    pub(crate) fn owner(&self) -> &[u8] {
        &self.granted.ticket.owner
    }
}

/// How a grant was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sent {
    /// To the blocked call of this handle. The server reports how it ends.
    ToCall(u64),
    /// To this connection, with a number. The server writes messages at the end
    /// of its turn, so a connection that closes before has not read them.
    ByMessage(u64, u64),
}

impl Sent {
    const FIRST: Self = Self::ToCall(0);
    const FIRST_BY_MESSAGE: Self = Self::ByMessage(0, 0);
    const LAST: Self = Self::ByMessage(u64::MAX, u64::MAX);
}

/// All grants that may not have arrived yet.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    sent: BTreeMap<Sent, Grant>,
    /// By a hash of the owner.
    by_owner: BTreeSet<(u64, Sent)>,
    hasher: RandomState,
    messages: u64,
    undelivered: VecDeque<Grant>,
}

impl Grants {
    /// A grant is the reply to a blocked call.
    pub(crate) fn answered(&mut self, handle: u64, grant: Grant) {
        self.insert(Sent::ToCall(handle), grant);
    }

    /// A grant was published for a request of this connection.
    pub(crate) fn published(&mut self, session: u64, grant: Grant) {
        self.messages += 1;
        self.insert(Sent::ByMessage(session, self.messages), grant);
    }

    /// A blocked call has ended; `gone` if the reply could not be sent.
    pub(crate) fn call_ended(&mut self, handle: u64, gone: bool) {
        let grant = self.remove(Sent::ToCall(handle));
        self.undelivered.extend(grant.filter(|_| gone));
    }

    /// A connection has closed, before the end of the turn.
    pub(crate) fn session_closed(&mut self, session: u64) {
        let all = Sent::ByMessage(session, 0)..=Sent::ByMessage(session, u64::MAX);
        while let Some((sent, _)) = self.sent.range(all.clone()).next() {
            let grant = self.remove(*sent);
            self.undelivered.extend(grant);
        }
    }

    /// The server has written the messages of the turn.
    pub(crate) fn turn_ended(&mut self) {
        while self.has_published()
            && let Some((sent, grant)) = self.sent.pop_last()
        {
            self.by_owner.remove(&(self.hash(grant.owner()), sent));
        }
    }

    /// An owner knows that it holds a lock, because it has used the hold.
    pub(crate) fn confirm(&mut self, db: u32, key: &[u8], owner: &[u8]) {
        let is_of = |it: &Grant| {
            it.db == db && *it.owner() == *owner && it.keys.iter().any(|of| **of == *key)
        };
        if !self.sent.is_empty() {
            let hash = self.hash(owner);
            let all = (hash, Sent::FIRST)..=(hash, Sent::LAST);
            let is_sent = |it: &Sent| self.sent.get(it).is_some_and(is_of);
            let found = self.by_owner.range(all).map(|(_, sent)| *sent);
            let found: SmallVec<[_; 1]> = found.filter(is_sent).collect();
            for sent in found {
                self.remove(sent);
            }
        }
        if !self.undelivered.is_empty() {
            self.undelivered.retain(|it| !is_of(it));
        }
    }

    /// The next undelivered grant.
    pub(crate) fn next_undelivered(&mut self) -> Option<Grant> {
        self.undelivered.pop_front()
    }

    /// Whether any grant is undelivered.
    pub(crate) fn has_undelivered(&self) -> bool {
        !self.undelivered.is_empty()
    }

    /// Drops the undelivered grants: this server may not grant any more.
    pub(crate) fn forget_undelivered(&mut self) {
        self.undelivered.clear();
    }

    /// Whether any was published in this turn.
    pub(crate) fn has_published(&self) -> bool {
        self.sent
            .last_key_value()
            .is_some_and(|(sent, _)| *sent > Sent::FIRST_BY_MESSAGE)
    }

    fn hash(&self, owner: &[u8]) -> u64 {
        self.hasher.hash_one(owner)
    }

    fn insert(&mut self, sent: Sent, grant: Grant) {
        self.by_owner.insert((self.hash(grant.owner()), sent));
        self.sent.insert(sent, grant);
    }

    fn remove(&mut self, sent: Sent) -> Option<Grant> {
        let grant = self.sent.remove(&sent)?;
        self.by_owner.remove(&(self.hash(grant.owner()), sent));
        Some(grant)
    }
}
