//! `RLOCK.RENEW key owner lease-ms [FENCE n] [NOTIFY channel | SNOTIFY channel]
//! [BIND grace-ms]`

use rlock_core::{
    Renewal,
    syntax::{self, Renew},
};

use super::{Call, acquire::connection, reply};
use crate::{settings::settings, transact::transact};

pub(super) fn run(call: &Call<'_>) {
    let parsed = syntax::renew(call.arguments, settings().max_lease_ms.get());
    let Renew {
        key,
        owner,
        lease_ms,
        fence,
        channel,
        grace_ms,
    } = match parsed {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    let session = match connection(call.ctx, channel, grace_ms) {
        Ok(session) => session,
        Err(text) => return call.ctx.reply_error(&text),
    };
    let done = call.change(*key, Some(*owner), |state, site| {
        let renewal = Renewal {
            lease_ms,
            fence,
            session: session.or_else(|| state.session_for(site)),
            channel: channel.map(|it| it.channel()),
            grace_ms,
        };
        let watches_max = settings().max_watches.get();
        let fence = transact(state, site, |locks, name, hold, _| {
            Ok(locks.renew(site.now, name, hold, owner.bytes(), &renewal, watches_max)?)
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
