//! `RLOCK.FORCE key [QUEUE]`

use rlock_core::syntax;

use super::{
    Call,
    reply::{self, Answer},
};
use crate::{
    api::Key,
    store,
    transact::{check_all, transact},
};

pub(super) fn run(call: &Call<'_>) -> Option<()> {
    let (key, queue) = call.parsed(syntax::force(call.arguments))?;
    let removed = call.change(&[*key], None, |state, op| {
        // This deletes other owners' holds, so it reads all of them.
        let key = Key::open_to_read(op.ctx, op.key);
        let confirms = |key: &Key<'_>| store::confirms(key, op.name(), &state.shared_cache, op.now);
        if !key.as_ref().is_some_and(confirms) {
            state.shared_cache.forget(op.name());
        }
        drop(key);
        if queue {
            check_all(state, op, &[op.key])?;
            for ended in state.locks.clear_queue(op.name()) {
                state.deliveries.withdraw_by_others(op.ctx, &ended);
            }
        }
        transact(state, op, |locks, name, hold, _| {
            Ok(locks.force(op.now, name, hold))
        })
    })?;
    let removed = removed.try_into().unwrap_or(i64::MAX);
    reply::send(call.ctx, Answer::Count(removed));
    Some(())
}
