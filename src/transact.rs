//! The one path that every change of a lock takes: load, settle, do, tell,
//! save.

use std::collections::VecDeque;

use rlock_core::{Announce, Effect, Hold, Locks, Name, Step};

use crate::{
    api::{Key, OwnedText, Published, Text},
    delivery, grant_many,
    notes::Changing,
    open_many::OpenedMany,
    opened::{Message, Opened, Pending},
    other_holders::OtherHolders,
    site::{Failure, Site},
    state::State,
};

/// Changes a lock by `act`, and tells what there is to be told.
pub(crate) fn transact<R>(
    state: &mut State,
    site: &Site<'_>,
    act: impl FnOnce(&mut Locks, Name<'_>, &mut Hold, &OtherHolders<'_>) -> Result<Step<R>, Failure>,
) -> Result<R, Failure> {
    let mut pending = Pending::default();
    let done = change(state, site, &mut pending, act);
    finish(state, site, pending);
    done
}

/// Changes a lock by `act`; the rest is left to [`finish`].
///
/// All that was due before is done before `act` judges: it is never followed
/// by a grant that its caller should have seen.
pub(crate) fn change<'a, R>(
    state: &mut State,
    site: &Site<'a>,
    pending: &mut Pending<'a>,
    act: impl FnOnce(&mut Locks, Name<'_>, &mut Hold, &OtherHolders<'_>) -> Result<Step<R>, Failure>,
) -> Result<R, Failure> {
    state.check_writable(site)?;
    let mut settled = Settled::open(state, site);
    if state.locks.has_ready() {
        // This lock may be one of those that a request for several waits for.
        settled.close(state, site, pending);
        grant_ready(state, site, pending);
        settled = Settled::open(state, site);
    }
    let done = match settled.opened.hold {
        Hold::NoLock => Err(Failure::WrongType { key: 0 }),
        Hold::Free | Hold::Exclusive { .. } | Hold::Shared(_) => {
            let others = OtherHolders::new(site, &state.known);
            let hold = &mut settled.opened.hold;
            act(&mut state.locks, site.name(), hold, &others)
        }
    };
    let done = done.map(|step| {
        settled.perform(state, site, step.effects, step.announce);
        step.reply
    });
    settled.close(state, site, pending);
    done
}

/// Grants what changes have made ready, and then publishes the unlock messages
/// of the locks that nobody has taken.
pub(crate) fn finish(state: &mut State, site: &Site<'_>, mut pending: Pending<'_>) {
    grant_ready(state, site, &mut pending);
    announce(site, &pending);
}

/// As [`finish`] for a caller that has been queued. Nothing is granted before
/// it has been told so: what is ready is left to the timer.
pub(crate) fn finish_queued(state: &mut State, site: &Site<'_>, pending: &Pending<'_>) {
    state.locks.settle_ready_later();
    announce(site, pending);
}

/// Grants the requests for several keys whose turn has come with each: a lock
/// that was freed may be one of theirs.
fn grant_ready(state: &mut State, site: &Site<'_>, pending: &mut Pending<'_>) {
    while !(pending.granted && state.locks.turn_is_over())
        && let Some(passed_over) = grant_many::grant_next(state, site)
    {
        settle_many(state, site, pending, &passed_over);
        pending.granted = true;
    }
    // Each may have a thousand keys: what this turn has no time for comes later.
    state.locks.settle_ready_later();
}

fn announce(site: &Site<'_>, pending: &Pending<'_>) {
    for (key, message) in &pending.messages {
        let taken = || pending.granted && Key::open_to_read(site.ctx, key.text()).is_some();
        if *message == Message::Due || (*message == Message::DueWhileFree && !taken()) {
            delivery::announce(site.ctx, key.text());
        }
    }
}

/// Settles a lock because it was time to, or because its key has changed.
pub(crate) fn settle(state: &mut State, site: &Site<'_>) {
    let mut pending = Pending::default();
    settle_one(state, site, &mut pending);
    finish(state, site, pending);
}

/// Settles a lock; the rest is left to [`finish`]. A key that holds no lock is
/// left alone, and its waiters wait on.
fn settle_one<'a>(state: &mut State, site: &Site<'a>, pending: &mut Pending<'a>) {
    if state.check_writable(site).is_ok() {
        Settled::open(state, site).close(state, site, pending);
    }
}

/// Hands the locks of a request that was passed over to those behind it.
/// All are due, so what there is no time for is done later.
fn settle_many(state: &mut State, site: &Site<'_>, pending: &mut Pending<'_>, keys: &[OwnedText]) {
    let mut more = Pending::default();
    for key in keys {
        if state.locks.turn_is_over() {
            break;
        }
        let site = Site {
            caller: None,
            key: key.text(),
            ..*site
        };
        settle_one(state, &site, &mut more);
    }
    let kept = |key: &[u8]| OwnedText::new(key).into();
    let more = more.messages.iter();
    let more = more.map(|(key, message)| (kept(key.bytes()), *message));
    pending.messages.extend(more);
}

/// A lock whose key is open, and that has been settled.
struct Settled<'a> {
    opened: Opened<'a>,
    announce: Announce,
    changing: Changing,
}

impl<'a> Settled<'a> {
    fn open(state: &mut State, site: &Site<'a>) -> Self {
        let changing = Changing::new(&[site.key]);
        let opened = Opened::new(&mut state.known, site);
        let mut settled = Self {
            opened,
            announce: Announce::No,
            changing,
        };
        if state.locks.is_contended(site.name()) {
            let hold = &mut settled.opened.hold;
            let step = state.locks.settle(site.now, site.name(), hold);
            settled.perform(state, site, step.effects, step.announce);
        }
        settled
    }

    /// Tells those whom an operation concerns.
    fn perform(
        &mut self,
        state: &mut State,
        site: &Site<'_>,
        effects: Vec<Effect>,
        announce: Announce,
    ) {
        let announce = self.announce.max(announce);
        self.announce = perform(state, site, &mut self.opened.hold, effects, announce);
    }

    /// Writes down what has changed.
    fn close(self, state: &mut State, site: &Site<'a>, pending: &mut Pending<'a>) {
        let (events, message) = self.opened.save(&mut state.known, self.announce);
        drop(self.changing);
        events.emit(site.ctx, site.key);
        if message != Message::No {
            pending.messages.push((site.key.into(), message));
        }
    }
}

/// Opens several locks to change them together, having settled those with
/// waiters.
///
/// # Errors
///
/// One of the keys holds no lock; then nothing has changed but what had to
/// without being asked.
pub(crate) fn open_many<'a>(
    state: &mut State,
    site: &Site<'a>,
    keys: &[Text<'a>],
) -> Result<OpenedMany<'a>, Failure> {
    state.check_writable(site)?;
    for key in keys {
        let site = Site { key: *key, ..*site };
        if state.locks.is_contended(site.name()) {
            settle(state, &site);
        }
    }
    let opened = OpenedMany::open(state, site, keys);
    match opened.no_lock() {
        None => Ok(opened),
        Some(key) => {
            opened.save(state);
            Err(Failure::WrongType { key })
        }
    }
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
                let told = state.deliveries.grant(site.ctx, site.db, keys, &granted);
                if told == Published::ToSomebody {
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
                delivery::publish_lost(site.ctx, &listener, fence, &owner, site.key.bytes());
            }
            Effect::WaitEnded { owner, delivery } => {
                let deliveries = &mut state.deliveries;
                deliveries.end_wait(site.ctx, &delivery, &owner, site.key.bytes());
            }
            Effect::Withdrawn(delivery) => state.deliveries.withdraw(&delivery),
            Effect::Offer => {
                if delivery::announce(site.ctx, site.key) == Published::ToNobody {
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
