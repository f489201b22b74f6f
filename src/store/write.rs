//! The changes of a hold, and how they are written: in the hash and its time to
//! live, as plain commands with absolute times for replicas and the AOF, and as
//! key events.
//!
//! The events come last, after the key is closed, because other modules may
//! change it during an event.

use rlock_core::{Extras, Fence, Hold, Holder, Shared, Timestamp, Who};
use smallvec::SmallVec;

use super::{
    before::{Before, One},
    fields::{constants, extra_fields, holder_field, holder_terms},
};
use crate::api::{Context, Field, Key, KeyEvent, OwnedText, Text, Word};

/// The largest number of fields in one replicated command.
const FIELDS_AT_ONCE: usize = 128;

/// A hold as stored, compared with its new state.
#[derive(Default)]
pub(crate) struct Diff<'a> {
    /// The key and all its fields are deleted first.
    ending: Option<KeyEvent>,
    put: SmallVec<[(Word<'a>, Word<'a>); 4]>,
    del: SmallVec<[Word<'a>; 4]>,
    /// When the lease ends, if that has changed.
    expire: Option<Timestamp>,
}

/// The key events of a change, which follow when the key is closed.
#[must_use = "key events are due"]
pub(crate) struct Events {
    ending: Option<KeyEvent>,
    hset: usize,
    hdel: usize,
    expire: bool,
}

impl<'a> Diff<'a> {
    /// The writes that bring the store to the hold `after`. `caller` is the
    /// owner that [`Who::Caller`] means.
    pub(crate) fn between(
        before: &'a Before<'a>,
        after: &mut Hold,
        caller: Option<Text<'a>>,
        now: Timestamp,
    ) -> Self {
        let mut diff = Self::default();
        match (before, after) {
            // A free key stays absent, and other data is never touched.
            (Before::Free, Hold::Free) | (Before::NoLock, _) | (_, Hold::NoLock) => {}
            (_, Hold::Free) => diff.ending = before.ending(now),
            (
                _,
                Hold::Exclusive {
                    who,
                    holder,
                    extras,
                },
            ) => {
                // A holder without known details keeps its state.
                if let Some(owner) = sole_owner(who, caller) {
                    diff.exclusive(before, owner, (holder, extras), now);
                }
            }
            (_, Hold::Shared(shared)) => {
                diff.shared(before, shared, caller, now);
            }
        }
        diff
    }

    fn exclusive(
        &mut self,
        before: &'a Before<'a>,
        owner: Word<'a>,
        (holder, extras): (&Holder, &Extras),
        now: Timestamp,
    ) {
        let one = before.one(now);
        if one.is_none() {
            self.ending = before.ending(now);
        }
        let same = one.filter(|one| *one.owner.bytes() == *owner.bytes());
        if same.is_none_or(|one| one.holder.count != holder.count) {
            self.put.push((owner, number(holder.count)));
        }
        if let Some(one) = one {
            if one.is_shared {
                self.del.push(constants().mode.text().into());
                self.del.push(holder_field(one.owner.bytes()).into());
            }
            if same.is_none() {
                self.del.push(one.owner.word());
            }
        }
        self.put_fence(holder.fence, one.and_then(|one| one.holder.fence));
        self.put_extras(extras, one);
        self.put_end(holder.deadline, one.map(|one| one.holder.deadline));
    }

    fn shared(
        &mut self,
        before: &'a Before<'a>,
        shared: &mut Shared,
        caller: Option<Text<'a>>,
        now: Timestamp,
    ) {
        let one = before.one(now);
        let several = before.several(now).filter(|_| !shared.is_new());
        let (is_shared, fence, deadline) = match (one, several) {
            (Some(one), _) => (one.is_shared, one.holder.fence, Some(one.holder.deadline)),
            (None, Some((fence, deadline))) => (true, fence, Some(deadline)),
            (None, None) => {
                self.ending = before.ending(now);
                (false, None, None)
            }
        };
        if !is_shared {
            self.put_constants(&constants().mode, &constants().shared);
        }
        self.put_fence(shared.fence(), fence);
        let first = shared.take_first();
        for change in first.into_iter().chain(shared.take_changes()) {
            let owner = word(&change.owner, caller);
            match change.holder {
                Some(holder) => self.put_holder(owner, change.stored_count, &holder),
                None => self.drop_holder(owner),
            }
        }
        // A lock that was free for a moment has no data of its last holder.
        let gone = one.filter(|one| shared.is_new() && shared.get(one.owner.bytes()).is_none());
        match gone {
            Some(one) if one.is_shared => self.drop_holder(one.owner.word()),
            Some(one) => self.del.push(one.owner.word()),
            None => {}
        }
        self.put_extras(&Extras::NONE, one);
        self.put_end(shared.last_end().unwrap_or(now), deadline);
    }

    fn put_constants(&mut self, field: &'static OwnedText, value: &'static OwnedText) {
        self.put.push((field.text().into(), value.text().into()));
    }

    fn put_fence(&mut self, fence: Option<Fence>, stored: Option<Fence>) {
        if let Some(fence) = fence.filter(|fence| Some(*fence) != stored) {
            let value = OwnedText::from_number(fence.get());
            self.put
                .push((constants().fence.text().into(), value.into()));
        }
    }

    /// Each of the stored extras is replaced or deleted if it is another one.
    fn put_extras(&mut self, extras: &Extras, one: Option<&One<'_>>) {
        let none = Extras::NONE;
        let stored = one.map_or(&none, |one| &one.extras);
        if extras == stored {
            return;
        }
        for (extra, field) in extra_fields() {
            match (extras.get(extra), stored.get(extra)) {
                (new, old) if new == old => {}
                (Some(new), _) => self.put.push((field.into(), OwnedText::new(&new).into())),
                (None, _) => self.del.push(field.into()),
            }
        }
    }

    fn put_end(&mut self, end: Timestamp, stored: Option<Timestamp>) {
        if stored != Some(end) {
            self.expire = Some(end);
        }
    }

    fn put_holder(&mut self, owner: Word<'a>, stored_count: Option<u32>, holder: &Holder) {
        let field = holder_field(owner.bytes());
        if stored_count != Some(holder.count) {
            self.put.push((owner, number(holder.count)));
        }
        self.put.push((field.into(), holder_terms(holder).into()));
    }

    fn drop_holder(&mut self, owner: Word<'a>) {
        let field = holder_field(owner.bytes());
        self.del.push(owner);
        self.del.push(field.into());
    }

    /// Writes it into the open key.
    pub(crate) fn write(&self, key: &Key<'_>) {
        if self.ending.is_some() {
            key.delete();
        }
        let put = self.put.iter();
        let put = put.map(|(field, value)| Field::Set(field.text(), value.text()));
        // Deleted last: the server deletes a hash without fields.
        let del = self.del.iter().map(|field| Field::Delete(field.text()));
        key.change(put.chain(del));
        if let Some(at) = self.expire {
            key.set_expires_at_ms(at.millis());
        }
    }

    /// Replicates it, and informs watching transactions and caching clients.
    /// Must be called when the key is closed.
    pub(crate) fn replicate(&self, ctx: &Context, name: Text) -> Events {
        if self.ending.is_some() {
            ctx.replicate(c"DEL", name);
        }
        let (put, del) = (
            self.put.chunks(FIELDS_AT_ONCE),
            self.del.chunks(FIELDS_AT_ONCE),
        );
        let events = Events {
            ending: self.ending,
            hset: put.len(),
            hdel: del.len(),
            expire: self.expire.is_some(),
        };
        put.for_each(|pairs| replicate_put(ctx, name, pairs));
        del.for_each(|fields| ctx.replicate_words(c"HDEL", name, &texts(fields.iter())));
        if let Some(at) = self.expire {
            ctx.replicate_number(c"PEXPIREAT", name, at.millis());
        }
        if events.are_any() {
            ctx.signal_modified(name);
        }
        events
    }
}

impl Events {
    const fn are_any(&self) -> bool {
        self.ending.is_some() || self.hset > 0 || self.hdel > 0 || self.expire
    }

    /// Emits the events that the native commands would.
    pub(crate) fn emit(self, ctx: &Context, name: Text) {
        if let Some(ending) = self.ending {
            ctx.notify(ending, name);
        }
        (0..self.hset).for_each(|_| ctx.notify(KeyEvent::Hset, name));
        (0..self.hdel).for_each(|_| ctx.notify(KeyEvent::Hdel, name));
        if self.expire {
            ctx.notify(KeyEvent::Expire, name);
        }
    }
}

/// One `HSET`. Those of an exclusive hold have fixed formats, which cost less.
fn replicate_put(ctx: &Context, name: Text, pairs: &[(Word, Word)]) {
    match pairs {
        [(field, value)] => ctx.replicate_pair(c"HSET", name, (field.text(), value.text())),
        [(field, value), (other, its)] => {
            let first = (field.text(), value.text());
            ctx.replicate_pairs(c"HSET", name, first, (other.text(), its.text()));
        }
        pairs => {
            let words = pairs.iter().flat_map(|(field, value)| [field, value]);
            ctx.replicate_words(c"HSET", name, &texts(words));
        }
    }
}

fn texts<'w>(words: impl Iterator<Item = &'w Word<'w>>) -> SmallVec<[Text<'w>; 8]> {
    words.map(Word::text).collect()
}

/// The owner of an exclusive hold; `None` if the operation does not know it.
fn sole_owner<'a>(who: &Who, caller: Option<Text<'a>>) -> Option<Word<'a>> {
    match who {
        Who::Caller => Some(caller?.into()),
        Who::Waiter(owner) => Some(OwnedText::new(owner).into()),
        Who::Other => None,
    }
}

fn word<'a>(owner: &[u8], caller: Option<Text<'a>>) -> Word<'a> {
    match caller.filter(|caller| *caller.bytes() == *owner) {
        Some(caller) => caller.into(),
        None => OwnedText::new(owner).into(),
    }
}

fn number(number: u32) -> Word<'static> {
    match number {
        1 => constants().one.text().into(),
        number => OwnedText::from_number(number.into()).into(),
    }
}
