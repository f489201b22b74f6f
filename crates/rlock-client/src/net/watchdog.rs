//! Renews the holds whose terms ask for it, about every third of their lease.
//!
//! A renewal that fails is tried again until validity ends, and holds up no
//! other. A hold that was lost is never renewed. After each new connection
//! every hold is looked at, as the server forgot what it was to tell by the
//! one before.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::clock::Instant;
use crate::engine::hold::{Grant, Hold};
use crate::engine::terms::Backoff;
use crate::error::{Error, Fault, Loss};
use crate::net::attach::attach;
use crate::net::driver::Order;
use crate::net::link::Link;
use crate::net::state::State;
use crate::wire::protocol;

/// How far apart holds are looked at after a new connection, if none is
/// urgent: 5000 a second.
const SPACING: Duration = Duration::from_micros(200);
/// When to look again at a hold that another call works on.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Looks at one hold, and puts it back on the schedule.
pub(crate) async fn look(state: Arc<State>, hold: Arc<Hold>) {
    // Without a connection there is nothing to do: on the next one, all holds
    // are looked at.
    let Some(link) = state.link_now().filter(|_| is_live(&hold)) else {
        return;
    };
    match look_by(&state, &hold, &link).await {
        Ok(()) => {}
        Err(Fault::Refused(Error::NotALock(_))) => hold.lose(Loss::EndedByServer),
        Err(fault) => {
            let (key, fence) = (hold.claims.label(), hold.fence());
            tracing::debug!(%key, fence, ?fault, "renewal failed, trying again");
            let pause = Backoff::nth(hold.note_failure());
            // Judged once more at the end of its validity, to be reported.
            let due = (Instant::now() + pause).min(hold.valid_until());
            state.schedule.set(&hold, due);
        }
    }
}

fn is_live(hold: &Hold) -> bool {
    hold.loss().is_none() && !hold.is_ended()
}

async fn look_by(state: &State, hold: &Arc<Hold>, link: &Link) -> Result<(), Fault> {
    if hold.terms.renewed && !renew(state, hold, link).await? {
        return Ok(());
    }
    if hold.notices_by() == link.number {
        return Ok(());
    }
    // Releasing and entering take turns; a release that comes first leaves
    // nothing to ask for.
    if let Some(_turn) = hold.claims.try_turn() {
        if is_live(hold) && !hold.is_unused() {
            attach(state, hold, link).await?;
        }
    } else if !hold.terms.renewed {
        state.schedule.set(hold, Instant::now() + BUSY_PAUSE);
    }
    Ok(())
}

/// Renews it once; whether it is still held then.
async fn renew(state: &State, hold: &Arc<Hold>, link: &Link) -> Result<bool, Fault> {
    let sent = Instant::now();
    let Some(lease) = hold.terms.lease_at(hold.taken, sent) else {
        return Ok(false);
    };
    let asked_under = hold.fence();
    let reply = link.ask(&protocol::renew(&hold.claims, lease)).await?;
    let fence = protocol::renewed(&reply, &hold.claims, asked_under).map_err(Fault::Refused)?;
    let grant = Grant {
        fence: asked_under,
        sent,
        lease,
        link: link.number,
    };
    if !confirmed(state, hold, fence, asked_under) || !hold.prolong(grant) {
        return Ok(false);
    }
    let (key, owner) = (hold.claims.label(), hold.claims.owner());
    tracing::debug!(%key, %owner, fence, ?lease, "renewed");
    state.schedule.after(hold, grant);
    Ok(true)
}

/// Whether the server means this very grant; if not, it was lost.
pub(crate) fn confirmed(
    state: &State,
    hold: &Arc<Hold>,
    fence: Option<u64>,
    asked_under: u64,
) -> bool {
    if fence.is_some_and(|fence| hold.is_meant_by(fence, asked_under)) {
        return true;
    }
    hold.lose(Loss::EndedByServer);
    if fence.is_some() {
        // Nobody waits for this grant: the server knows another one of this
        // owner than this process does.
        state.order(Order::GiveBack(hold.claims.clone(), hold.terms.lease));
    }
    false
}

/// Has every hold looked at soon, as there is a new connection: bound holds
/// at once, in the order in which they would be lost, the others after them.
pub(crate) fn look_at_all(state: &State) {
    let now = Instant::now();
    let mut holds = state.wakeups.live_holds();
    holds.sort_by_key(|hold| (hold.terms.bound.is_none(), hold.valid_until()));
    let mut due = now;
    for hold in holds {
        let step = match hold.terms.bound {
            // A due time of its own keeps the order.
            Some(_) => Duration::from_nanos(1),
            None => SPACING,
        };
        due = due + step;
        let left = hold.valid_until().saturating_duration_since(now);
        state.schedule.set(&hold, due.min(now + left / 4));
    }
}
