//! The one path that every change of a lock takes: load, settle, do, tell,
//! save.

use std::collections::VecDeque;

use rlock_core::{Announce, Effect, Hold, Locks, Name, Step};

use crate::{
    api::{Key, OwnedText, Published, Text},
    grant_many, messages,
    notes::Changing,
    open_many::OpenedMany,
    opened::{Message, Opened, Pending},
    other_holders::OtherHolders,
    serving,
    site::{Failure, Site},
    state::State,
    tell::{end_wait, tell_grant, withdraw},
};

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
    let mut granted = false;
    while let Some(passed_over) = grant_many::grant_next(state, site) {
        settle_many(state, site, &mut pending, &passed_over);
        granted = true;
    }
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
    serving::check_writable(state, site)?;
    let changing = Changing::new(site.key);
    let mut opened = Opened::new(&mut state.known, site);
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
    let (events, message) = opened.save(&mut state.known, announce);
    drop(changing);
    events.emit(site.ctx, site.key);
    if message != Message::No {
        pending.push((site.key.into(), message));
    }
    done
}

/// Settles a lock because it was time to, or because its key has changed.
pub(crate) fn settle(state: &mut State, site: &Site<'_>) {
    // A key that holds no lock is left alone, and its waiters wait on.
    let _ = transact(state, site, |locks, name, hold, _| {
        Ok(locks.settle(site.now, name, hold))
    });
}

/// Hands the locks of a request that was passed over to those behind it.
/// All are due, so what there is no time for is done later.
fn settle_many(state: &mut State, site: &Site<'_>, pending: &mut Pending<'_>, keys: &[OwnedText]) {
    let mut more = Pending::new();
    for key in keys {
        if state.locks.turn_is_over() {
            break;
        }
        let site = Site {
            caller: None,
            key: key.text(),
            ..*site
        };
        // A key that holds no lock is left alone, and its waiters wait on.
        let _ = change(state, &site, &mut more, |locks, name, hold, _| {
            Ok(locks.settle(site.now, name, hold))
        });
    }
    let kept = |key: &[u8]| OwnedText::new(key).into();
    pending.extend(
        more.iter()
            .map(|(key, message)| (kept(key.bytes()), *message)),
    );
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
    serving::check_writable(state, site)?;
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
