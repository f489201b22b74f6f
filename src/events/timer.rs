//! The timer's work: everything that is due, in pieces.

use std::time::Instant;

use rlock_core::{Due, Effect, Name, Timestamp};

use crate::{
    api::{Context, OwnedText},
    delivery::Grant,
    operation::Operation,
    state::{self, State, TURN_MAX},
    transact::{self, Pending, change, transact},
};

/// The pause before the next attempt while nothing may be written, in
/// milliseconds.
const PAUSE_MS: u64 = 10;

/// Does the work that is due, as much as one turn allows.
pub(super) fn run(ctx: &Context) {
    state::with(ctx, |state, now| {
        state.timer.fired();
        let flags = ctx.flags();
        if flags.is_loading() || ctx.avoids_writes() {
            // Due work stays due; retry it later.
            return state.timer.postpone(ctx, now, now.plus_millis(PAUSE_MS));
        }
        if flags.is_master() {
            do_all_due(state, ctx, now);
        } else {
            demote(state, ctx);
        }
    });
}

/// Passes on one undelivered grant and settles one due lock at a time, so that
/// neither waits for all of the other.
fn do_all_due(state: &mut State, ctx: &Context, now: Timestamp) {
    let began = Instant::now();
    while !is_over(state, began) {
        let undelivered = state.deliveries.grants.next_undelivered();
        let due = state.locks.next_due(now);
        if undelivered.is_none() && due.is_none() {
            break;
        }
        if let Some(grant) = undelivered {
            take_back(state, ctx, now, &grant);
        }
        if let Some(due) = due {
            do_due(state, ctx, now, due);
        }
    }
}

/// Whether a turn that began at `began` has used its time.
fn is_over(state: &State, began: Instant) -> bool {
    state.locks.turn_is_over() || began.elapsed() > TURN_MAX
}

/// Passes on a grant that did not reach its owner.
fn take_back(state: &mut State, ctx: &Context, now: Timestamp, grant: &Grant) {
    if !ctx.select_db(grant.db) {
        return;
    }
    let owner = OwnedText::new(grant.owner());
    let keys: Vec<_> = grant.keys.iter().map(|key| OwnedText::new(key)).collect();
    let (mut taken, mut pending) = (false, Pending::default());
    let mut last = None;
    for key in &keys {
        let op = Operation::new(ctx, now, (grant.db, key.text()), Some(owner.text()));
        if state.is_ours(&op) {
            let done = change(state, &op, &mut pending, |locks, name, hold, _| {
                let (owner, fence) = (grant.owner(), grant.granted.fence);
                let mut step = locks.undeliver(now, name, hold, owner, fence);
                let listener = grant.granted.ticket.delivery.listener().cloned();
                if let Some(listener) = listener.filter(|_| step.reply) {
                    // Another subscriber may have received the message.
                    let owner = owner.into();
                    let lost = Effect::Lost {
                        owner,
                        fence,
                        listener,
                    };
                    step.effects.insert(0, lost);
                }
                Ok(step)
            });
            taken |= matches!(done, Ok(true));
        }
        last = Some(op);
    }
    if let Some(op) = last {
        transact::finish(state, &op, pending);
    }
    if taken {
        state.locks.count_undelivered();
        let names = grant.keys.iter().map(|key| Name { db: grant.db, key });
        let names: Vec<_> = names.collect();
        state.locks.keep_place(now, &names, &grant.granted);
    }
}

fn do_due(state: &mut State, ctx: &Context, now: Timestamp, due: Due) {
    match due {
        Due::WaitEnd(ticket) => {
            if let Some(ended) = state.locks.end_wait(now, ticket) {
                let (owner, key) = (&ended.owner, &ended.key);
                state.deliveries.end_wait(ctx, &ended.delivery, owner, key);
            }
        }
        Due::TurnAway(ended) => state.deliveries.turn_away(ctx, &ended),
        Due::Withdraw(ended) => state.deliveries.withdraw_by_others(ctx, &ended),
        Due::Unbind { db, key, owner } => {
            let (key, owner) = (OwnedText::new(&key), OwnedText::new(&owner));
            let op = Operation::new(ctx, now, (db, key.text()), Some(owner.text()));
            if ctx.select_db(db) && state.is_ours(&op) {
                // A key without a lock has no hold to cut.
                let _ = transact(state, &op, |locks, name, hold, _| {
                    Ok(locks.unbind(now, name, hold, owner.bytes()))
                });
            }
        }
        Due::Settle { db, key } => {
            let key = OwnedText::new(&key);
            let op = Operation::new(ctx, now, (db, key.text()), None);
            if ctx.select_db(db) && state.is_ours(&op) {
                transact::settle(state, &op);
            }
        }
    }
}

/// A replica grants nothing, so it notifies those who wait for a message. The
/// server has already disconnected blocked clients.
fn demote(state: &mut State, ctx: &Context) {
    state.deliveries.grants.forget_undelivered();
    while !state.locks.turn_is_over()
        && let Some(ended) = state.locks.next_stale()
    {
        state.deliveries.turn_away(ctx, &ended);
    }
}
