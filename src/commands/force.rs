//! `RLOCK.FORCE key`

use super::{
    Call,
    reply::{self, Answer},
};
use crate::transact::transact;

pub(super) fn run(call: &Call<'_>) {
    let [_, key] = call.arguments else {
        return call.wrong_arity();
    };
    let done = call.change(*key, None, |state, site| {
        // An operator looks at other people's holds before deleting them.
        state.known.forget(site.name());
        transact(state, site, |locks, name, hold, _| {
            Ok(locks.force(site.now, name, hold))
        })
    });
    match done {
        Some(Ok(removed)) => {
            reply::send(
                call.ctx,
                Answer::Count(removed.try_into().unwrap_or(i64::MAX)),
            );
        }
        Some(Err(failure)) => reply::failure(call.ctx, &failure, &[*key], None),
        None => {}
    }
}
