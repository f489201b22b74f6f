//! Writes back what changed of a hold, together with all that a native command
//! would do on the way: key events, the signal to watching transactions, and
//! plain commands with absolute times for replicas and the AOF.

use rlock_core::{Fence, Hold, Holder, Shared, Timestamp, Who};

use crate::{
    api::{Context, Field, Key, OwnedText, Text, raw},
    fields::{FIELDS_OF_ONE, constants, holder_field, holder_terms},
    store::Before,
};

/// How many shared holders one `HSET` or `HDEL` is about at most.
const HOLDERS_AT_ONCE: usize = 64;

/// A lock that is being written: where, for whom, and when.
pub(crate) struct Writing<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) key: &'a Key<'a>,
    pub(crate) name: Text<'a>,
    /// Who [`Who::Caller`] means.
    pub(crate) caller: Option<Text<'a>>,
    pub(crate) now: Timestamp,
}

impl Writing<'_> {
    /// Writes back what changed of a hold.
    pub(crate) fn save(&self, before: &Before, after: &mut Hold) {
        let changed = match (before, after) {
            // A free key stays absent, and what is no lock is never touched.
            (Before::Free, Hold::Free) | (Before::NoLock, _) | (_, Hold::NoLock) => false,
            (_, Hold::Free) => {
                self.delete(self.has_lapsed(before));
                true
            }
            (
                _,
                Hold::Exclusive {
                    who,
                    fence,
                    deadline,
                },
            ) => self.exclusive(before, who, *fence, *deadline),
            (_, Hold::Shared(shared)) => self.shared(before, shared),
        };
        if changed {
            self.ctx.signal_modified(self.name);
        }
    }

    fn exclusive(
        &self,
        before: &Before,
        who: &Who,
        fence: Option<Fence>,
        deadline: Timestamp,
    ) -> bool {
        let lapsed = self.has_lapsed(before);
        match (before, who) {
            (Before::Exclusive { count: None, .. }, Who::Other) if !lapsed => return false,
            // The same owner goes on.
            (
                Before::Exclusive {
                    count: Some(from),
                    fence: fence_before,
                    deadline: ended,
                },
                Who::Caller { count },
            ) if !lapsed => {
                let put = from != count || *fence_before != fence;
                if put {
                    let new = fence.filter(|_| *fence_before != fence);
                    self.put(&Owner::new(who, self.caller), new);
                }
                if *ended != deadline {
                    self.expire(deadline);
                }
                return put || *ended != deadline;
            }
            // It goes from the caller to another; of anybody else it is not
            // known which field it is that goes.
            (Before::Exclusive { count: Some(_), .. }, _) if !lapsed => {
                self.put(&Owner::new(who, self.caller), fence);
                self.remove_caller();
            }
            (Before::Shared { fields, .. }, _) if !lapsed && self.is_one(*fields, who) => {
                let owner = Owner::new(who, self.caller);
                self.put(&owner, fence);
                self.remove_shared_fields(&owner);
            }
            (Before::Free, _) => self.put(&Owner::new(who, self.caller), fence),
            _ => {
                self.delete(lapsed);
                self.put(&Owner::new(who, self.caller), fence);
            }
        }
        self.expire(deadline);
        true
    }

    fn shared(&self, before: &Before, shared: &mut Shared) -> bool {
        let lapsed = self.has_lapsed(before);
        let ends = shared.last_end().unwrap_or(self.now);
        if *before == Before::Free
            && let Some((owner, holder)) = shared.take_first()
        {
            self.first_shared(&owner, &holder);
            self.expire(ends);
            return true;
        }
        let changes = shared.take_changes();
        let goes_on = match before {
            Before::Shared { .. } => !lapsed && !shared.is_new(),
            Before::Exclusive { count, .. } => {
                let caller = self.caller.filter(|_| count.is_some() && !lapsed);
                caller.is_some_and(|caller| shared.get(caller.bytes()).is_some())
            }
            Before::Free | Before::NoLock => false,
        };
        if !goes_on && *before != Before::Free {
            self.delete(lapsed);
        }
        let (was_shared, ended, fence) = match before {
            Before::Shared {
                deadline, fence, ..
            } if goes_on => (true, Some(*deadline), *fence),
            Before::Exclusive { fence, .. } if goes_on => (false, before.deadline(), *fence),
            _ => (false, None, None),
        };
        let mut words = Vec::new();
        if !was_shared {
            words.extend([constants().mode.text(), constants().shared.text()]);
        }
        let new_fence = shared.fence().filter(|it| Some(*it) != fence);
        let new_fence = new_fence.map(|it| OwnedText::from_number(it.get()));
        if let Some(fence) = &new_fence {
            words.extend([constants().fence.text(), fence.text()]);
        }
        let changed = !changes.is_empty() || !words.is_empty() || ended != Some(ends);
        let (put, dropped): (Vec<_>, Vec<_>) = changes
            .into_iter()
            .partition(|(_, holder)| holder.is_some());
        self.put_shared(words, &put);
        self.remove_shared(&dropped);
        if ended != Some(ends) {
            self.expire(ends);
        }
        changed
    }

    /// `HSET`: the first holder of a lock that was free.
    fn first_shared(&self, owner: &[u8], holder: &Holder) {
        let fence = holder.fence.map_or(0, Fence::get);
        let fence = OwnedText::from_number(fence);
        let caller = self.caller.filter(|caller| *caller.bytes() == *owner);
        let made = caller.is_none().then(|| OwnedText::new(owner));
        let Some(owner_text) = caller.or(made.as_ref().map(|made| made.text())) else {
            return;
        };
        let other = (holder.count != 1).then(|| OwnedText::from_number(holder.count.into()));
        let count = other
            .as_ref()
            .map_or(constants().one.text(), |count| count.text());
        let (field, terms) = (holder_field(owner), holder_terms(holder));
        let pairs = [
            (constants().mode.text(), constants().shared.text()),
            (constants().fence.text(), fence.text()),
            (owner_text, count),
            (field.text(), terms.text()),
        ];
        self.key
            .change_all(&pairs.map(|(field, value)| Field::Set(field, value)));
        let words = pairs.map(|(field, value)| [field, value]);
        self.ctx
            .replicate_words(c"HSET", self.name, words.as_flattened());
        self.ctx
            .notify(raw::REDISMODULE_NOTIFY_HASH, c"hset", self.name);
    }

    /// `HSET`: mode and fence where they are new, and the holders.
    fn put_shared(&self, mut first: Vec<Text>, put: &[(std::sync::Arc<[u8]>, Option<Holder>)]) {
        let mut parts = put.chunks(HOLDERS_AT_ONCE);
        loop {
            let part = parts.next();
            let strings: Vec<_> = part
                .unwrap_or_default()
                .iter()
                .filter_map(strings)
                .collect();
            let mut words = std::mem::take(&mut first);
            words.extend(strings.iter().flatten().map(|text| text.text()));
            if words.is_empty() {
                return;
            }
            let pairs: Vec<_> = words.chunks_exact(2).filter_map(pair).collect();
            self.key.change_all(&pairs);
            self.ctx.replicate_words(c"HSET", self.name, &words);
            self.ctx
                .notify(raw::REDISMODULE_NOTIFY_HASH, c"hset", self.name);
        }
    }

    /// `HDEL` of the holders that have gone.
    fn remove_shared(&self, dropped: &[(std::sync::Arc<[u8]>, Option<Holder>)]) {
        for part in dropped.chunks(HOLDERS_AT_ONCE) {
            let fields = |(owner, _): &(std::sync::Arc<[u8]>, Option<Holder>)| {
                [OwnedText::new(owner), holder_field(owner)]
            };
            let fields: Vec<_> = part.iter().flat_map(fields).collect();
            self.remove(&fields.iter().map(|text| text.text()).collect::<Vec<_>>());
        }
    }

    /// What shared mode has written beside the owner who holds it alone now.
    fn remove_shared_fields(&self, owner: &Owner) {
        if let Some(owner) = owner.text() {
            let field = holder_field(owner.bytes());
            self.remove(&[constants().mode.text(), field.text()]);
        }
    }

    /// Whether one owner alone held a shared lock, and holds it now.
    fn is_one(&self, fields: usize, who: &Who) -> bool {
        let owner = Owner::new(who, self.caller);
        fields == FIELDS_OF_ONE && owner.text().is_some_and(|owner| self.key.has(owner))
    }

    fn has_lapsed(&self, before: &Before) -> bool {
        let deadline = before.deadline();
        deadline.is_some_and(|deadline| deadline.has_passed(self.now))
    }

    /// `HSET`: owner and count, and the fence where it is new.
    fn put(&self, owner: &Owner, fence: Option<Fence>) {
        let Some(pair) = owner.pair() else { return };
        if let Some(fence) = fence {
            let value = OwnedText::from_number(fence.get());
            let fence = (constants().fence.text(), value.text());
            self.key
                .change_both(Field::Set(pair.0, pair.1), Field::Set(fence.0, fence.1));
            self.ctx.replicate_pairs(c"HSET", self.name, pair, fence);
        } else {
            self.key.change(Field::Set(pair.0, pair.1));
            self.ctx.replicate_pair(c"HSET", self.name, pair);
        }
        self.ctx
            .notify(raw::REDISMODULE_NOTIFY_HASH, c"hset", self.name);
    }

    /// `HDEL` of the caller, from whom the lock has passed on.
    fn remove_caller(&self) {
        if let Some(caller) = self.caller {
            self.remove(&[OwnedText::new(caller.bytes()).text()]);
        }
    }

    /// `HDEL`.
    fn remove(&self, fields: &[Text]) {
        let changes: Vec<_> = fields.iter().map(|field| Field::Delete(*field)).collect();
        self.key.change_all(&changes);
        self.ctx.replicate_words(c"HDEL", self.name, fields);
        self.ctx
            .notify(raw::REDISMODULE_NOTIFY_HASH, c"hdel", self.name);
    }

    /// `PEXPIREAT`: the end of the lease.
    fn expire(&self, deadline: Timestamp) {
        self.key.set_expires_at_ms(deadline.millis());
        self.ctx
            .replicate_number(c"PEXPIREAT", self.name, deadline.millis());
        self.ctx
            .notify(raw::REDISMODULE_NOTIFY_GENERIC, c"expire", self.name);
    }

    /// `DEL`, or the same as an expiry, which replicas and the AOF see as `DEL`.
    fn delete(&self, lapsed: bool) {
        self.key.delete();
        self.ctx.replicate(c"DEL", self.name);
        let (class, event) = match lapsed {
            true => (raw::REDISMODULE_NOTIFY_EXPIRED, c"expired"),
            false => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
        };
        self.ctx.notify(class, event, self.name);
    }
}

/// The two fields of a shared holder, and their values.
fn strings((owner, holder): &(std::sync::Arc<[u8]>, Option<Holder>)) -> Option<[OwnedText; 4]> {
    let holder = holder.as_ref()?;
    Some([
        OwnedText::new(owner),
        OwnedText::from_number(holder.count.into()),
        holder_field(owner),
        holder_terms(holder),
    ])
}

fn pair<'a>(words: &[Text<'a>]) -> Option<Field<'a>> {
    match words {
        [field, value] => Some(Field::Set(*field, *value)),
        _ => None,
    }
}

/// The owner and count of an exclusive hold, as strings.
struct Owner<'a> {
    caller: Option<Text<'a>>,
    waiter: Option<OwnedText>,
    count: Option<OwnedText>,
}

impl<'a> Owner<'a> {
    fn new(who: &Who, caller: Option<Text<'a>>) -> Self {
        let (caller, waiter, count) = match who {
            Who::Caller { count } => (caller, None, *count),
            Who::Waiter { owner, count } => (None, Some(OwnedText::new(owner)), *count),
            Who::Other => (None, None, 1),
        };
        Self {
            caller,
            waiter,
            count: (count != 1).then(|| OwnedText::from_number(count.into())),
        }
    }

    fn text(&self) -> Option<Text<'_>> {
        self.waiter.as_ref().map(OwnedText::text).or(self.caller)
    }

    fn pair(&self) -> Option<(Text<'_>, Text<'_>)> {
        let count = self.count.as_ref();
        let count = count.map_or(constants().one.text(), OwnedText::text);
        Some((self.text()?, count))
    }
}
