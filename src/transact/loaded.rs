//! A lock during a change: its key is open, and its hold is in memory.

use rlock_core::{Announce, Hold, ValueMessage, Who};
use smallvec::SmallVec;

use crate::{
    api::{Context, Key, Text, Word},
    delivery,
    operation::Operation,
    settings,
    state::State,
    store::{self, Before, Diff, Events},
};

/// Whether an unlock message is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    No,
    /// Unless another owner takes the lock first.
    DueWhileFree,
    Due,
}

/// What remains to do after a change is written, when all keys are closed.
pub(super) struct Saved {
    events: Events,
    /// Boxed, because most changes have none.
    value: Option<Box<ValueMessage>>,
    /// Whether an unlock message is due, and whether only while the lock is
    /// free.
    pub(super) message: Message,
}

impl Saved {
    /// Emits the key events, and publishes the value of the lock.
    #[inline(always)]
    pub(super) fn emit(self, ctx: &Context, key: Text) {
        self.events.emit(ctx, key);
        if let Some(value) = &self.value {
            delivery::publish_value(ctx, key, value);
        }
    }
}

/// A lock during a change: its open key, and its hold before and now.
pub(crate) struct Loaded<'a> {
    op: Operation<'a>,
    key: Key<'a>,
    pub(super) before: Before<'a>,
    pub(crate) hold: Hold,
}

impl<'a> Loaded<'a> {
    /// Opens a key and reads its hold.
    pub(crate) fn new(state: &mut State, op: &Operation<'a>) -> Self {
        let key = Key::open(op.ctx, op.key);
        let known = (&state.locks, &mut state.shared_cache);
        let (hold, before) = store::load(&key, op.name(), op.caller, known, op.now);
        Self {
            op: *op,
            key,
            before,
            hold,
        }
    }

    /// Writes the new hold, and closes the key.
    pub(super) fn save(mut self, state: &mut State, announce: Announce) -> Saved {
        let Operation {
            ctx,
            now,
            key: name,
            caller,
            ..
        } = self.op;
        let diff = Diff::between(&self.before, &mut self.hold, caller, now);
        diff.write(&self.key);
        let (locks, known) = (&mut state.locks, &mut state.shared_cache);
        let value = locks
            .value_message(now, self.op.name(), &self.hold)
            .map(Box::new);
        if let Hold::Exclusive {
            who,
            holder,
            extras,
        } = &self.hold
            && extras.are_none()
        {
            locks.know_holder(self.op.name(), holder.fence, || match who {
                Who::Caller => caller.map(|it| it.bytes().into()),
                Who::Waiter(owner) => Some((&**owner).into()),
                Who::Other => self.before.exclusive_owner().map(Into::into),
            });
        }
        let free = self.hold.is_free();
        if let Hold::Shared(shared) = self.hold {
            let stamp = store::stamp(&self.key, shared.fence());
            let most = settings::shared_holders_kept();
            known.keep(self.op.name(), stamp, shared, most);
        } else if !known.is_empty() {
            known.forget(self.op.name());
        }
        drop(self.key);
        let events = diff.replicate(ctx, name);
        let freed = free && self.before != Before::Free;
        let message = match announce {
            Announce::Sooner => Message::Due,
            Announce::IfFreed if freed => Message::DueWhileFree,
            Announce::IfFree if free => Message::DueWhileFree,
            Announce::No | Announce::IfFreed | Announce::IfFree => Message::No,
        };
        Saved {
            events,
            value,
            message,
        }
    }

    /// Closes the key without a change.
    pub(super) fn close(self, state: &mut State) {
        if let Hold::Shared(shared) = self.hold {
            let stamp = store::stamp(&self.key, shared.fence());
            let (known, most) = (&mut state.shared_cache, settings::shared_holders_kept());
            known.put_back(self.op.name(), stamp, shared, most);
        }
    }

    /// Where the lock is.
    pub(crate) const fn place(&self) -> (&'a Context, Text<'a>) {
        (self.op.ctx, self.op.key)
    }

    /// Whether the hold ends earlier than before.
    pub(crate) fn ends_sooner(&self) -> bool {
        self.hold.deadline() < self.before.deadline()
    }
}

/// The unlock messages that changes have made due, until all are done.
#[derive(Default)]
pub(crate) struct Pending<'a> {
    pub(crate) messages: SmallVec<[(Word<'a>, Message); 1]>,
    /// Whether other owners may have taken the locks since.
    pub(crate) granted: bool,
}
