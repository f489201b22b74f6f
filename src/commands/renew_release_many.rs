//! `RLOCK.MRENEW owner lease-ms numkeys key [key ...]
//! [NOTIFY channel | SNOTIFY channel]` and
//! `RLOCK.MRELEASE owner numkeys key [key ...] [ALL] [FENCE n]`

use rlock_core::{
    Name, Renewal,
    syntax::{self, ReleaseAll, RenewAll},
};

use super::{Call, acquire::connection, reply};
use crate::{
    api::Text,
    open_many,
    opened::Pending,
    settings::settings,
    site::{Failure, Site},
    state::State,
    transact::{self, change, finish},
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
        channel,
    } = match parsed {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    let session = match connection(call.ctx, channel, None) {
        Ok(session) => session,
        Err(text) => return call.ctx.reply_error(&text),
    };
    let Some(first) = keys.first() else { return };
    let done = call.change(*first, Some(*owner), |state, site| {
        let session = session.or_else(|| state.session_for_any(site, keys));
        let renewal = Renewal {
            lease_ms,
            fence: None,
            session,
            channel: channel.map(|it| it.channel()),
            grace_ms: None,
        };
        renew_each(state, site, keys, &renewal)
    });
    answer(call, done, *owner, keys);
}

/// Renews the holds of the caller, all of which are looked at before.
fn renew_each(
    state: &mut State,
    site: &Site<'_>,
    keys: &[Text],
    renewal: &Renewal<'_>,
) -> Result<u64, Failure> {
    let owner = site.caller.as_ref().map_or(&b""[..], Text::bytes);
    let mut opened = transact::open_many(state, site, keys)?;
    let names = keys.iter().map(|key| Name {
        db: site.db,
        key: key.bytes(),
    });
    let names: Vec<_> = names.collect();
    let (holds, locks) = (&mut opened.holds, &mut state.locks);
    let watches_max = settings().max_watches.get();
    let done = locks.renew_all(site.now, &names, holds, owner, renewal, watches_max);
    let mut held = 0;
    for ((name, step), announce) in names
        .iter()
        .zip(done.iter().flatten())
        .zip(&mut opened.announces)
    {
        *announce = step.announce;
        if step.reply.is_some() {
            held += 1;
            state.grants.confirm(name.db, name.key, owner);
        }
    }
    opened.save(state);
    done?;
    Ok(held)
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
                    state.grants.confirm(site.db, key.bytes(), owner.bytes());
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
    answer(call, done, owner, keys);
}

/// Replies with the number of the locks that the owner held.
fn answer(call: &Call<'_>, done: Option<Result<u64, Failure>>, owner: Text, keys: &[Text]) {
    match done {
        Some(Ok(held)) => call.ctx.reply_number(held),
        Some(Err(failure)) => reply::failure(call.ctx, &failure, keys, Some(owner)),
        None => {}
    }
}
