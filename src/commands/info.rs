//! `RLOCK.INFO key` and `RLOCK.LIST [COUNT n]`

use rlock_core::{Holding, Locks, Name, Timestamp, ViewFields, ViewValue, syntax};

use super::{Call, reply};
use crate::{
    api::{Context, Key, OwnedText},
    clock,
    operation::Failure,
    state::{self, State},
    store,
};

pub(super) fn info(call: &Call<'_>) -> Option<()> {
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
    if let Some(value) = holding.extras.value.as_deref()
        && let [(_, holder)] = &holding.holders[..]
        && let Some(fence) = holder.fence
        && ctx.flags().is_master()
    {
        let ends = holder.deadline;
        state::with(ctx, |state, _| {
            state.locks.follow_value(now, name, (fence, value), ends);
        });
    }
    let show = |locks: Option<&Locks>| reply_fields(ctx, holding.fields(now, name, locks));
    state::inspect(|state| show(Some(&state.locks))).unwrap_or_else(|| show(None));
    Some(())
}

pub(super) fn list(call: &Call<'_>) -> Option<()> {
    let count = call.parsed(syntax::list(call.arguments))?;
    let (ctx, now) = (call.ctx, clock::now());
    let seen = state::inspect(|state| {
        let listed = state.locks.most_contended(now, ctx.db()).take(count);
        let listed: Vec<_> = listed.collect();
        ctx.reply_array(listed.len());
        for lock in listed {
            let (is_shared, holders) = count_holders(ctx, state, now, lock.key);
            reply_fields(ctx, lock.fields(is_shared, holders));
        }
    });
    if seen.is_none() {
        reply::busy(ctx);
    }
    seen
}

/// Whether a lock is held in shared mode, and the number of its holders. A key
/// with other data is shown as free: it cannot be granted, but has no holder.
fn count_holders(ctx: &Context, state: &State, now: Timestamp, key: &[u8]) -> (bool, usize) {
    let Some(open) = Key::open_to_read(ctx, OwnedText::new(key).text()) else {
        return (false, 0);
    };
    let name = Name { db: ctx.db(), key };
    if let Some(shared) = store::known_holders(&open, name, &state.shared_cache) {
        return (true, shared.live(now));
    }
    let holding = store::holders(&open, now, &|| false).unwrap_or_default();
    (holding.is_shared, holding.holders.len())
}

fn reply_fields(ctx: &Context, fields: ViewFields<'_>) {
    ctx.reply_map(fields.count());
    for (name, value) in fields {
        ctx.reply_bytes(name.as_bytes());
        match value {
            ViewValue::Nil => ctx.reply_nil(),
            ViewValue::Number(number) => ctx.reply_number(number),
            ViewValue::Text(text) => ctx.reply_bytes(text),
            ViewValue::List(entries) => {
                ctx.reply_array(entries.len());
                entries.for_each(|fields| reply_fields(ctx, fields));
            }
        }
    }
}
