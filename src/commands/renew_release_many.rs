//! `RLOCK.MRENEW owner lease-ms numkeys key [key ...]` and
//! `RLOCK.MRELEASE owner numkeys key [key ...] [ALL] [FENCE n]`

use rlock_core::{
    Renewal,
    syntax::{self, ReleaseAll, RenewAll},
};

use super::{Call, reply};
use crate::{
    api::Text,
    open_many,
    opened::Pending,
    settings::settings,
    site::{Failure, Site},
    state::State,
    transact::{change, finish},
};

pub(super) fn renew(call: &Call<'_>) {
    if call.tells_keys(3) {
        return;
    }
    let parsed = syntax::renew_all(call.arguments, settings().max_lease_ms.get());
    let RenewAll {
        owner,
        lease_ms,
        keys,
    } = match parsed {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    each(call, *owner, keys, |state, site, pending| {
        let renewal = Renewal {
            lease_ms,
            fence: None,
            session: state.session_for(site),
        };
        let fence = change(state, site, pending, |locks, name, hold, _| {
            Ok(locks.renew(site.now, name, hold, owner.bytes(), &renewal)?)
        });
        Ok(fence?.is_some())
    });
}

pub(super) fn release(call: &Call<'_>) {
    if call.tells_keys(2) {
        return;
    }
    let ReleaseAll {
        owner,
        keys,
        all,
        fence,
    } = match syntax::release_all(call.arguments) {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    each(call, *owner, keys, |state, site, pending| {
        let left = change(state, site, pending, |locks, name, hold, _| {
            Ok(locks.release(site.now, name, hold, owner.bytes(), all, fence))
        });
        Ok(left?.is_some())
    });
}

/// Changes one lock after the other, all of which are checked before, and
/// replies with the number of those that the owner held.
fn each(
    call: &Call<'_>,
    owner: Text,
    keys: &[Text],
    mut change: impl for<'a> FnMut(&mut State, &Site<'a>, &mut Pending<'a>) -> Result<bool, Failure>,
) {
    let Some(first) = keys.first() else { return };
    let done = call.change(*first, Some(owner), |state, site| {
        open_many::check(state, site, keys)?;
        let (mut held, mut pending) = (Ok(0), Pending::default());
        for (index, key) in keys.iter().enumerate() {
            let site = Site { key: *key, ..*site };
            match change(state, &site, &mut pending) {
                Ok(true) => {
                    held = held.map(|held| held + 1);
                    state.confirm(site.db, key.bytes(), owner.bytes());
                }
                Ok(false) => {}
                Err(failure) => {
                    held = Err(failure.at(index));
                    break;
                }
            }
        }
        finish(state, site, pending);
        held
    });
    match done {
        Some(Ok(held)) => call.ctx.reply_number(held),
        Some(Err(failure)) => reply::failure(call.ctx, &failure, keys, Some(owner)),
        None => {}
    }
}
