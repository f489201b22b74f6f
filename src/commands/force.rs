//! `RLOCK.FORCE key [QUEUE]`

use rlock_core::syntax;

use super::{
    Call,
    reply::{self, Answer},
};
use crate::{api::Key, open_many, store, transact::transact};

pub(super) fn run(call: &Call<'_>) -> Option<()> {
    let (key, queue) = call.parsed(syntax::force(call.arguments))?;
    let removed = call.change(&[*key], None, |state, site| {
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
                state.deliveries.withdraw_by_others(site.ctx, &ended);
            }
        }
        transact(state, site, |locks, name, hold, _| {
            Ok(locks.force(site.now, name, hold))
        })
    })?;
    let removed = removed.try_into().unwrap_or(i64::MAX);
    reply::send(call.ctx, Answer::Count(removed));
    Some(())
}
