//! Tells those who have asked what has become of their requests: by a message,
//! or by the reply to a blocked call.

use rlock_core::{Delivery, Ended, Granted};

use crate::{
    api::{Context, Published},
    blocked::Outcome,
    grants::Grant,
    messages,
    state::State,
};

/// Tells a waiter that it holds its locks now. Whether that has reached it shows
/// only later, see [`Grant`].
pub(crate) fn tell_grant(
    state: &mut State,
    ctx: &Context,
    db: u32,
    keys: Box<[Box<[u8]>]>,
    granted: &Granted,
) -> Published {
    let (ticket, fence) = (&granted.ticket, granted.fence);
    let grant = Grant {
        db,
        keys,
        owner: ticket.owner.clone(),
        fence,
        listener: ticket.delivery.listener().cloned(),
        place: granted.kept_place(),
    };
    let told = match &ticket.delivery {
        Delivery::Blocked { handle, .. } => state.answer_granted(*handle, grant),
        Delivery::Notify(listener) => {
            let key = grant.keys.first().map_or(&[][..], |key| key);
            let channel = listener.channel();
            let told = messages::publish_grant(ctx, channel, fence, &ticket.owner, key);
            if told == Published::ToSomebody {
                state.grants.published(listener.session, grant);
            }
            told
        }
        Delivery::Kept => Published::ToNobody,
    };
    if told == Published::ToSomebody {
        state.record_wait(granted.waited);
    }
    told
}

/// Tells a waiter that its wait is over.
pub(crate) fn end_wait(
    state: &mut State,
    ctx: &Context,
    delivery: &Delivery,
    owner: &[u8],
    key: &[u8],
) {
    match delivery {
        Delivery::Blocked { handle, .. } => state.answer(*handle, Outcome::Nil),
        Delivery::Notify(listener) => {
            messages::publish_bytes(ctx, listener.channel(), "timeout 0", owner, key);
        }
        Delivery::Kept => {}
    }
}

/// Ends a request without an outcome: nil for a blocked call, nothing else.
pub(crate) fn withdraw(state: &mut State, delivery: &Delivery) {
    if let Delivery::Blocked { handle, .. } = delivery {
        state.answer(*handle, Outcome::Nil);
    }
}

/// Ends a request because this server cannot grant it any more.
pub(crate) fn turn_away(state: &mut State, ctx: &Context, ended: &Ended) {
    if let Delivery::Blocked { handle, .. } = &ended.delivery {
        state.answer(*handle, Outcome::TurnedAway);
    } else {
        tell_withdrawn(ctx, ended);
    }
}

/// Ends a request that somebody else has withdrawn.
pub(crate) fn tell_withdrawn_by_others(state: &mut State, ctx: &Context, ended: &Ended) {
    withdraw(state, &ended.delivery);
    tell_withdrawn(ctx, ended);
}

/// Tells a waiter that its request is withdrawn, if messages reach it.
pub(crate) fn tell_withdrawn(ctx: &Context, ended: &Ended) {
    if let Delivery::Notify(listener) = &ended.delivery {
        let channel = listener.channel();
        messages::publish_bytes(ctx, channel, "withdrawn 0", &ended.owner, &ended.key);
    }
}
