//! `RLOCK.FORCE key`

use super::{
    Call,
    reply::{self, Answer},
};
use crate::{api::Key, store, transact::transact};

pub(super) fn run(call: &Call<'_>) {
    let [_, key] = call.arguments else {
        return call.wrong_arity();
    };
    let done = call.change(*key, None, |state, site| {
        // What is deleted here is other people's, so all of it is looked at.
        let key = Key::open_to_read(site.ctx, site.key);
        let confirms = |key: &Key<'_>| store::confirms(key, site.name(), &state.known, site.now);
        if !key.as_ref().is_some_and(confirms) {
            state.known.forget(site.name());
        }
        drop(key);
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
