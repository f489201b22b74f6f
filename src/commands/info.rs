//! `RLOCK.INFO key`

use rlock_core::{Fence, Holder, Mode, Name, Timestamp, WaiterView, syntax};

use super::{Call, reply};
use crate::{
    api::{Context, Key},
    clock,
    operation::Failure,
    state,
    store::{self, Holding},
};

/// How many waiters are shown.
const WAITERS_SHOWN: usize = 100;

pub(super) fn run(call: &Call<'_>) -> Option<()> {
    let ctx = call.ctx;
    let key = call.parsed(syntax::key(call.arguments))?;
    let now = clock::now();
    let opened = Key::open_to_read(ctx, *key);
    let holding = opened.map_or_else(
        || Some(Holding::default()),
        |opened| store::holders(&opened, now, &|| false),
    );
    let Some(holding) = holding else {
        reply::failure(ctx, &Failure::WrongType { key: 0 }, &[*key], None);
        return None;
    };
    let name = Name {
        db: ctx.db(),
        key: key.bytes(),
    };
    ctx.reply_map(5);
    reply_hold(ctx, name, &holding, now);
    let seen = state::look(|state| {
        let locks = &state.locks;
        ctx.reply_bytes(b"queued");
        ctx.reply_number(locks.queued(name).into());
        ctx.reply_bytes(b"waiters");
        let waiters: Vec<_> = locks.waiters(now, name).take(WAITERS_SHOWN).collect();
        ctx.reply_array(waiters.len());
        waiters.iter().for_each(|waiter| reply_waiter(ctx, waiter));
    });
    if seen.is_none() {
        ctx.reply_bytes(b"queued");
        ctx.reply_nil();
        ctx.reply_bytes(b"waiters");
        ctx.reply_array(0);
    }
    Some(())
}

fn reply_hold(ctx: &Context, name: Name<'_>, holding: &Holding, now: Timestamp) {
    let holders = &holding.holders;
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(match (holders.is_empty(), holding.is_shared) {
        (true, _) => b"free",
        (false, true) => b"shared",
        (false, false) => b"exclusive",
    });
    ctx.reply_bytes(b"fence");
    let fences = holders.iter().filter_map(|(_, holder)| holder.fence);
    reply_number_or_nil(ctx, fences.max().map(Fence::get));
    ctx.reply_bytes(b"holders");
    ctx.reply_array(holders.len());
    for (owner, holder) in holders {
        let bound = state::look(|state| state.locks.is_bound(name, owner));
        reply_holder(ctx, owner, holder, bound == Some(true), now);
    }
}

fn reply_holder(ctx: &Context, owner: &[u8], holder: &Holder, bound: bool, now: Timestamp) {
    ctx.reply_map(6);
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(owner);
    ctx.reply_bytes(b"count");
    ctx.reply_number(holder.count.into());
    ctx.reply_bytes(b"permits");
    ctx.reply_number(holder.permits.into());
    ctx.reply_bytes(b"lease-left-ms");
    ctx.reply_number(holder.deadline.millis_from(now));
    ctx.reply_bytes(b"fence");
    reply_number_or_nil(ctx, holder.fence.map(Fence::get));
    ctx.reply_bytes(b"bound");
    ctx.reply_number(bound.into());
}

fn reply_waiter(ctx: &Context, waiter: &WaiterView<'_>) {
    ctx.reply_map(6);
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(waiter.owner);
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(match waiter.mode {
        Mode::Exclusive => &b"exclusive"[..],
        Mode::Shared { .. } => b"shared",
    });
    ctx.reply_bytes(b"waited-ms");
    ctx.reply_number(u64::try_from(waiter.waited.as_millis()).unwrap_or(u64::MAX));
    ctx.reply_bytes(b"wait-left-ms");
    reply_number_or_nil(ctx, waiter.wait_left_ms);
    ctx.reply_bytes(b"client-id");
    reply_number_or_nil(ctx, waiter.session);
    ctx.reply_bytes(b"kept-left-ms");
    reply_number_or_nil(ctx, waiter.kept_left_ms);
}

fn reply_number_or_nil(ctx: &Context, number: Option<u64>) {
    match number {
        Some(number) => ctx.reply_number(number),
        None => ctx.reply_nil(),
    }
}
