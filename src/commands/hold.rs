//! The commands that change what their caller holds: `RLOCK.RENEW`,
//! `RLOCK.RELEASE`, `RLOCK.DOWNGRADE`, `RLOCK.MRENEW`, `RLOCK.MRELEASE`

use rlock_core::{
    Extras, Fence, Renewal, Setting,
    syntax::{self, KeyAndOwner, Release, ReleaseAll, Renew, RenewAll},
};

use super::{Call, acquire::connection};
use crate::{
    api::Text,
    operation::{Failure, Operation},
    settings,
    state::State,
    transact::{LoadedAll, Pending, change, check_all, finish, transact},
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
        extras,
    } = call.parsed(parsed)?;
    let session = call.accepted(connection(call.ctx, channel, bind))?;
    change_hold(call, *key, *owner, |state, op| {
        let renewal = Renewal {
            lease_ms,
            fence,
            session: session.or_else(|| state.session_for(op)),
            channel: channel.map(|it| it.channel()),
            bind,
            extras,
        };
        let watches_max = settings::number(Setting::MaxWatches);
        transact(state, op, |locks, name, hold, _| {
            Ok(locks.renew(op.now, name, hold, owner.bytes(), &renewal, watches_max)?)
        })
    })
}

pub(super) fn release(call: &Call<'_>) -> Option<()> {
    let Release {
        key,
        owner,
        all,
        permits,
        fence,
    } = call.parsed(syntax::release(call.arguments))?;
    change_hold(call, *key, *owner, |state, op| {
        transact(state, op, |locks, name, hold, _| {
            let (now, owner) = (op.now, owner.bytes());
            Ok(match permits {
                None => locks.release(now, name, hold, owner, all, fence),
                Some(permits) => locks.release_permits(now, name, hold, owner, permits, fence)?,
            })
        })
    })
}

pub(super) fn downgrade(call: &Call<'_>) -> Option<()> {
    let KeyAndOwner { key, owner } = call.parsed(syntax::key_and_owner(call.arguments))?;
    change_hold(call, *key, *owner, |state, op| {
        transact(state, op, |locks, name, hold, _| {
            Ok(locks.downgrade(op.now, name, hold, owner.bytes()))
        })
    })
}

/// Changes one hold by `act`, and replies with its result; nil if the owner
/// holds nothing.
fn change_hold<N: Into<u64>>(
    call: &Call<'_>,
    key: Text,
    owner: Text,
    act: impl FnOnce(&mut State, &Operation<'_>) -> Result<Option<N>, Failure>,
) -> Option<()> {
    let done = call.change(&[key], Some(owner), |state, op| {
        let done = act(state, op)?;
        if done.is_some() {
            state
                .deliveries
                .grants
                .confirm(op.db, key.bytes(), owner.bytes());
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
        fence,
        channel,
    } = call.parsed(parsed)?;
    let session = call.accepted(connection(call.ctx, channel, None))?;
    let held = call.change(keys, Some(*owner), |state, op| {
        let renewal = Renewal {
            lease_ms,
            fence: None,
            session: session.or_else(|| state.session_for_any(op, keys)),
            channel: channel.map(|it| it.channel()),
            bind: None,
            extras: Extras::NONE,
        };
        renew_each(state, op, keys, fence, &renewal)
    })?;
    call.ctx.reply_number(held);
    Some(())
}

/// Renews the caller's holds, or only those with this fence, after it has checked
/// all of them; replies with their number.
fn renew_each(
    state: &mut State,
    op: &Operation<'_>,
    keys: &[Text],
    fence: Option<Fence>,
    renewal: &Renewal<'_>,
) -> Result<u64, Failure> {
    let owner = op.caller.as_ref().map_or(&b""[..], Text::bytes);
    let mut loaded = LoadedAll::load(state, op, keys)?;
    let (holds, locks) = (&mut loaded.holds, &mut state.locks);
    let watches_max = settings::number(Setting::MaxWatches);
    let whose = (owner, fence);
    let done = locks.renew_all(op.now, &loaded.names, holds, whose, renewal, watches_max);
    let mut held = 0;
    for ((name, step), announce) in loaded
        .names
        .iter()
        .zip(done.iter().flatten())
        .zip(&mut loaded.announces)
    {
        *announce = step.announce;
        if step.reply.is_some() {
            held += 1;
            state.deliveries.grants.confirm(name.db, name.key, owner);
        }
    }
    loaded.save(state);
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
    let held = call.change(keys, Some(*owner), |state, op| {
        check_all(state, op, keys)?;
        let (mut held, mut pending) = (Ok(0_u64), Pending::default());
        for (index, key) in keys.iter().enumerate() {
            let op = op.at(*key);
            let left = change(state, &op, &mut pending, |locks, name, hold, _| {
                Ok(locks.release(op.now, name, hold, owner.bytes(), all, fence))
            });
            match left {
                Ok(Some(_)) => {
                    held = held.map(|held| held + 1);
                    state
                        .deliveries
                        .grants
                        .confirm(op.db, key.bytes(), owner.bytes());
                }
                Ok(None) => {}
                Err(failure) => {
                    held = Err(failure.at(index));
                    break;
                }
            }
        }
        finish(state, op, pending);
        held
    })?;
    call.ctx.reply_number(held);
    Some(())
}
