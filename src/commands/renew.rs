//! `RLOCK.RENEW key owner lease-ms`

use super::Call;
use crate::{
    args::{self, ArgError, Argument},
    reply,
    settings::settings,
    transact::transact,
};

/// Reads the arguments; `None` if there are too few or too many.
pub(crate) fn parse<A: Argument>(
    arguments: &[A],
    lease_max_ms: u64,
) -> Option<Result<(&A, &A, u64), ArgError>> {
    let [_, key, owner, lease] = arguments else {
        return None;
    };
    Some(args::owner(owner).and_then(|owner| {
        let lease_ms = args::number("lease-ms", lease, 1, lease_max_ms)?;
        Ok((key, owner, lease_ms))
    }))
}

pub(super) fn run(call: &Call<'_>) {
    let (key, owner, lease_ms) = match parse(call.arguments, settings().max_lease_ms.get()) {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    let done = call.change(*key, Some(*owner), |state, site| {
        let fence = transact(state, site, |locks, name, hold| {
            Ok(locks.renew(site.now, name, hold, owner.bytes(), lease_ms))
        })?;
        if fence.is_some() {
            state.confirm(site.db, key.bytes(), owner.bytes());
        }
        Ok(fence)
    });
    match done {
        Some(Ok(Some(fence))) => call.ctx.reply_number(fence.get()),
        Some(Ok(None)) => call.ctx.reply_nil(),
        Some(Err(failure)) => reply::failure(call.ctx, &failure),
        None => {}
    }
}
