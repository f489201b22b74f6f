//! How outcomes reach the callers: by the reply to a blocked call, or by a
//! message.

mod blocked;
mod grants;
mod published;

pub(crate) use blocked::{Callbacks, Outcome, of, start};
pub(crate) use grants::{Grant, Grants, Keys};
pub(crate) use published::{ZERO, announce, publish_value};

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use rlock_core::{Delivery, Ended, Fence, Granted, Listener, TicketId, Waits};

use crate::api::{Context, Published};

/// The longest wait that the quantiles distinguish: 30 days, in microseconds,
/// which is the largest value of `max-lease-ms`.
const WAIT_USEC_MAX: u64 = 2_592_000_000_000;

/// The blocked calls, the hand-offs that may not have arrived, and the wait
/// times of granted requests.
pub(crate) struct Deliveries {
    /// The ticket on which a blocked call waits, until the call is unblocked.
    callers: BTreeMap<u64, TicketId>,
    pub(crate) grants: Grants,
    quantiles: Histogram<u32>,
    wait_usec_max: u64,
    pub(crate) waits: Waits,
}

impl Deliveries {
    /// An empty delivery.
    ///
    /// # Errors
    ///
    /// The histogram's error text if it refuses the bounds.
    pub(crate) fn new() -> Result<Self, String> {
        let quantiles = Histogram::new_with_bounds(1, WAIT_USEC_MAX, 2);
        Ok(Self {
            callers: BTreeMap::new(),
            grants: Grants::default(),
            quantiles: quantiles.map_err(|error| error.to_string())?,
            wait_usec_max: 0,
            waits: Waits::default(),
        })
    }

    /// The call of this handle is blocked until its ticket has an outcome.
    pub(crate) fn block(&mut self, handle: u64, ticket: TicketId) {
        self.callers.insert(handle, ticket);
    }

    /// Ends a blocked call that nobody waits for any more. Returns the ticket
    /// on which it waited.
    pub(crate) fn end_call(&mut self, handle: u64) -> Option<TicketId> {
        let ticket = self.callers.remove(&handle)?;
        blocked::unblock(handle, Outcome::Nil);
        Some(ticket)
    }

    /// Notifies a waiter that it holds its locks now. Whether the notification
    /// arrived becomes known only later, see [`Grant`].
    ///
    /// # Errors
    ///
    /// The grant, which must be passed on: nobody would get the notification.
    pub(crate) fn grant(
        &mut self,
        ctx: &Context,
        db: u32,
        keys: Keys,
        granted: Granted,
    ) -> Result<(), Granted> {
        let (ticket, fence, waited) = (&granted.ticket, granted.fence, granted.waited);
        match &ticket.delivery {
            // A call that has already ended must not get it.
            Delivery::Blocked(call) if self.callers.remove(&call.handle).is_some() => {
                let handle = call.handle;
                self.grants.answered(handle, Grant { db, keys, granted });
                blocked::unblock(handle, Outcome::Granted { fence, handle });
            }
            Delivery::Notify(listener) => {
                let key = keys.first().map_or(&[][..], |key| key);
                let channel = listener.channel();
                let delivered = published::publish_grant(ctx, channel, fence, &ticket.owner, key);
                if delivered == Published::ToNobody {
                    return Err(granted);
                }
                let session = listener.session;
                self.grants.published(session, Grant { db, keys, granted });
            }
            Delivery::Blocked(_) | Delivery::Kept => return Err(granted),
        }
        self.record_wait(waited);
        Ok(())
    }

    /// Notifies a waiter that its wait is over.
    pub(crate) fn end_wait(
        &mut self,
        ctx: &Context,
        delivery: &Delivery,
        owner: &[u8],
        key: &[u8],
    ) {
        match delivery {
            Delivery::Blocked(call) => self.answer(call.handle, Outcome::Nil),
            Delivery::Notify(listener) => {
                published::publish(ctx, listener.channel(), "timeout", None, owner, key);
            }
            Delivery::Kept => {}
        }
    }

    /// Ends a request without an outcome: nil for a blocked call, otherwise
    /// nothing.
    pub(crate) fn withdraw(&mut self, delivery: &Delivery) {
        if let Some(call) = delivery.blocked_call() {
            self.answer(call.handle, Outcome::Nil);
        }
    }

    /// Ends a request that another client has withdrawn.
    pub(crate) fn withdraw_by_others(&mut self, ctx: &Context, ended: &Ended) {
        self.withdraw(&ended.delivery);
        publish_withdrawn(ctx, ended);
    }

    /// Ends a request because this server can no longer grant it.
    pub(crate) fn turn_away(&mut self, ctx: &Context, ended: &Ended) {
        if let Some(call) = ended.delivery.blocked_call() {
            self.answer(call.handle, Outcome::TurnedAway);
        } else {
            publish_withdrawn(ctx, ended);
        }
    }

    /// Ends a blocked call, unless it has already ended.
    fn answer(&mut self, handle: u64, outcome: Outcome) {
        if self.callers.remove(&handle).is_some() {
            blocked::unblock(handle, outcome);
        }
    }

    /// Records the wait time of a granted request.
    fn record_wait(&mut self, waited: Duration) {
        let usec = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.quantiles.saturating_record(usec.max(1));
        self.waits.record(usec);
        self.wait_usec_max = self.wait_usec_max.max(usec);
    }

    /// The wait times of granted requests, in microseconds: the median, the
    /// 99th percentile and the maximum.
    pub(crate) fn wait_usec(&self) -> [u64; 3] {
        let at_most = |quantile| {
            let value = self.quantiles.value_at_quantile(quantile);
            value.min(self.wait_usec_max)
        };
        [at_most(0.5), at_most(0.99), self.wait_usec_max]
    }
}

/// Notifies an owner that it has lost its hold.
pub(crate) fn publish_lost(
    ctx: &Context,
    listener: &Listener,
    fence: Fence,
    owner: &[u8],
    key: &[u8],
) {
    published::publish(ctx, listener.channel(), "lost", Some(fence), owner, key);
}

/// Notifies a waiter that its request is withdrawn, if it gets messages.
fn publish_withdrawn(ctx: &Context, ended: &Ended) {
    if let Delivery::Notify(listener) = &ended.delivery {
        let channel = listener.channel();
        published::publish(ctx, channel, "withdrawn", None, &ended.owner, &ended.key);
    }
}
