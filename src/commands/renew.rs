//! `RLOCK.RENEW key owner lease-ms [FENCE n]`

use rlock_core::{
    Renewal,
    syntax::{self, Renew},
};

use super::{Call, reply};
use crate::{settings::settings, transact::transact};

pub(super) fn run(call: &Call<'_>) {
    let parsed = syntax::renew(call.arguments, settings().max_lease_ms.get());
    let Renew {
        key,
        owner,
        lease_ms,
        fence,
    } = match parsed {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    let done = call.change(*key, Some(*owner), |state, site| {
        let renewal = Renewal {
            lease_ms,
            fence,
            session: state.session_for(site),
        };
        let fence = transact(state, site, |locks, name, hold, _| {
            Ok(locks.renew(site.now, name, hold, owner.bytes(), &renewal)?)
        })?;
        if fence.is_some() {
            state.confirm(site.db, key.bytes(), owner.bytes());
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
