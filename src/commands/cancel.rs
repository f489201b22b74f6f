//! `RLOCK.CANCEL key owner`

use rlock_core::syntax::{self, KeyAndOwner};

use super::{
    Call,
    reply::{self, Answer},
};
use crate::transact;

/// The key is not opened: a request is withdrawn whatever the key holds.
pub(super) fn run(call: &Call<'_>) -> Option<()> {
    let KeyAndOwner { key, owner } = call.parsed(syntax::key_and_owner(call.arguments))?;
    let cancelled = call.change(&[*key], Some(*owner), |state, op| {
        let Some(ended) = state.locks.cancel(op.name(), owner.bytes()) else {
            return Ok(false);
        };
        // The connection that made the request needs no message: it has the reply.
        if ended.delivery.session() == op.ctx.session() {
            state.deliveries.withdraw(&ended.delivery);
        } else {
            state.deliveries.withdraw_by_others(op.ctx, &ended);
        }
        // A waiter behind it may fit now. The other keys of the request follow
        // in this turn of the event loop.
        transact::settle(state, op);
        Ok(true)
    })?;
    reply::send(call.ctx, Answer::Count(cancelled.into()));
    Some(())
}
