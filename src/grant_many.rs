//! Requests for several keys, when their turn has come with all of them.

use rlock_core::{Name, TicketId};

use crate::{
    api::{OwnedText, Published, Text},
    open_many::OpenedMany,
    site::Site,
    state::State,
};

/// Grants the next of the requests that changes have made first in all their
/// queues. Answers which locks are to be settled then: those of a request that
/// nobody heard of. `None` if there is no such request.
pub(crate) fn grant_next(state: &mut State, site: &Site<'_>) -> Option<Vec<OwnedText>> {
    let ticket = state.locks.next_ready()?;
    let keys = state.locks.keys_of(ticket);
    Some(grant(state, site, ticket, &keys))
}

fn grant(
    state: &mut State,
    site: &Site<'_>,
    ticket: TicketId,
    keys: &[(u32, Box<[u8]>)],
) -> Vec<OwnedText> {
    if keys.iter().any(|(db, _)| *db != site.db) {
        // To be done where that database is selected.
        for (db, key) in keys {
            state.locks.settle_later(Name { db: *db, key });
        }
        return Vec::new();
    }
    let texts: Vec<_> = keys.iter().map(|(_, key)| OwnedText::new(key)).collect();
    let keys: Vec<_> = texts.iter().map(OwnedText::text).collect();
    // The server has asked for the keys of the command only.
    let is_ours = |key: &Text<'_>| state.is_ours(&Site { key: *key, ..*site });
    if !keys.iter().all(is_ours) {
        return Vec::new();
    }
    match hand_over(state, site, ticket, &keys) {
        Some(Published::ToNobody) => texts,
        Some(Published::ToSomebody) | None => Vec::new(),
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
    let mut opened = OpenedMany::open(state, &nobody, keys);
    let (now, db) = (site.now, site.db);
    let names = keys.iter().map(|key| Name {
        db,
        key: key.bytes(),
    });
    let names: Vec<_> = names.collect();
    let holds = &mut opened.holds;
    let granted = state.locks.grant_all(now, ticket, &names, holds);
    let mut told = None;
    if let Some(granted) = granted {
        let named = keys.iter().map(|key| key.bytes().into()).collect();
        told = Some(state.deliveries.grant(site.ctx, db, named, &granted));
        if told == Some(Published::ToNobody) {
            state.locks.skip_all(now, &names, holds, &granted);
        }
    }
    opened.save(state);
    told
}
