//! Attaches a hold to a new connection, by asking again for what is held: the
//! server forgot that it was to tell of a loss by the old one. The hold count
//! stays as it is. For a hold with a fixed lease, which nothing renews, that
//! also moves the bond.
//!
//! If the hold ended a moment ago this takes the lock anew: the fence tells,
//! and it is given back at once.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::clock::Instant;
use crate::engine::hold::{Grant, Hold};
use crate::error::{Error, Fault};
use crate::net::link::Link;
use crate::net::state::State;
use crate::net::watchdog::confirmed;
use crate::wire::protocol::{self, Acquired, Queueing};

/// Has `hold`'s loss notice come by `link`. The caller has its turn.
pub(crate) async fn attach(state: &State, hold: &Arc<Hold>, link: &Link) -> Result<(), Fault> {
    let sent = Instant::now();
    let lease = if hold.terms.renewed {
        hold.terms.lease_at(hold.taken, sent)
    } else {
        Some(hold.lease_end().saturating_duration_since(sent))
    };
    let Some(lease) = lease.filter(|lease| *lease >= Duration::from_millis(1)) else {
        return Ok(());
    };
    let (ask, asked_under) = (hold.ask(), hold.fence());
    let (claims, terms, queueing) = (&hold.claims, &hold.terms, Queueing::Try);
    let channel = Some(&*state.channel);
    let cmd = protocol::acquire(claims, ask, terms, lease, queueing, channel);
    let reply = match link.ask(&cmd).await {
        // A full server still renews: only the early notice is missing.
        Err(Fault::Refused(Error::OutOfMemory(_) | Error::QueueFull(_))) => return Ok(()),
        reply => reply?,
    };
    let fence = match protocol::acquired(&reply).map_err(Fault::Refused)? {
        Acquired::Granted(fence) => Some(fence),
        Acquired::Queued | Acquired::Refused => None,
    };
    if confirmed(state, hold, fence, asked_under) {
        hold.set_notices_by(link.number);
        hold.prolong(Grant {
            fence: asked_under,
            sent,
            lease,
            link: link.number,
        });
    }
    Ok(())
}
