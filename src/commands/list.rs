//! `RLOCK.LIST [COUNT n]`

use super::{Call, reply};
use crate::{
    api::{Context, Key, OwnedText},
    clock, state, store,
};
use rlock_core::{ContendedView, Name, Timestamp, syntax};

pub(super) fn run(call: &Call<'_>) -> Option<()> {
    let count = call.parsed(syntax::list(call.arguments))?;
    let (ctx, now) = (call.ctx, clock::now());
    let seen = state::look(|state| {
        let listed = state.locks.most_contended(now, ctx.db()).take(count);
        let listed: Vec<_> = listed.collect();
        ctx.reply_array(listed.len());
        for lock in listed {
            reply_lock(ctx, state, now, &lock);
        }
    });
    if seen.is_none() {
        reply::busy(ctx);
    }
    seen
}

fn reply_lock(ctx: &Context, state: &state::State, now: Timestamp, lock: &ContendedView<'_>) {
    let (mode, holders) = holders(ctx, state, now, lock.key);
    ctx.reply_map(5);
    ctx.reply_bytes(b"key");
    ctx.reply_bytes(lock.key);
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(mode);
    ctx.reply_bytes(b"holders");
    ctx.reply_number(holders as u64);
    ctx.reply_bytes(b"waiters");
    ctx.reply_number(lock.waiters.into());
    ctx.reply_bytes(b"oldest-wait-ms");
    ctx.reply_number(u64::try_from(lock.oldest_wait.as_millis()).unwrap_or(u64::MAX));
}

/// The mode of a lock, and how many hold it. A key that holds no lock is shown
/// as free: nobody can be granted it, but nobody holds it.
fn holders(
    ctx: &Context,
    state: &state::State,
    now: Timestamp,
    key: &[u8],
) -> (&'static [u8], usize) {
    let Some(open) = Key::open_to_read(ctx, OwnedText::new(key).text()) else {
        return (b"free", 0);
    };
    let name = Name { db: ctx.db(), key };
    if let Some(shared) = store::known_holders(&open, name, &state.known) {
        return (b"shared", shared.live(now));
    }
    match store::holders(&open, now, &|| false) {
        Some(holding) if holding.holders.is_empty() => (b"free", 0),
        Some(holding) if holding.is_shared => (b"shared", holding.holders.len()),
        Some(holding) => (b"exclusive", holding.holders.len()),
        None => (b"free", 0),
    }
}
