//! `RLOCK.MACQUIRE owner lease-ms numkeys key [key ...] [ONCE] [WAIT wait-ms]
//! [NOTIFY channel]`

use rlock_core::{Admission, Effect, Name, Request};

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
    syntax_all::{self, AcquireAll},
    transact::{self, Failure, Site},
};

pub(super) fn run(call: &Call<'_>) {
    if call.tells_keys(3) {
        return;
    }
    match syntax_all::acquire(call.arguments, settings().max_lease_ms.get()) {
        None => call.wrong_arity(),
        Some(Err(error)) => reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => acquire(call, &syntax),
    }
}

fn acquire(call: &Call<'_>, syntax: &AcquireAll<'_, Text>) {
    let (ctx, keys) = (call.ctx, syntax.keys);
    let Some(first) = keys.first() else { return };
    let request = match request(ctx, syntax.owner, syntax.lease_ms, &syntax.options) {
        Ok(request) => request,
        Err(text) => return ctx.reply_error(&text),
    };
    let done = call.change(*first, Some(*syntax.owner), |state, site| {
        let outcome = acquire_locks(state, site, keys, request)
            .inspect_err(|failure| count_refused(&mut state.locks, failure))?;
        confirm(state, site, &outcome);
        Ok(outcome)
    });
    answer(ctx, done, keys, *syntax.owner);
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
    let outcome = match step.map(|step| step.reply) {
        Err(refusal) => Err(Failure::Refused(refusal)),
        Ok(Admission::Granted(fence)) => Ok(Outcome::Granted(fence)),
        Ok(Admission::Busy) => Ok(Outcome::Busy),
        Ok(Admission::MustWait) => queue(state, site, &names, &opened, &request),
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
    if let Some(Effect::Withdrawn(delivery)) = superseded {
        transact::withdraw(state, &delivery);
    }
    Ok(handle.map_or(Outcome::Queued, |handle| Outcome::Blocked {
        handle,
        ticket,
    }))
}
