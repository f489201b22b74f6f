//! The one path that every change of a lock takes: load, settle, change,
//! notify, save.

mod all;
mod loaded;
mod other_holders;

pub(crate) use all::{LoadedAll, check_all};
pub(crate) use loaded::Pending;
pub(crate) use other_holders::OtherHolders;

use std::collections::VecDeque;

use rlock_core::{Announce, Effect, Hold, Locks, Name, Step, Who};
use smallvec::smallvec;

use crate::{
    api::{Key, OwnedText, Published},
    delivery,
    notes::Changing,
    operation::{Failure, Operation},
    state::State,
};
use loaded::{Loaded, Message};

/// Changes a lock by `act`, and sends the resulting messages.
pub(crate) fn transact<R>(
    state: &mut State,
    op: &Operation<'_>,
    act: impl FnOnce(&mut Locks, Name<'_>, &mut Hold, &OtherHolders<'_>) -> Result<Step<R>, Failure>,
) -> Result<R, Failure> {
    let mut pending = Pending::default();
    let done = change(state, op, &mut pending, act);
    finish(state, op, pending);
    done
}

/// Changes a lock by `act`; the rest is left to [`finish`].
///
/// All due changes are made before `act` decides, so no grant follows that its
/// caller should have seen.
pub(crate) fn change<'a, R>(
    state: &mut State,
    op: &Operation<'a>,
    pending: &mut Pending<'a>,
    act: impl FnOnce(&mut Locks, Name<'_>, &mut Hold, &OtherHolders<'_>) -> Result<Step<R>, Failure>,
) -> Result<R, Failure> {
    state.check_writable(op)?;
    let mut settled = Settled::open(state, op);
    if state.locks.has_ready() {
        // A request for several locks may wait for this one.
        settled.close(state, op, pending);
        grant_ready(state, op, pending);
        settled = Settled::open(state, op);
    }
    let done = match settled.loaded.hold {
        Hold::NoLock => Err(Failure::WrongType { key: 0 }),
        Hold::Free | Hold::Exclusive { .. } | Hold::Shared(_) => {
            let Loaded { before, hold, .. } = &mut settled.loaded;
            // It may have been handed over since it was read.
            let is_stored = matches!(
                hold,
                Hold::Exclusive {
                    who: Who::Other,
                    ..
                }
            );
            let holder = before.exclusive_owner().filter(|_| is_stored);
            let read = holder.map(|owner| (op.name(), owner));
            let others = OtherHolders::new(op, read.as_slice(), &state.shared_cache);
            act(&mut state.locks, op.name(), hold, &others)
        }
    };
    let done = done.map(|step| {
        settled.perform(state, op, step.effects, step.announce);
        step.reply
    });
    settled.close(state, op, pending);
    done
}

/// Grants the requests that changes have made ready, and then publishes the
/// unlock messages of the locks that nobody has taken.
pub(crate) fn finish(state: &mut State, op: &Operation<'_>, mut pending: Pending<'_>) {
    grant_ready(state, op, &mut pending);
    announce(op, &pending);
}

/// Like [`finish`], for a caller that has been queued. Nothing is granted
/// before the caller knows that; the timer grants requests that are ready.
pub(crate) fn finish_queued(state: &mut State, op: &Operation<'_>, pending: &Pending<'_>) {
    state.locks.settle_ready_later();
    announce(op, pending);
}

/// Grants the requests for several keys that are first in each queue: a freed
/// lock may be one of theirs.
fn grant_ready(state: &mut State, op: &Operation<'_>, pending: &mut Pending<'_>) {
    while !(pending.granted && state.locks.turn_is_over())
        && let Some(passed_over) = all::grant_next(state, op)
    {
        settle_all(state, op, pending, &passed_over);
        pending.granted = true;
    }
    // Each may have a thousand keys, so the rest comes in later turns.
    state.locks.settle_ready_later();
}

fn announce(op: &Operation<'_>, pending: &Pending<'_>) {
    for (key, message) in &pending.messages {
        let taken = || pending.granted && Key::open_to_read(op.ctx, key.text()).is_some();
        if *message == Message::Due || (*message == Message::DueWhileFree && !taken()) {
            delivery::announce(op.ctx, key.text());
        }
    }
}

/// Settles a lock because it is due, or because its key has changed.
pub(crate) fn settle(state: &mut State, op: &Operation<'_>) {
    let mut pending = Pending::default();
    settle_one(state, op, &mut pending);
    finish(state, op, pending);
}

/// Settles a lock; the rest is left to [`finish`]. A key with other data is not
/// changed, and its waiters keep waiting.
fn settle_one<'a>(state: &mut State, op: &Operation<'a>, pending: &mut Pending<'a>) {
    if state.check_writable(op).is_ok() {
        Settled::open(state, op).close(state, op, pending);
    }
}

/// Hands the locks of a request that was passed over to the waiters behind it.
/// All are due, so the rest comes in later turns.
fn settle_all(
    state: &mut State,
    op: &Operation<'_>,
    pending: &mut Pending<'_>,
    keys: &[OwnedText],
) {
    let mut more = Pending::default();
    for key in keys {
        if state.locks.turn_is_over() {
            break;
        }
        let op = Operation {
            caller: None,
            ..op.at(key.text())
        };
        settle_one(state, &op, &mut more);
    }
    let kept = |key: &[u8]| OwnedText::new(key).into();
    let more = more.messages.iter();
    let more = more.map(|(key, message)| (kept(key.bytes()), *message));
    pending.messages.extend(more);
}

/// A lock whose key is open, and that has been settled.
struct Settled<'a> {
    loaded: Loaded<'a>,
    announce: Announce,
    changing: Changing,
}

impl<'a> Settled<'a> {
    fn open(state: &mut State, op: &Operation<'a>) -> Self {
        let changing = Changing::new(&[op.key]);
        let loaded = Loaded::new(state, op);
        let mut settled = Self {
            loaded,
            announce: Announce::No,
            changing,
        };
        let hold = &mut settled.loaded.hold;
        if !state.locks.is_settled(op.now, op.name(), hold) {
            let step = state.locks.settle(op.now, op.name(), hold);
            settled.perform(state, op, step.effects, step.announce);
        }
        settled
    }

    /// Sends the notifications of an operation.
    fn perform(
        &mut self,
        state: &mut State,
        op: &Operation<'_>,
        effects: Vec<Effect>,
        announce: Announce,
    ) {
        let announce = self.announce.max(announce);
        self.announce = perform(state, op, &mut self.loaded.hold, effects, announce);
    }

    /// Writes the changes.
    fn close(self, state: &mut State, op: &Operation<'a>, pending: &mut Pending<'a>) {
        let saved = self.loaded.save(state, self.announce);
        drop(self.changing);
        let message = saved.message;
        saved.emit(op.ctx, op.key);
        if message != Message::No {
            pending.messages.push((op.key.into(), message));
        }
    }
}

/// Sends the notifications of an operation, in order. A waiter that has
/// disconnected is passed over, and the next one gets the message. Returns the
/// unlock message that is still due.
fn perform(
    state: &mut State,
    op: &Operation<'_>,
    hold: &mut Hold,
    effects: Vec<Effect>,
    mut announce: Announce,
) -> Announce {
    if effects.is_empty() {
        return announce;
    }
    let mut effects = VecDeque::from(effects);
    while let Some(effect) = effects.pop_front() {
        match effect {
            Effect::HandOff(granted) => {
                let keys = smallvec![op.key.bytes().into()];
                let delivered = state.deliveries.grant(op.ctx, op.db, keys, granted);
                let Err(granted) = delivered else {
                    continue;
                };
                let (now, name) = (op.now, op.name());
                let step = state.locks.skip(now, name, hold, &granted);
                effects.extend(step.effects);
                announce = announce.max(step.announce);
            }
            Effect::Lost {
                owner,
                fence,
                listener,
            } => {
                delivery::publish_lost(op.ctx, &listener, fence, &owner, op.key.bytes());
            }
            Effect::WaitEnded { owner, delivery } => {
                let deliveries = &mut state.deliveries;
                deliveries.end_wait(op.ctx, &delivery, &owner, op.key.bytes());
            }
            Effect::Withdrawn(delivery) => state.deliveries.withdraw(&delivery),
            Effect::Offer => {
                if delivery::announce(op.ctx, op.key) == Published::ToNobody {
                    let (now, name) = (op.now, op.name());
                    effects.extend(state.locks.nobody_took(now, name, hold).effects);
                } else {
                    // The message has reached them.
                    announce = Announce::No;
                }
            }
        }
    }
    announce
}
