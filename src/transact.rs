//! The one path that every change of a lock takes: load, settle, do, tell,
//! save.

use std::collections::VecDeque;

use rlock_core::{
    Announce, Delivery, Effect, Fence, Hold, Locks, Name, Refusal, Step, Ticket, Timestamp,
};

use crate::{
    api::{Context, Key, Published, Text, raw},
    blocked::{Grant, Outcome},
    messages,
    state::{Changing, State},
    store::{self, Writing},
};

/// How many waiters in a row are found gone before the rest of the queue is
/// left for the next turn of the event loop.
const SKIPS_MAX: usize = 64;

/// Where, and when, a change is made.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) now: Timestamp,
    pub(crate) db: u32,
    pub(crate) key: Text,
    /// The owner who asks; nobody does when a deadline has come.
    pub(crate) caller: Option<Text>,
}

/// Why a command is refused; nothing has changed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The key holds something that is no lock.
    WrongType,
    /// The core has refused it.
    Refused(Refusal),
    /// The server cannot block this connection.
    CannotBlock,
    /// Writes are paused, and this command runs all the same.
    Paused,
    /// The server is a replica that accepts writes, but grants no locks.
    Replica,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Site<'_> {
    pub(crate) fn name(&self) -> Name<'_> {
        Name {
            db: self.db,
            key: self.key.bytes(),
        }
    }
}

/// Changes a lock by `act`.
pub(crate) fn transact<R>(
    state: &mut State,
    site: &Site<'_>,
    act: impl FnOnce(&mut Locks, Name<'_>, &mut Hold) -> Result<Step<R>, Failure>,
) -> Result<R, Failure> {
    if !state.is_master {
        return Err(Failure::Replica);
    }
    // A command that is in one transaction with `CLIENT PAUSE` still runs. The
    // server would not delete a key that has expired, and then not bear that
    // it is written again.
    if avoids_writes() {
        return Err(Failure::Paused);
    }
    let _changing = Changing::new(site.key);
    let key = Key::open(site.ctx, site.key);
    let before = store::load(&key, site.caller);
    let mut hold = before.clone();
    if state.locks.is_contended(site.name()) {
        let step = state.locks.settle(site.now, site.name(), &mut hold);
        perform(state, site, &mut hold, step.effects);
    }
    let done = match hold {
        Hold::NoLock => Err(Failure::WrongType),
        Hold::Free | Hold::Exclusive { .. } => act(&mut state.locks, site.name(), &mut hold),
    };
    let announce = done.as_ref().map_or(Announce::No, |step| step.announce);
    let done = done.map(|step| {
        perform(state, site, &mut hold, step.effects);
        step.reply
    });
    let (ctx, name, caller, now) = (site.ctx, site.key, site.caller, site.now);
    Writing {
        ctx,
        key: &key,
        name,
        caller,
        now,
    }
    .save(&before, &hold);
    drop(key);
    let freed = before != Hold::Free && hold == Hold::Free;
    if announce == Announce::Sooner || (announce == Announce::IfFree && freed) {
        messages::announce(site.ctx, site.key);
    }
    done
}

/// Whether writing is an error now: while writes are paused, the server asserts
/// that nothing is replicated.
pub(crate) fn avoids_writes() -> bool {
    // SAFETY: takes nothing.
    unsafe { raw::avoid_replica_traffic() != 0 }
}

/// Settles a lock because it was time to, or because its key has changed.
pub(crate) fn settle(state: &mut State, site: &Site<'_>) {
    // A key that holds no lock is left alone, and its waiters wait on.
    let _ = transact(state, site, |locks, name, hold| {
        Ok(locks.settle(site.now, name, hold))
    });
}

/// Tells those whom an operation concerns, in order. A waiter who is found
/// gone is passed over, and the next one is told.
fn perform(state: &mut State, site: &Site<'_>, hold: &mut Hold, effects: Vec<Effect>) {
    if effects.is_empty() {
        return;
    }
    let mut effects = VecDeque::from(effects);
    let mut skips = 0;
    while let Some(effect) = effects.pop_front() {
        match effect {
            Effect::HandOff {
                ticket,
                fence,
                waited,
            } => {
                if grant(state, site, &ticket, fence) == Published::ToSomebody {
                    state.record_wait(waited);
                    continue;
                }
                skips += 1;
                if skips < SKIPS_MAX {
                    let step = state
                        .locks
                        .skip(site.now, site.name(), hold, &ticket, fence);
                    effects.extend(step.effects);
                } else {
                    state
                        .locks
                        .skip_and_leave(site.name(), hold, &ticket, fence);
                }
            }
            Effect::Lost(watch) => {
                let lost = format!("lost {}", watch.fence);
                messages::publish(site.ctx, &watch.channel, &lost, &watch.owner, site.key);
            }
            Effect::WaitEnded(ticket) => end_wait(state, site.ctx, &ticket, site.key),
            Effect::Withdrawn(delivery) => withdraw(state, &delivery),
        }
    }
}

/// Tells a waiter that it holds the lock now. Whether a blocked client is
/// still there shows only later, see [`Grant`].
fn grant(state: &mut State, site: &Site<'_>, ticket: &Ticket, fence: Fence) -> Published {
    match &ticket.delivery {
        Delivery::Blocked { handle, .. } => {
            let (key, owner) = (site.key.bytes().into(), ticket.owner.clone());
            let grant = Grant {
                db: site.db,
                key,
                owner,
                fence,
            };
            state.answer(*handle, Outcome::Granted(grant));
            Published::ToSomebody
        }
        Delivery::Notify { channel, .. } => {
            let what = format!("grant {fence}");
            messages::publish(site.ctx, channel, &what, &ticket.owner, site.key)
        }
    }
}

/// Tells a waiter that its wait is over.
pub(crate) fn end_wait(state: &mut State, ctx: &Context, ticket: &Ticket, key: Text) {
    match &ticket.delivery {
        Delivery::Blocked { handle, .. } => state.answer(*handle, Outcome::Nil),
        Delivery::Notify { channel, .. } => {
            messages::publish(ctx, channel, "timeout 0", &ticket.owner, key);
        }
    }
}

/// Ends a request without an outcome: nil for a blocked call, nothing else.
pub(crate) fn withdraw(state: &mut State, delivery: &Delivery) {
    if let Delivery::Blocked { handle, .. } = delivery {
        state.answer(*handle, Outcome::Nil);
    }
}

/// Ends a request because this server cannot grant it any more.
pub(crate) fn turn_away(state: &mut State, ctx: &Context, ticket: &Ticket, key: Text) {
    match &ticket.delivery {
        Delivery::Blocked { handle, .. } => state.answer(*handle, Outcome::TurnedAway),
        Delivery::Notify { channel, .. } => {
            messages::publish(ctx, channel, "withdrawn 0", &ticket.owner, key);
        }
    }
}
