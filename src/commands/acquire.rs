//! `RLOCK.ACQUIRE key owner lease-ms [SHARED [LIMIT n [PERMITS k]]] [ONCE]
//! [WAIT wait-ms] [NOTIFY channel] [BIND grace-ms]`

use rlock_core::{Admission, Hold, Limits, Locks, Name, Request, Step, TicketId, Wait};

use super::Call;
use crate::{
    api::{Context, Text},
    args, blocked, reply,
    settings::settings,
    state::State,
    syntax::{self, Acquire, Options},
    transact::{Failure, Site, transact},
};

/// What has become of a request.
pub(super) enum Outcome {
    Granted(rlock_core::Fence),
    Busy,
    /// The outcome will be the reply to the blocked call.
    Blocked {
        handle: u64,
        ticket: TicketId,
    },
    /// The outcome will be a message.
    Queued,
}

pub(super) fn run(call: &Call<'_>) {
    match syntax::acquire(call.arguments, settings().max_lease_ms.get()) {
        None => call.wrong_arity(),
        Some(Err(error)) => reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => acquire(call, &syntax),
    }
}

fn acquire(call: &Call<'_>, syntax: &Acquire<'_, Text>) {
    let ctx = call.ctx;
    let mut request = match request(ctx, syntax.owner, syntax.lease_ms, &syntax.options) {
        Ok(request) => request,
        Err(text) => return ctx.reply_error(&text),
    };
    request.mode = syntax.mode;
    let done = call.change(*syntax.key, Some(*syntax.owner), |state, site| {
        request.session = request.session.or_else(|| state.session_for(site));
        let outcome = request_lock(state, site, &request)
            .inspect_err(|failure| count_refused(&mut state.locks, failure))?;
        confirm(state, site, &outcome);
        Ok(outcome)
    });
    answer(ctx, done, &[*syntax.key], *syntax.owner);
}

/// The request that a command makes, in exclusive mode.
pub(super) fn request<'a>(
    ctx: &Context,
    owner: &'a Text,
    lease_ms: u32,
    options: &Options<'a, Text>,
) -> Result<Request<'a>, String> {
    let mut session = None;
    if options.channel.is_some() || options.grace_ms.is_some() {
        let option = options.channel.map_or("BIND", |_| "NOTIFY");
        session = Some(ctx.session().ok_or_else(|| {
            format!("ERR {option} needs a connection, so it cannot be used in a script")
        })?);
    }
    if let Some(channel) = options.channel {
        may_notify(ctx, *channel)?;
    }
    let waits_for_reply = options.wait != Wait::No && options.channel.is_none();
    Ok(Request {
        owner: owner.bytes(),
        mode: rlock_core::Mode::Exclusive,
        lease_ms,
        once: options.once,
        wait: if waits_for_reply && !ctx.flags().may_block() {
            Wait::No
        } else {
            options.wait
        },
        session,
        channel: options.channel.map(Text::bytes),
        grace_ms: options.grace_ms,
    })
}

/// What may be queued now.
pub(super) fn limits() -> Limits {
    Limits {
        waiters_max: settings().max_waiters.get(),
        watches_max: settings().max_watches.get(),
        detects_deadlocks: settings().detects_deadlocks(),
    }
}

/// Counts a request that did not come as far as the core.
pub(super) const fn count_refused(locks: &mut Locks, failure: &Failure) {
    if matches!(
        failure,
        Failure::WrongType { .. } | Failure::Paused | Failure::Replica
    ) {
        locks.count_refused_acquire();
    }
}

/// Takes note of what the outcome means for answers that are still due.
pub(super) fn confirm(state: &mut State, site: &Site<'_>, outcome: &Outcome) {
    match outcome {
        Outcome::Blocked { handle, ticket } => drop(state.callers.insert(*handle, *ticket)),
        Outcome::Granted(_) => {
            let owner = site.caller.as_ref().map_or(&b""[..], Text::bytes);
            state.confirm(site.db, site.key.bytes(), owner);
        }
        Outcome::Busy | Outcome::Queued => {}
    }
}

/// Replies with what has become of a request for `keys`.
pub(super) fn answer(
    ctx: &Context,
    done: Option<Result<Outcome, Failure>>,
    keys: &[Text],
    owner: Text,
) {
    match done {
        Some(Ok(Outcome::Granted(fence))) => ctx.reply_number(fence.get()),
        Some(Ok(Outcome::Busy)) => ctx.reply_nil(),
        Some(Ok(Outcome::Queued)) => ctx.reply_status(c"WAITING"),
        Some(Ok(Outcome::Blocked { .. })) | None => {}
        Some(Err(failure)) => reply::failure(ctx, &failure, keys, Some(owner)),
    }
}

/// Whether messages may be sent to a channel for this caller.
fn may_notify(ctx: &Context, channel: Text) -> Result<(), String> {
    if !ctx.may_use_channel(channel) {
        let channel = args::Shown(channel.bytes());
        return Err(format!(
            "NOPERM the user has no permission for the channel {channel}"
        ));
    }
    Ok(())
}

fn request_lock(
    state: &mut State,
    site: &Site<'_>,
    request: &Request<'_>,
) -> Result<Outcome, Failure> {
    transact(state, site, |locks, name, hold, others| {
        let step = locks.acquire(site.now, name, hold, request, &limits(), others)?;
        match step.reply {
            Admission::Granted(fence) => Ok(step.with(Outcome::Granted(fence))),
            Admission::Busy => Ok(step.with(Outcome::Busy)),
            Admission::MustWait => queue(locks, site, name, hold, request),
        }
    })
}

/// Queues the request, once it is sure that the caller can be told.
fn queue(
    locks: &mut Locks,
    site: &Site<'_>,
    name: Name<'_>,
    hold: &Hold,
    request: &Request<'_>,
) -> Result<Step<Outcome>, Failure> {
    let (delivery, handle) = blocked::delivery(locks, site.ctx, request)?;
    let (ticket, superseded) = locks.enqueue(site.now, name, hold, request, delivery);
    let outcome = handle.map_or(Outcome::Queued, |handle| Outcome::Blocked {
        handle,
        ticket,
    });
    Ok(Step::telling(outcome, superseded))
}
