//! `RLOCK.FORCE key [FENCE n] [QUEUE]`

use rlock_core::{
    Fence,
    codec::Orphan,
    syntax::{self, Force},
};

use super::{
    Call,
    reply::{self, Answer},
};
use crate::{
    api::{Key, KeyEvent},
    notes::Changing,
    operation::{Failure, Operation},
    state::State,
    store,
    transact::{check_all, transact},
};

pub(super) fn run(call: &Call<'_>) -> Option<()> {
    let Force { key, fence, queue } = call.parsed(syntax::force(call.arguments))?;
    let removed = call.change(&[*key], None, |state, op| {
        // This deletes other owners' holds, so it reads all of them.
        let key = Key::open_to_read(op.ctx, op.key);
        let confirms = |key: &Key<'_>| store::confirms(key, op.name(), &state.shared_cache, op.now);
        if !key.as_ref().is_some_and(confirms) {
            state.shared_cache.forget(op.name());
        }
        let is_orphan = |key| store::orphan(key, op.name(), &state.shared_cache, op.now);
        let orphan = key.as_ref().and_then(is_orphan);
        drop(key);
        if queue {
            match orphan {
                Some(_) => state.check_writable(op)?,
                None => check_all(state, op, &[op.key])?,
            }
            for ended in state.locks.clear_queue(op.name()) {
                state.deliveries.withdraw_by_others(op.ctx, &ended);
            }
        }
        match orphan {
            Some(orphan) => end_orphan(state, op, &orphan, fence),
            None => transact(state, op, |locks, name, hold, _| {
                Ok(locks.force(op.now, name, hold, fence))
            }),
        }
    })?;
    let removed = removed.try_into().unwrap_or(i64::MAX);
    reply::send(call.ctx, Answer::Count(removed));
    Some(())
}

/// Deletes a hash of this module that is no lock any more, unless it has another
/// fence; replies with the number of its owners. Waiters get their turn.
fn end_orphan(
    state: &mut State,
    op: &Operation<'_>,
    orphan: &Orphan,
    fence: Option<Fence>,
) -> Result<u64, Failure> {
    state.check_writable(op)?;
    if fence.is_some() && orphan.fence != fence {
        return Ok(0);
    }
    state.locks.note_orphan(op.now, op.name(), orphan.fence);
    let changing = Changing::new(&[op.key]);
    Key::open(op.ctx, op.key).delete();
    op.ctx.replicate(c"DEL", op.key);
    op.ctx.signal_modified(op.key);
    op.ctx.notify(KeyEvent::Del, op.key);
    drop(changing);
    transact(state, op, |locks, name, _, _| {
        Ok(locks.end_orphan(op.now, name, orphan.owners))
    })
}
