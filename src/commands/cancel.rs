//! `RLOCK.CANCEL key owner`

use rlock_core::Name;

use super::Call;
use crate::{
    reply::{self, Answer},
    syntax::{self, Cancel},
    transact,
};

/// The key is not opened: a request is withdrawn whatever the key holds.
pub(super) fn run(call: &Call<'_>) {
    let Cancel { key, owner } = match syntax::cancel(call.arguments) {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    let cancelled = call.change(*key, Some(*owner), |state, site| {
        let name = Name {
            db: site.db,
            key: key.bytes(),
        };
        let delivery = state.locks.cancel(name, owner.bytes());
        state.locks.settle_later(name);
        delivery.is_some_and(|delivery| {
            transact::withdraw(state, &delivery);
            true
        })
    });
    if let Some(cancelled) = cancelled {
        reply::send(call.ctx, Answer::Count(cancelled.into()));
    }
}
