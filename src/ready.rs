//! Requests for several keys, when their turn has come with all of them.

use rlock_core::{Name, TicketId};

use crate::{
    all::OpenedAll,
    api::{OwnedText, Published, Text},
    serving,
    state::State,
    transact::{self, Pending, Site, tell_grant},
};

/// Grants the requests that changes have made first in all their queues. True
/// if there were any.
pub(crate) fn grant_all(state: &mut State, site: &Site<'_>, pending: &mut Pending<'_>) -> bool {
    let mut any = false;
    while let Some(ticket) = state.locks.next_ready() {
        let keys = state.locks.keys_of(ticket);
        grant(state, site, pending, ticket, &keys);
        any = true;
    }
    any
}

fn grant(
    state: &mut State,
    site: &Site<'_>,
    pending: &mut Pending<'_>,
    ticket: TicketId,
    keys: &[(u32, Box<[u8]>)],
) {
    if keys.iter().any(|(db, _)| *db != site.db) {
        // To be done where that database is selected.
        for (db, key) in keys {
            state.locks.settle_later(Name { db: *db, key });
        }
        return;
    }
    let texts: Vec<_> = keys.iter().map(|(_, key)| OwnedText::new(key)).collect();
    let keys: Vec<_> = texts.iter().map(OwnedText::text).collect();
    // The server has asked for the keys of the command only.
    let is_ours = |key: &Text<'_>| serving::is_ours(state, &Site { key: *key, ..*site });
    if !keys.iter().all(is_ours) {
        return;
    }
    if hand_over(state, site, ticket, &keys) == Some(Published::ToNobody) {
        settle(state, site, pending, &keys);
    }
}

/// Grants a request, if it is granted, and tells its owner.
fn hand_over(
    state: &mut State,
    site: &Site<'_>,
    ticket: TicketId,
    keys: &[Text<'_>],
) -> Option<Published> {
    let nobody = Site {
        caller: None,
        ..*site
    };
    let mut opened = OpenedAll::open(state, &nobody, keys);
    let granted = state.locks.grant_all(site.now, ticket, &mut opened.holds);
    let mut told = None;
    if let Some(granted) = granted {
        let named = keys.iter().map(|key| key.bytes().into()).collect();
        told = Some(tell_grant(state, site.ctx, site.db, named, &granted));
        if told == Some(Published::ToNobody) {
            let db = site.db;
            let names = keys.iter().map(|key| Name {
                db,
                key: key.bytes(),
            });
            let names: Vec<_> = names.collect();
            let (now, holds) = (site.now, &mut opened.holds);
            state.locks.skip_all(now, &names, holds, &granted);
        }
    }
    opened.save(state);
    told
}

/// Hands the locks of a request that was passed over to whoever is behind it.
/// All are due, so what there is no time for is done later.
fn settle(state: &mut State, site: &Site<'_>, pending: &mut Pending<'_>, keys: &[Text<'_>]) {
    let mut more = Pending::new();
    for key in keys {
        if state.locks.turn_is_over() {
            break;
        }
        let site = Site {
            caller: None,
            key: *key,
            ..*site
        };
        // A key that holds no lock is left alone, and its waiters wait on.
        let _ = transact::change(state, &site, &mut more, |locks, name, hold, _| {
            Ok(locks.settle(site.now, name, hold))
        });
    }
    let kept = |key: &[u8]| OwnedText::new(key).into();
    pending.extend(
        more.iter()
            .map(|(key, message)| (kept(key.bytes()), *message)),
    );
}
