//! `RLOCK.ACQUIRE key owner lease-ms [ONCE] [WAIT wait-ms] [NOTIFY channel]`

use rlock_core::{
    Admission, Delivery, Hold, Limits, Locks, Mode, Name, Request, Step, TicketId, Wait,
};

use super::Call;
use crate::{
    api::{Context, Text},
    args, blocked, reply,
    settings::settings,
    state::State,
    syntax::{self, Acquire},
    transact::{Failure, Site, transact},
};

/// What has become of the request.
enum Outcome {
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
        Some(Ok(syntax)) => acquire(call, syntax),
    }
}

fn acquire(call: &Call<'_>, syntax: Acquire<'_, Text>) {
    let ctx = call.ctx;
    let session = match syntax.channel {
        Some(channel) => match may_notify(ctx, *channel) {
            Ok(()) => ctx.client_id(),
            Err(text) => return ctx.reply_error(&text),
        },
        None => 0,
    };
    let waits_for_reply = syntax.wait != Wait::No && syntax.channel.is_none();
    let wait = if waits_for_reply && !ctx.flags().may_block() {
        Wait::No
    } else {
        syntax.wait
    };
    let request = Request {
        owner: syntax.owner.bytes(),
        mode: Mode::Exclusive,
        lease_ms: syntax.lease_ms,
        once: syntax.once,
        wait,
        notify: syntax.channel.map(|channel| (session, channel.bytes())),
    };
    let done = call.change(*syntax.key, Some(*syntax.owner), |state, site| {
        let outcome = request_lock(state, site, &request).inspect_err(|failure| {
            if matches!(
                failure,
                Failure::WrongType | Failure::Paused | Failure::Replica
            ) {
                state.locks.count_refused_acquire();
            }
        })?;
        match outcome {
            Outcome::Blocked { handle, ticket } => drop(state.callers.insert(handle, ticket)),
            Outcome::Granted(_) => state.confirm(site.db, site.key.bytes(), request.owner),
            Outcome::Busy | Outcome::Queued => {}
        }
        Ok(outcome)
    });
    match done {
        Some(Ok(Outcome::Granted(fence))) => ctx.reply_number(fence.get()),
        Some(Ok(Outcome::Busy)) => ctx.reply_nil(),
        Some(Ok(Outcome::Queued)) => ctx.reply_status(c"WAITING"),
        Some(Ok(Outcome::Blocked { .. })) | None => {}
        Some(Err(failure)) => reply::failure(ctx, &failure, *syntax.key, Some(*syntax.owner)),
    }
}

/// Whether messages may be sent to a channel for this caller, who has to have
/// a connection that they end with.
fn may_notify(ctx: &Context, channel: Text) -> Result<(), String> {
    if ctx.flags().is_script() || !ctx.has_connection() {
        return Err("ERR NOTIFY needs a connection, so it cannot be used in a script".to_owned());
    }
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
    let limits = Limits {
        waiters_max: settings().max_waiters.get(),
        watches_max: settings().max_watches.get(),
    };
    transact(state, site, |locks, name, hold| {
        let step = locks.acquire(site.now, name, hold, request, &limits)?;
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
    let (delivery, handle) = match request.notify {
        Some((session, channel)) => (locks.by_message(session, channel), None),
        None => {
            let handle = blocked::block(site.ctx).ok_or(Failure::CannotBlock)?;
            (
                Delivery::Blocked {
                    session: site.ctx.client_id(),
                    handle,
                },
                Some(handle),
            )
        }
    };
    let (ticket, superseded) = locks.enqueue(site.now, name, hold, request, delivery);
    let outcome = handle.map_or(Outcome::Queued, |handle| Outcome::Blocked {
        handle,
        ticket,
    });
    Ok(Step::telling(outcome, superseded))
}
