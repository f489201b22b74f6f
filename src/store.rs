//! The hold as the server keeps it: a hash with a time to live.
//!
//! Reads a hold out of a key and writes back what changed of it, together with
//! all that a native command would do on the way: key events, the signal to
//! watching transactions, and plain commands with absolute times for replicas
//! and the AOF.

use rlock_core::{Fence, Hold, Timestamp, Who};

use crate::{
    api::{Context, Field, Key, KeyKind, MainThread, OwnedText, Text, raw},
    args::{RESERVED_PREFIX, decimal},
};

/// The field in which the fence of a hold is kept.
pub(crate) const FENCE_FIELD: &[u8] = b"rlock:fence";
/// A hash with more fields than this is no lock of ours, and is not looked
/// through. An exclusive hold has two.
const FIELDS_MAX: usize = 16;
/// The largest hold count.
const COUNT_MAX: u64 = i32::MAX as u64;

/// Strings that every grant needs, made once.
struct Constants {
    fence: OwnedText,
    one: OwnedText,
}

static CONSTANTS: MainThread<std::cell::OnceCell<Constants>> =
    MainThread::new(std::cell::OnceCell::new());

fn constants() -> &'static Constants {
    CONSTANTS.get().get_or_init(|| Constants {
        fence: OwnedText::new(FENCE_FIELD),
        one: OwnedText::new(b"1"),
    })
}

/// A holder as it is stored.
pub(crate) struct StoredHolder {
    pub(crate) owner: Box<[u8]>,
    pub(crate) count: u32,
}

/// Reads the hold of a key as `owner` sees it.
///
/// Costs one look-up of two fields if the key is free or `owner`'s. The hash
/// is looked through only if somebody else holds the lock.
pub(crate) fn load(key: &Key<'_>, owner: Option<Text>) -> Hold {
    let deadline = match key.kind() {
        KeyKind::Empty => return Hold::Free,
        KeyKind::Other => return Hold::NoLock,
        KeyKind::Hash => match key.expires_at_ms() {
            Some(at_ms) => Timestamp::from_millis(at_ms),
            None => return Hold::NoLock,
        },
    };
    let fence_field = *constants().fence;
    let [count, fence] = match owner {
        Some(owner) => key.fields(owner, fence_field),
        None => [None, key.field(fence_field)],
    };
    let known = usize::from(count.is_some()) + usize::from(fence.is_some());
    let fence = fence.and_then(|text| Fence::from_stored(decimal(text.bytes())?));
    match count {
        Some(count) if known == key.len() => match stored_count(count.bytes()) {
            Some(count) => Hold::Exclusive {
                who: Who::Caller { count },
                fence,
                deadline,
            },
            None => Hold::NoLock,
        },
        Some(_) | None => match (holder(key), owner) {
            (Some(holder), Some(owner)) if *holder.owner == *owner.bytes() => {
                let who = Who::Caller {
                    count: holder.count,
                };
                Hold::Exclusive {
                    who,
                    fence,
                    deadline,
                }
            }
            (Some(_), _) => Hold::Exclusive {
                who: Who::Other,
                fence,
                deadline,
            },
            (None, _) => Hold::NoLock,
        },
    }
}

/// Looks through a hash for its one holder; `None` if it is no lock.
pub(crate) fn holder(key: &Key<'_>) -> Option<StoredHolder> {
    if key.len() > FIELDS_MAX {
        return None;
    }
    let mut owners = 0;
    let mut found = None;
    key.for_each_field(&mut |field, value| {
        if !field.starts_with(RESERVED_PREFIX) {
            owners += 1;
            found = stored_count(value).map(|count| StoredHolder {
                owner: field.into(),
                count,
            });
        }
    });
    found.filter(|_| owners == 1)
}

fn stored_count(bytes: &[u8]) -> Option<u32> {
    let count = decimal(bytes).filter(|count| (1..=COUNT_MAX).contains(count))?;
    u32::try_from(count).ok()
}

/// A lock that is being written: where, for whom, and when.
pub(crate) struct Writing<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) key: &'a Key<'a>,
    pub(crate) name: Text,
    /// Who [`Who::Caller`] means.
    pub(crate) caller: Option<Text>,
    pub(crate) now: Timestamp,
}

impl Writing<'_> {
    /// Writes back what changed of a hold.
    pub(crate) fn save(&self, before: &Hold, after: &Hold) {
        match (before, after) {
            // A free key stays absent, and what is no lock is never touched.
            (Hold::Free, Hold::Free | Hold::NoLock)
            | (Hold::NoLock, _)
            | (Hold::Exclusive { .. }, Hold::NoLock) => return,
            (before, after) if before == after => return,
            (Hold::Exclusive { .. }, Hold::Free) => self.delete(self.has_lapsed(before)),
            (
                Hold::Free,
                Hold::Exclusive {
                    who,
                    fence,
                    deadline,
                },
            ) => {
                self.put(&Holder::new(who, self.caller), *fence);
                self.expire(*deadline);
            }
            (
                Hold::Exclusive {
                    who: from,
                    fence: fence_before,
                    deadline: ended,
                },
                Hold::Exclusive {
                    who,
                    fence,
                    deadline,
                },
            ) => {
                let same_owner = from == who || both_caller(from, who);
                if self.has_lapsed(before) || !same_owner {
                    self.pass_on(before, from, who, *fence);
                    self.expire(*deadline);
                    self.ctx.signal_modified(self.name);
                    return;
                }
                if from != who || fence_before != fence {
                    let new = fence.filter(|_| fence_before != fence);
                    self.put(&Holder::new(who, self.caller), new);
                }
                if ended != deadline {
                    self.expire(*deadline);
                }
            }
        }
        self.ctx.signal_modified(self.name);
    }

    /// Writes another holder over the former one.
    fn pass_on(&self, before: &Hold, from: &Who, who: &Who, fence: Option<Fence>) {
        let lapsed = self.has_lapsed(before);
        // Which field it is that goes is not known of anybody else.
        let anew = lapsed || *from == Who::Other;
        if anew {
            self.delete(lapsed);
        }
        self.put(&Holder::new(who, self.caller), fence);
        if !anew {
            self.remove(from);
        }
    }

    fn has_lapsed(&self, before: &Hold) -> bool {
        before
            .deadline()
            .is_some_and(|deadline| deadline.has_passed(self.now))
    }

    /// `HSET`: owner and count, and the fence where it is new.
    fn put(&self, holder: &Holder, fence: Option<Fence>) {
        let Some(pair) = holder.pair() else { return };
        if let Some(fence) = fence {
            let value = OwnedText::from_number(fence.get());
            let fence = (*constants().fence, *value);
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

    /// `HDEL` of the holder that the lock has passed on from.
    fn remove(&self, from: &Who) {
        let former = match from {
            Who::Caller { .. } => self.caller.map(|caller| OwnedText::new(caller.bytes())),
            Who::Waiter(owner) => Some(OwnedText::new(owner)),
            Who::Other => None,
        };
        let Some(former) = former else { return };
        self.key.change(Field::Delete(*former));
        self.ctx.replicate_field(c"HDEL", self.name, *former);
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

const fn both_caller(from: &Who, to: &Who) -> bool {
    matches!((from, to), (Who::Caller { .. }, Who::Caller { .. }))
}

/// The owner and count of a new hold, as strings.
struct Holder {
    owner: Option<Text>,
    count: Option<OwnedText>,
    _made: Option<OwnedText>,
}

impl Holder {
    fn new(who: &Who, caller: Option<Text>) -> Self {
        match who {
            Who::Caller { count } => Self {
                owner: caller,
                count: (*count != 1).then(|| OwnedText::from_number((*count).into())),
                _made: None,
            },
            Who::Waiter(owner) => {
                let made = OwnedText::new(owner);
                Self {
                    owner: Some(*made),
                    count: None,
                    _made: Some(made),
                }
            }
            Who::Other => Self {
                owner: None,
                count: None,
                _made: None,
            },
        }
    }

    fn pair(&self) -> Option<(Text, Text)> {
        let count = self
            .count
            .as_ref()
            .map_or(*constants().one, |count| **count);
        Some((self.owner?, count))
    }
}
