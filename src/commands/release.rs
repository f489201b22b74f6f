//! `RLOCK.RELEASE key owner [ALL] [FENCE n]`

use rlock_core::syntax::{self, Release};

use super::{Call, reply};
use crate::transact::transact;

pub(super) fn run(call: &Call<'_>) {
    let Release {
        key,
        owner,
        all,
        fence,
    } = match syntax::release(call.arguments) {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    let done = call.change(*key, Some(*owner), |state, site| {
        let left = transact(state, site, |locks, name, hold, _| {
            Ok(locks.release(site.now, name, hold, owner.bytes(), all, fence))
        })?;
        if left.is_some() {
            state.grants.confirm(site.db, key.bytes(), owner.bytes());
        }
        Ok(left)
    });
    match done {
        Some(Ok(Some(left))) => call.ctx.reply_number(left.into()),
        Some(Ok(None)) => call.ctx.reply_nil(),
        Some(Err(failure)) => reply::failure(call.ctx, &failure, &[*key], Some(*owner)),
        None => {}
    }
}
