//! Requests for several keys, when their turn has come with all of them.

use rlock_core::{Name, TicketId};

use crate::{
    all::OpenedAll,
    api::{OwnedText, Published},
    state::State,
    transact::{Site, tell_grant},
};

/// Grants the requests that a change has made first in all their queues. True
/// if there were any.
pub(crate) fn grant_all(state: &mut State, site: &Site<'_>) -> bool {
    let mut any = false;
    while let Some(ticket) = state.locks.next_ready() {
        grant(state, site, ticket);
        any = true;
    }
    any
}

fn grant(state: &mut State, site: &Site<'_>, ticket: TicketId) {
    let keys = state.locks.keys_of(ticket);
    if keys.iter().any(|(db, _)| *db != site.db) {
        return;
    }
    let texts: Vec<_> = keys.iter().map(|(_, key)| OwnedText::new(key)).collect();
    let keys: Vec<_> = texts.iter().map(OwnedText::text).collect();
    let nobody = Site {
        caller: None,
        ..*site
    };
    let mut opened = OpenedAll::open(state, &nobody, &keys);
    let granted = state.locks.grant_all(site.now, ticket, &mut opened.holds);
    if let Some(granted) = granted {
        let named = keys.iter().map(|key| key.bytes().into()).collect();
        if tell_grant(state, site.ctx, site.db, named, &granted) == Published::ToNobody {
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
}
