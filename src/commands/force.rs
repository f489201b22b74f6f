//! `RLOCK.FORCE key [QUEUE]`

use rlock_core::syntax;

use super::{
    Call,
    reply::{self, Answer},
};
use crate::{api::Key, open_many, store, tell, transact::transact};

pub(super) fn run(call: &Call<'_>) {
    let (key, queue) = match syntax::force(call.arguments) {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    let done = call.change(*key, None, |state, site| {
        // What is deleted here is other people's, so all of it is looked at.
        let key = Key::open_to_read(site.ctx, site.key);
        let confirms = |key: &Key<'_>| store::confirms(key, site.name(), &state.known, site.now);
        if !key.as_ref().is_some_and(confirms) {
            state.known.forget(site.name());
        }
        drop(key);
        if queue {
            open_many::check(state, site, &[site.key])?;
            for ended in state.locks.empty_queue(site.name()) {
                tell::tell_withdrawn_by_others(state, site.ctx, &ended);
            }
        }
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
