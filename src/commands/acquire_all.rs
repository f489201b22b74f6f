//! `RLOCK.MACQUIRE`

use rlock_core::{
    Admission, Effect, Name, Request,
    syntax::{self, Acquire},
};

use super::{
    Call,
    acquire::{Outcome, answer, confirm, count_refused, limits, request},
};
use crate::{
    all::OpenedAll,
    api::Text,
    blocked,
    others::Others,
    reply,
    settings::settings,
    state::State,
    transact::{self, Failure, Site},
};

pub(super) fn run(call: &Call<'_>) {
    if call.tells_keys(3) {
        return;
    }
    match syntax::acquire_all(call.arguments, settings().max_lease_ms.get()) {
        None => call.wrong_arity(),
        Some(Err(error)) => reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => acquire(call, syntax),
    }
}

fn acquire(call: &Call<'_>, syntax: Acquire<'_, Text>) {
    let (ctx, keys, owner) = (call.ctx, syntax.keys, *syntax.owner);
    let Some(first) = keys.first() else { return };
    let request = match request(ctx, syntax) {
        Ok(request) => request,
        Err(text) => return ctx.reply_error(&text),
    };
    let done = call.change(*first, Some(owner), |state, site| {
        let outcome = acquire_locks(state, site, keys, request)
            .inspect_err(|failure| count_refused(&mut state.locks, failure))?;
        confirm(state, site, &outcome);
        Ok(outcome)
    });
    answer(ctx, done, keys, owner);
}

fn acquire_locks(
    state: &mut State,
    site: &Site<'_>,
    keys: &[Text],
    mut request: Request<'_>,
) -> Result<Outcome, Failure> {
    let mut opened = OpenedAll::new(state, site, keys)?;
    request.session = request.session.or_else(|| state.session_for(site));
    let names: Vec<_> = keys
        .iter()
        .map(|key| Name {
            db: site.db,
            key: key.bytes(),
        })
        .collect();
    let (now, holds) = (site.now, &mut opened.holds);
    let others = Others::new(site, &state.known);
    let locks = &mut state.locks;
    let step = locks.acquire_all(now, &names, holds, &request, &limits(), &others);
    let outcome = match step {
        Err(refusal) => Err(Failure::Refused(refusal)),
        Ok(step) => {
            end_earlier(state, step.effects);
            match step.reply {
                Admission::Granted(fence) => Ok(Outcome::Granted(fence)),
                Admission::Busy => Ok(Outcome::Busy),
                Admission::MustWait => queue(state, site, &names, &opened, &request),
            }
        }
    };
    opened.save(state);
    outcome
}

/// Queues the request, once it is sure that the caller can be told.
fn queue(
    state: &mut State,
    site: &Site<'_>,
    names: &[Name<'_>],
    opened: &OpenedAll<'_>,
    request: &Request<'_>,
) -> Result<Outcome, Failure> {
    let (delivery, handle) = blocked::delivery(&state.locks, site.ctx, request)?;
    let locks = &mut state.locks;
    let queued = locks.enqueue_all(site.now, names, &opened.holds, request, &delivery);
    let Some((ticket, superseded)) = queued else {
        return Ok(Outcome::Busy);
    };
    end_earlier(state, superseded);
    Ok(handle.map_or(Outcome::Queued, |handle| Outcome::Blocked {
        handle,
        ticket,
    }))
}

/// Ends the earlier call of an owner that has asked again.
fn end_earlier(state: &mut State, effects: impl IntoIterator<Item = Effect>) {
    for effect in effects {
        if let Effect::Withdrawn(delivery) = effect {
            transact::withdraw(state, &delivery);
        }
    }
}
