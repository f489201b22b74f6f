//! `RLOCK.ACQUIRE` and `RLOCK.MACQUIRE`

use rlock_core::{
    Admission, ChannelKind, Effect, Grace, Hold, Limits, Locks, Mode, Name, Request, Setting, Step,
    TicketId, Wait,
    syntax::{self, Acquire, NamedChannel, Shown},
};

use super::Call;
use crate::{
    api::{Context, OwnedText, Text},
    clock, delivery,
    operation::{Failure, Operation},
    settings,
    state::State,
    transact::{LoadedAll, OtherHolders, Pending, change, finish, finish_queued},
};

/// The outcome of a request.
enum Outcome {
    Granted(rlock_core::Fence),
    Busy,
    /// It waits in the queue. The outcome will be a message, or the reply to
    /// the blocked call with that handle.
    Queued(TicketId, Option<u64>),
}

pub(super) fn run(call: &Call<'_>) -> Option<()> {
    let parsed = syntax::acquire(call.arguments, settings::number(Setting::MaxLeaseMs));
    ask(call, call.parsed(parsed)?, |state, op, _, mut request| {
        request.session = request.session.or_else(|| state.session_for(op));
        request_lock(state, op, &request)
    })
}

pub(super) fn run_all(call: &Call<'_>) -> Option<()> {
    let parsed = syntax::acquire_all(call.arguments, settings::number(Setting::MaxLeaseMs));
    ask(call, call.parsed(parsed)?, request_locks)
}

/// Acquires by `act`, and replies with the outcome.
fn ask<'a>(
    call: &Call<'_>,
    syntax: Acquire<'a, Text<'a>>,
    act: impl FnOnce(&mut State, &Operation<'_>, &[Text], Request<'a>) -> Result<Outcome, Failure>,
) -> Option<()> {
    let (ctx, keys, owner) = (call.ctx, syntax.keys, *syntax.owner);
    let request = call.accepted(request(ctx, syntax))?;
    let outcome = call.change(keys, Some(owner), |state, op| {
        let outcome = act(state, op, keys, request);
        match &outcome {
            Ok(outcome) => record(state, op, outcome),
            Err(failure) => count_refused(&mut state.locks, failure),
        }
        outcome
    })?;
    match outcome {
        Outcome::Granted(fence) => ctx.reply_number(fence.get()),
        Outcome::Busy => ctx.reply_nil(),
        Outcome::Queued(_, None) => ctx.reply_status(c"WAITING"),
        Outcome::Queued(_, Some(_)) => {}
    }
    Some(())
}

/// The request of a command, as far as this connection is allowed to make it.
fn request<'a>(ctx: &Context, syntax: Acquire<'a, Text>) -> Result<Request<'a>, String> {
    let mut request = syntax.request;
    request.session = connection(ctx, syntax.channel, request.options.bind)?;
    if request.channel.is_none() && request.wait != Wait::No && !ctx.flags().may_block() {
        (request.wait, request.options.keep) = (Wait::No, None);
    }
    Ok(request)
}

/// The connection to notify, or to bind the hold to, if a command asks for
/// either and may have it.
pub(super) fn connection(
    ctx: &Context,
    channel: Option<NamedChannel<'_, Text>>,
    bind: Option<Grace>,
) -> Result<Option<u64>, String> {
    if channel.is_none() && bind.is_none() {
        return Ok(None);
    }
    let option = match channel.map(|it| it.kind) {
        Some(ChannelKind::Plain) => "NOTIFY",
        Some(ChannelKind::Sharded) => "SNOTIFY",
        None => "BIND",
    };
    let session = ctx.session().ok_or_else(|| {
        format!("ERR {option} needs a connection, so it cannot be used in a script")
    })?;
    if let Some(NamedChannel { kind, word }) = channel {
        may_notify(ctx, *word, kind)?;
    }
    Ok(Some(session))
}

/// What may be granted and queued now.
fn limits(state: &mut State, op: &Operation<'_>, mode: Mode) -> Limits {
    let shared_max = settings::number(Setting::MaxSharedHolders);
    let mut shared_elsewhere = 0;
    if mode != Mode::Exclusive {
        if state.shared_cache.holders() as u64 >= shared_max {
            state.shared_cache.drop_ended(op.now);
        }
        shared_elsewhere = state.shared_cache.holders_except(op.name()) as u64;
    }
    Limits {
        waiters_max: settings::number(Setting::MaxWaiters),
        watches_max: settings::number(Setting::MaxWatches),
        shared_max,
        shared_elsewhere,
        detects_deadlocks: settings::is_on(Setting::DeadlockDetection),
    }
}

/// Counts a request that did not reach the core.
const fn count_refused(locks: &mut Locks, failure: &Failure) {
    if matches!(
        failure,
        Failure::WrongType { .. } | Failure::Paused | Failure::Replica
    ) {
        locks.count_refused_acquire();
    }
}

/// Records what the outcome means for replies that are still due.
fn record(state: &mut State, op: &Operation<'_>, outcome: &Outcome) {
    match outcome {
        Outcome::Queued(ticket, Some(handle)) => state.deliveries.block(*handle, *ticket),
        Outcome::Granted(_) => {
            let owner = op.caller.as_ref().map_or(&b""[..], Text::bytes);
            state
                .deliveries
                .grants
                .confirm(op.db, op.key.bytes(), owner);
        }
        Outcome::Busy | Outcome::Queued(_, None) => {}
    }
}

/// Whether messages may be sent to a channel for this caller.
fn may_notify(ctx: &Context, channel: Text, kind: ChannelKind) -> Result<(), String> {
    let shown = Shown(channel.bytes());
    if !ctx.may_use_channel(channel) {
        return Err(format!(
            "NOPERM the user has no permission for the channel {shown}"
        ));
    }
    if kind == ChannelKind::Sharded && ctx.flags().is_cluster() && !ctx.serves_channel(channel) {
        return Err(format!(
            "ERR SNOTIFY channel is {shown}, must be one whose slot this node serves"
        ));
    }
    Ok(())
}

fn request_lock(
    state: &mut State,
    op: &Operation<'_>,
    request: &Request<'_>,
) -> Result<Outcome, Failure> {
    let limits = limits(state, op, request.options.mode);
    let mut pending = Pending::default();
    let outcome = change(state, op, &mut pending, |locks, name, hold, others| {
        let step = locks.acquire(op.now, name, hold, request, &limits, others)?;
        match step.reply {
            Admission::Granted(fence) => Ok(step.with(Outcome::Granted(fence))),
            Admission::Busy => Ok(step.with(Outcome::Busy)),
            Admission::MustWait => queue(locks, op, name, hold, request),
        }
    });
    if let Ok(Outcome::Queued(..)) = outcome {
        finish_queued(state, op, &pending);
    } else {
        finish(state, op, pending);
    }
    outcome
}

/// The request with the user who may take its places, and for whom they count.
fn of_user<'a>(
    locks: &Locks,
    names: &[Name<'_>],
    request: &Request<'a>,
    user: Option<&'a OwnedText>,
) -> Result<Request<'a>, Failure> {
    let user = user.map(OwnedText::bytes);
    let request = Request { user, ..*request };
    locks.check_user(names, &request, settings::number(Setting::MaxPlacesPerUser))?;
    Ok(request)
}

/// Queues the request once the caller can certainly be reached.
fn queue(
    locks: &mut Locks,
    op: &Operation<'_>,
    name: Name<'_>,
    hold: &Hold,
    request: &Request<'_>,
) -> Result<Step<Outcome>, Failure> {
    let user = op.ctx.user_name();
    let request = &of_user(locks, &[name], request, user.as_ref())?;
    let (delivery, handle) = delivery::of(locks, op.ctx, request)?;
    let (ticket, superseded) = locks.enqueue(clock::latest(), name, hold, request, delivery);
    let outcome = Outcome::Queued(ticket, handle);
    Ok(Step::with_effect(outcome, superseded))
}

fn request_locks(
    state: &mut State,
    op: &Operation<'_>,
    keys: &[Text],
    mut request: Request<'_>,
) -> Result<Outcome, Failure> {
    let mut loaded = LoadedAll::load(state, op, keys)?;
    let session = request.session;
    request.session = session.or_else(|| state.session_for_any(op, keys));
    let limits = limits(state, op, request.options.mode);
    let (names, holds, read) = loaded.parts();
    let others = OtherHolders::new(op, &read, &state.shared_cache);
    let locks = &mut state.locks;
    let step = locks.acquire_all(op.now, names, holds, &request, &limits, &others);
    let outcome = match step {
        Err(refusal) => Err(Failure::Refused(refusal)),
        Ok(step) => {
            end_earlier(state, step.effects);
            match step.reply {
                Admission::Granted(fence) => Ok(Outcome::Granted(fence)),
                Admission::Busy => Ok(Outcome::Busy),
                Admission::MustWait => queue_all(state, op, &loaded, &request),
            }
        }
    };
    loaded.save(state);
    outcome
}

/// Queues the request once the caller can certainly be reached.
fn queue_all(
    state: &mut State,
    op: &Operation<'_>,
    loaded: &LoadedAll<'_>,
    request: &Request<'_>,
) -> Result<Outcome, Failure> {
    let user = op.ctx.user_name();
    let request = &of_user(&state.locks, &loaded.names, request, user.as_ref())?;
    let (delivery, handle) = delivery::of(&mut state.locks, op.ctx, request)?;
    let (names, holds, locks) = (&loaded.names, &loaded.holds, &mut state.locks);
    let queued = locks.enqueue_all(clock::latest(), names, holds, request, &delivery);
    let Some((ticket, superseded)) = queued else {
        return Ok(Outcome::Busy);
    };
    end_earlier(state, superseded);
    Ok(Outcome::Queued(ticket, handle))
}

/// Ends the earlier call of an owner that asks again.
fn end_earlier(state: &mut State, effects: impl IntoIterator<Item = Effect>) {
    for effect in effects {
        if let Effect::Withdrawn(delivery) = effect {
            state.deliveries.withdraw(&delivery);
        }
    }
}
