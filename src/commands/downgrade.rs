//! `RLOCK.DOWNGRADE key owner`

use rlock_core::syntax::{self, KeyAndOwner};

use super::{Call, reply};
use crate::transact::transact;

pub(super) fn run(call: &Call<'_>) {
    let KeyAndOwner { key, owner } = match syntax::key_and_owner(call.arguments) {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    let done = call.change(*key, Some(*owner), |state, site| {
        let fence = transact(state, site, |locks, name, hold, _| {
            Ok(locks.downgrade(site.now, name, hold, owner.bytes()))
        })?;
        if fence.is_some() {
            state.grants.confirm(site.db, key.bytes(), owner.bytes());
        }
        Ok(fence)
    });
    match done {
        Some(Ok(Some(fence))) => call.ctx.reply_number(fence.get()),
        Some(Ok(None)) => call.ctx.reply_nil(),
        Some(Err(failure)) => reply::failure(call.ctx, &failure, &[*key], Some(*owner)),
        None => {}
    }
}
