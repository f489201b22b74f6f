//! `RLOCK.INFO key`

use rlock_core::{Hold, Mode, Name, Timestamp, WaiterView};

use super::Call;
use crate::{
    api::{Context, Key},
    clock, reply, state,
    store::{self, StoredHolder},
    transact::Failure,
};

/// How many waiters are shown.
const WAITERS_SHOWN: usize = 100;

pub(super) fn run(call: &Call<'_>) {
    let ctx = call.ctx;
    let [_, key] = call.arguments else {
        return call.wrong_arity();
    };
    let now = clock::now();
    let (hold, holder) = match Key::open_to_read(ctx, *key) {
        Some(key) => (store::load(&key, None), store::holder(&key)),
        None => (Hold::Free, None),
    };
    if hold == Hold::NoLock {
        return reply::failure(ctx, &Failure::WrongType, *key, None);
    }
    let holder = holder.filter(|_| hold.deadline().is_some_and(|it| !it.has_passed(now)));
    ctx.reply_map(5);
    reply_hold(ctx, &hold, holder.as_ref(), now);
    let name = Name {
        db: ctx.db(),
        key: key.bytes(),
    };
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
}

fn reply_hold(ctx: &Context, hold: &Hold, holder: Option<&StoredHolder>, now: Timestamp) {
    let fence = hold.fence().filter(|_| holder.is_some());
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(if holder.is_some() {
        b"exclusive"
    } else {
        b"free"
    });
    ctx.reply_bytes(b"fence");
    reply_number_or_nil(ctx, fence.map(rlock_core::Fence::get));
    ctx.reply_bytes(b"holders");
    ctx.reply_array(usize::from(holder.is_some()));
    let Some(holder) = holder else { return };
    ctx.reply_map(6);
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(&holder.owner);
    ctx.reply_bytes(b"count");
    ctx.reply_number(holder.count.into());
    ctx.reply_bytes(b"permits");
    ctx.reply_number(1);
    ctx.reply_bytes(b"lease-left-ms");
    ctx.reply_number(
        hold.deadline()
            .map_or(0, |deadline| deadline.millis_from(now)),
    );
    ctx.reply_bytes(b"fence");
    reply_number_or_nil(ctx, fence.map(rlock_core::Fence::get));
    ctx.reply_bytes(b"bound");
    ctx.reply_number(0);
}

fn reply_waiter(ctx: &Context, waiter: &WaiterView<'_>) {
    ctx.reply_map(5);
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(waiter.owner);
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(match waiter.mode {
        Mode::Exclusive => b"exclusive",
    });
    ctx.reply_bytes(b"waited-ms");
    ctx.reply_number(u64::try_from(waiter.waited.as_millis()).unwrap_or(u64::MAX));
    ctx.reply_bytes(b"wait-left-ms");
    reply_number_or_nil(ctx, waiter.wait_left_ms);
    ctx.reply_bytes(b"client-id");
    ctx.reply_number(waiter.session);
}

fn reply_number_or_nil(ctx: &Context, number: Option<u64>) {
    match number {
        Some(number) => ctx.reply_number(number),
        None => ctx.reply_nil(),
    }
}
