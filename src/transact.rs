//! The one path that every change of a lock takes: load, settle, do, tell,
//! save.

use std::collections::VecDeque;

use rlock_core::{
    Announce, Delivery, Effect, Ended, Granted, Hold, Locks, Name, Refusal, Step, Timestamp,
};
use smallvec::SmallVec;

use crate::{
    api::{Context, Key, Published, Text, Word, raw},
    blocked::{Grant, Outcome},
    messages,
    other_holders::OtherHolders,
    ready, serving,
    state::{Changing, State},
    store::{self, Before, Diff, Events},
};

/// Where, and when, a change is made.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) now: Timestamp,
    pub(crate) db: u32,
    pub(crate) key: Text<'a>,
    /// The owner who asks; nobody does when a deadline has come.
    pub(crate) caller: Option<Text<'a>>,
}

/// Why a command is refused; nothing has changed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A key, this one of those named, holds something that is no lock.
    WrongType { key: usize },
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

/// Whether an unlock message is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    No,
    /// Unless the lock is taken first.
    DueWhileFree,
    Due,
}

/// A lock that is being changed: its open key, and its hold before and now.
pub(crate) struct Opened<'a> {
    site: Site<'a>,
    key: Key<'a>,
    before: Before<'a>,
    pub(crate) hold: Hold,
}

impl<'a> Opened<'a> {
    /// Opens a key and reads its hold.
    pub(crate) fn new(state: &mut State, site: &Site<'a>) -> Self {
        let key = Key::open(site.ctx, site.key);
        let (hold, before) =
            store::load(&key, site.name(), site.caller, &mut state.known, site.now);
        Self {
            site: *site,
            key,
            before,
            hold,
        }
    }

    /// Writes down what has become of the hold, and closes the key. Answers which
    /// key events are due, and whether an unlock message is, and if only as
    /// long as the lock is free.
    pub(crate) fn save(mut self, state: &mut State, announce: Announce) -> (Events, Message) {
        let Site {
            ctx,
            now,
            key: name,
            caller,
            ..
        } = self.site;
        let diff = Diff::between(&self.before, &mut self.hold, caller, now);
        diff.write(&self.key);
        let free = self.hold == Hold::Free;
        if let Hold::Shared(shared) = self.hold {
            let stamp = store::stamp(&self.key, shared.fence());
            state.known.keep(self.site.name(), stamp, shared);
        } else if !state.known.is_empty() {
            state.known.forget(self.site.name());
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
        (events, message)
    }

    /// Where the lock is.
    pub(crate) const fn place(&self) -> (&'a Context, Text<'a>) {
        (self.site.ctx, self.site.key)
    }

    /// Whether the hold ends earlier than before.
    pub(crate) fn ends_sooner(&self) -> bool {
        self.hold.deadline() < self.before.deadline()
    }
}

/// The unlock messages that changes have made due, until all are done.
pub(crate) type Pending<'a> = SmallVec<[(Word<'a>, Message); 1]>;

/// Changes a lock by `act`, and tells what there is to be told.
pub(crate) fn transact<R>(
    state: &mut State,
    site: &Site<'_>,
    act: impl FnOnce(&mut Locks, Name<'_>, &mut Hold, &OtherHolders<'_>) -> Result<Step<R>, Failure>,
) -> Result<R, Failure> {
    let mut pending = Pending::new();
    let done = change(state, site, &mut pending, act);
    finish(state, site, pending);
    done
}

/// Grants what changes have made ready, and then publishes the unlock messages
/// of the locks that nobody has taken.
pub(crate) fn finish(state: &mut State, site: &Site<'_>, mut pending: Pending<'_>) {
    // A lock that was freed may be one of several that somebody waits for.
    let granted = ready::grant_all(state, site, &mut pending);
    for (key, message) in &pending {
        let taken = || granted && Key::open_to_read(site.ctx, key.text()).is_some();
        if *message == Message::Due || (*message == Message::DueWhileFree && !taken()) {
            messages::announce(site.ctx, key.text());
        }
    }
}

/// Changes a lock by `act`; the rest is left to [`finish`].
pub(crate) fn change<'a, R>(
    state: &mut State,
    site: &Site<'a>,
    pending: &mut Pending<'a>,
    act: impl FnOnce(&mut Locks, Name<'_>, &mut Hold, &OtherHolders<'_>) -> Result<Step<R>, Failure>,
) -> Result<R, Failure> {
    check_writable(state, site)?;
    let changing = Changing::new(site.key);
    let mut opened = Opened::new(state, site);
    let mut announce = Announce::No;
    if state.locks.is_contended(site.name()) {
        let step = state.locks.settle(site.now, site.name(), &mut opened.hold);
        announce = step.announce;
        announce = perform(state, site, &mut opened.hold, step.effects, announce);
    }
    let done = match opened.hold {
        Hold::NoLock => Err(Failure::WrongType { key: 0 }),
        Hold::Free | Hold::Exclusive { .. } | Hold::Shared(_) => {
            let others = OtherHolders::new(site, &state.known);
            act(&mut state.locks, site.name(), &mut opened.hold, &others)
        }
    };
    let done = done.map(|step| {
        announce = announce.max(step.announce);
        announce = perform(state, site, &mut opened.hold, step.effects, announce);
        step.reply
    });
    let (events, message) = opened.save(state, announce);
    drop(changing);
    events.emit(site.ctx, site.key);
    if message != Message::No {
        pending.push((site.key.into(), message));
    }
    done
}

/// Whether anything may be changed now.
pub(crate) fn check_writable(state: &mut State, site: &Site<'_>) -> Result<(), Failure> {
    if !state.is_master {
        return Err(Failure::Replica);
    }
    // A command that is in one transaction with `CLIENT PAUSE` still runs. The
    // server would not delete a key that has expired, and then not bear that
    // it is written again.
    if avoids_writes() {
        return Err(Failure::Paused);
    }
    serving::check_replicas(state, site.ctx, site.now);
    Ok(())
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
    let _ = transact(state, site, |locks, name, hold, _| {
        Ok(locks.settle(site.now, name, hold))
    });
}

/// Tells those whom an operation concerns, in order. A waiter who is found
/// gone is passed over, and the next one is told. Answers which unlock message
/// is still due.
fn perform(
    state: &mut State,
    site: &Site<'_>,
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
                let keys = [site.key.bytes().into()].into();
                if tell_grant(state, site.ctx, site.db, keys, &granted) == Published::ToSomebody {
                    continue;
                }
                let (now, name) = (site.now, site.name());
                let step = state.locks.skip(now, name, hold, &granted);
                effects.extend(step.effects);
                announce = announce.max(step.announce);
            }
            Effect::Lost {
                owner,
                fence,
                listener,
            } => {
                let lost = format!("lost {fence}");
                messages::publish(site.ctx, listener.channel(), &lost, &owner, site.key);
            }
            Effect::WaitEnded { owner, delivery } => {
                end_wait(state, site.ctx, &delivery, &owner, site.key.bytes());
            }
            Effect::Withdrawn(delivery) => withdraw(state, &delivery),
            Effect::Offer => {
                if messages::announce(site.ctx, site.key) == Published::ToNobody {
                    let (now, name) = (site.now, site.name());
                    effects.extend(state.locks.nobody_took(now, name, hold).effects);
                } else {
                    // They have been told.
                    announce = Announce::No;
                }
            }
        }
    }
    announce
}

/// Tells a waiter that it holds its locks now. Whether a blocked client is
/// still there shows only later, see [`Grant`].
pub(crate) fn tell_grant(
    state: &mut State,
    ctx: &Context,
    db: u32,
    keys: Box<[Box<[u8]>]>,
    granted: &Granted,
) -> Published {
    let (ticket, fence) = (&granted.ticket, granted.fence);
    let told = match &ticket.delivery {
        Delivery::Blocked { handle, .. } => {
            let grant = Grant {
                db,
                keys,
                owner: ticket.owner.clone(),
                fence,
                place: granted.kept_place(),
            };
            state.answer_granted(*handle, grant);
            Published::ToSomebody
        }
        Delivery::Notify(listener) => {
            let what = format!("grant {fence}");
            let key = keys.first().map_or(&[][..], |key| key);
            messages::publish_bytes(ctx, listener.channel(), &what, &ticket.owner, key)
        }
        Delivery::Kept => Published::ToNobody,
    };
    if told == Published::ToSomebody {
        state.record_wait(granted.waited);
    }
    told
}

/// Tells a waiter that its wait is over.
pub(crate) fn end_wait(
    state: &mut State,
    ctx: &Context,
    delivery: &Delivery,
    owner: &[u8],
    key: &[u8],
) {
    match delivery {
        Delivery::Blocked { handle, .. } => state.answer(*handle, Outcome::Nil),
        Delivery::Notify(listener) => {
            messages::publish_bytes(ctx, listener.channel(), "timeout 0", owner, key);
        }
        Delivery::Kept => {}
    }
}

/// Ends a request without an outcome: nil for a blocked call, nothing else.
pub(crate) fn withdraw(state: &mut State, delivery: &Delivery) {
    if let Delivery::Blocked { handle, .. } = delivery {
        state.answer(*handle, Outcome::Nil);
    }
}

/// Ends a request because this server cannot grant it any more.
pub(crate) fn turn_away(state: &mut State, ctx: &Context, ended: &Ended) {
    if let Delivery::Blocked { handle, .. } = &ended.delivery {
        state.answer(*handle, Outcome::TurnedAway);
    } else {
        tell_withdrawn(ctx, ended);
    }
}

/// Tells a waiter that its request is withdrawn, if messages reach it.
pub(crate) fn tell_withdrawn(ctx: &Context, ended: &Ended) {
    if let Delivery::Notify(listener) = &ended.delivery {
        let channel = listener.channel();
        messages::publish_bytes(ctx, channel, "withdrawn 0", &ended.owner, &ended.key);
    }
}
