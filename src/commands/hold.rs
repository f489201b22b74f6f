//! The commands that change what their caller holds: `RLOCK.RENEW`,
//! `RLOCK.RELEASE`, `RLOCK.DOWNGRADE`, `RLOCK.MRENEW`, `RLOCK.MRELEASE`

use rlock_core::{
    Name, Renewal, Setting,
    syntax::{self, KeyAndOwner, Release, ReleaseAll, Renew, RenewAll},
};

use super::{Call, acquire::connection};
use crate::{
    api::Text,
    open_many,
    opened::Pending,
    settings,
    site::{Failure, Site},
    state::State,
    transact::{self, change, finish, transact},
};

pub(super) fn renew(call: &Call<'_>) -> Option<()> {
    let parsed = syntax::renew(call.arguments, settings::number(Setting::MaxLeaseMs));
    let Renew {
        key,
        owner,
        lease_ms,
        fence,
        channel,
        bind,
    } = call.parsed(parsed)?;
    let session = call.accepted(connection(call.ctx, channel, bind))?;
    change_hold(call, *key, *owner, |state, site| {
        let renewal = Renewal {
            lease_ms,
            fence,
            session: session.or_else(|| state.session_for(site)),
            channel: channel.map(|it| it.channel()),
            bind,
        };
        let watches_max = settings::number(Setting::MaxWatches);
        transact(state, site, |locks, name, hold, _| {
            Ok(locks.renew(site.now, name, hold, owner.bytes(), &renewal, watches_max)?)
        })
    })
}

pub(super) fn release(call: &Call<'_>) -> Option<()> {
    let Release {
        key,
        owner,
        all,
        fence,
    } = call.parsed(syntax::release(call.arguments))?;
    change_hold(call, *key, *owner, |state, site| {
        transact(state, site, |locks, name, hold, _| {
            Ok(locks.release(site.now, name, hold, owner.bytes(), all, fence))
        })
    })
}

pub(super) fn downgrade(call: &Call<'_>) -> Option<()> {
    let KeyAndOwner { key, owner } = call.parsed(syntax::key_and_owner(call.arguments))?;
    change_hold(call, *key, *owner, |state, site| {
        transact(state, site, |locks, name, hold, _| {
            Ok(locks.downgrade(site.now, name, hold, owner.bytes()))
        })
    })
}

/// Changes one hold by `act`, and replies with what that answers; with nil if
/// the owner holds nothing.
fn change_hold<N: Into<u64>>(
    call: &Call<'_>,
    key: Text,
    owner: Text,
    act: impl FnOnce(&mut State, &Site<'_>) -> Result<Option<N>, Failure>,
) -> Option<()> {
    let done = call.change(&[key], Some(owner), |state, site| {
        let done = act(state, site)?;
        if done.is_some() {
            state
                .deliveries
                .grants
                .confirm(site.db, key.bytes(), owner.bytes());
        }
        Ok(done)
    })?;
    match done {
        Some(number) => call.ctx.reply_number(number.into()),
        None => call.ctx.reply_nil(),
    }
    Some(())
}

pub(super) fn renew_all(call: &Call<'_>) -> Option<()> {
    let parsed = syntax::renew_all(call.arguments, settings::number(Setting::MaxLeaseMs));
    let RenewAll {
        owner,
        lease_ms,
        keys,
        channel,
    } = call.parsed(parsed)?;
    let session = call.accepted(connection(call.ctx, channel, None))?;
    let held = call.change(keys, Some(*owner), |state, site| {
        let renewal = Renewal {
            lease_ms,
            fence: None,
            session: session.or_else(|| state.session_for_any(site, keys)),
            channel: channel.map(|it| it.channel()),
            bind: None,
        };
        renew_each(state, site, keys, &renewal)
    })?;
    call.ctx.reply_number(held);
    Some(())
}

/// Renews the holds of the caller, all of which are looked at before, and
/// answers how many there are.
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
    let watches_max = settings::number(Setting::MaxWatches);
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
            state.deliveries.grants.confirm(name.db, name.key, owner);
        }
    }
    opened.save(state);
    done?;
    Ok(held)
}

pub(super) fn release_all(call: &Call<'_>) -> Option<()> {
    let ReleaseAll {
        owner,
        keys,
        all,
        fence,
    } = call.parsed(syntax::release_all(call.arguments))?;
    let held = call.change(keys, Some(*owner), |state, site| {
        open_many::check(state, site, keys)?;
        let (mut held, mut pending) = (Ok(0_u64), Pending::default());
        for (index, key) in keys.iter().enumerate() {
            let site = Site { key: *key, ..*site };
            let left = change(state, &site, &mut pending, |locks, name, hold, _| {
                Ok(locks.release(site.now, name, hold, owner.bytes(), all, fence))
            });
            match left {
                Ok(Some(_)) => {
                    held = held.map(|held| held + 1);
                    state
                        .deliveries
                        .grants
                        .confirm(site.db, key.bytes(), owner.bytes());
                }
                Ok(None) => {}
                Err(failure) => {
                    held = Err(failure.at(index));
                    break;
                }
            }
        }
        finish(state, site, pending);
        held
    })?;
    call.ctx.reply_number(held);
    Some(())
}
