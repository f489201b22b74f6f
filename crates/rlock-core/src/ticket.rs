//! A waiter's place in one queue, and the delivery of its outcome.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::table::QueueId;
use crate::{AcquireOptions, Extras, Request, Timestamp};

/// The number of a ticket; one table never reuses it, so a stale number finds
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(NonZeroU64);

impl TicketId {
    /// Before every ticket.
    pub(crate) const MIN: Self = Self(NonZeroU64::MIN);
    /// After every ticket.
    pub(crate) const MAX: Self = Self(NonZeroU64::MAX);

    pub(crate) const fn new(number: NonZeroU64) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> NonZeroU64 {
        self.0
    }
}

/// The number of a request for several keys, which has a ticket in the queue of
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MultiId(pub(crate) NonZeroU64);

/// A request for several keys.
#[derive(Debug)]
pub(crate) struct Multi {
    /// Its tickets, in the order of its keys.
    pub(crate) members: Vec<TicketId>,
    /// The ticket that was last seen not ready: it is checked first, so that each
    /// freed lock does not cause a check of a thousand keys.
    pub(crate) unready: usize,
}

/// The kind of the channel for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChannelKind {
    /// One that reaches every node of a cluster (`PUBLISH`).
    Plain,
    /// One that belongs to the node that serves its slot (`SPUBLISH`).
    Sharded,
}

/// A channel in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel<'a> {
    /// Its kind.
    pub kind: ChannelKind,
    /// Its name.
    pub name: &'a [u8],
}

/// The receiver of messages: a connection and its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The connection that asked; its requests end with it.
    pub session: u64,
    /// The kind of the channel.
    pub kind: ChannelKind,
    /// The name of the channel.
    pub channel: Box<[u8]>,
}

impl Listener {
    /// The channel for the messages.
    #[must_use]
    pub fn channel(&self) -> Channel<'_> {
        Channel {
            kind: self.kind,
            name: &self.channel,
        }
    }
}

/// A call that waits for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedCall {
    /// The connection that waits.
    pub session: u64,
    /// The shell's number of the blocked call.
    pub handle: u64,
}

/// How the outcome is delivered to the waiter. The core only carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The reply to a blocked call. Boxed, to keep tickets small.
    Blocked(Box<BlockedCall>),
    /// A message. All requests of a connection share one listener.
    Notify(Arc<Listener>),
    /// Nobody waits: the place is kept until its owner returns.
    Kept,
}

impl Delivery {
    /// The reply to the blocked call `handle` of a connection.
    #[must_use]
    pub fn blocked(session: u64, handle: u64) -> Self {
        Self::Blocked(Box::new(BlockedCall { session, handle }))
    }

    /// The blocked call, if the outcome is its reply.
    #[must_use]
    pub const fn blocked_call(&self) -> Option<&BlockedCall> {
        match self {
            Self::Blocked(call) => Some(call),
            Self::Notify(_) | Self::Kept => None,
        }
    }

    /// The waiting connection, if there is one.
    #[must_use]
    pub fn session(&self) -> Option<u64> {
        match self {
            Self::Blocked(call) => Some(call.session),
            Self::Notify(listener) => Some(listener.session),
            Self::Kept => None,
        }
    }

    /// The listener, if the outcome is a message.
    #[must_use]
    pub const fn listener(&self) -> Option<&Arc<Listener>> {
        match self {
            Self::Notify(listener) => Some(listener),
            Self::Blocked(_) | Self::Kept => None,
        }
    }
}

/// A waiter's place in a queue, and its request.
///
/// The place is *kept* while nobody waits in it: its owner's call has ended, and
/// the owner may return until its grace is over.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// The owner.
    pub owner: Box<[u8]>,
    /// The request's options.
    pub options: AcquireOptions,
    /// Whether it was put before all others, for an upgrade.
    pub(crate) is_upgrade: bool,
    /// When the owner first asked; a takeover does not change it.
    pub(crate) since: Timestamp,
    /// When the wait ends, or the grace of a kept place; [`Timestamp::NEVER`] for
    /// a wait without a limit.
    pub(crate) wait_ends: Timestamp,
    /// How the outcome is delivered.
    pub delivery: Delivery,
    pub(crate) multi: Option<MultiId>,
    pub(crate) queue: QueueId,
    /// The user for whom the place counts, by a hash of the name: the user that
    /// asked last.
    pub(crate) user: Option<NonZeroU64>,
    /// The extras of the hold. Boxed, because few tickets have any.
    pub(crate) extras: Option<Box<Extras>>,
}

/// The allocator rounds up to this size, and there may be a million tickets.
const _: () = assert!(size_of::<Ticket>() <= 112, "a ticket has grown");

fn boxed(extras: Extras<&[u8]>) -> Option<Box<Extras>> {
    (!extras.are_none()).then(|| Box::new(extras.kept()))
}

impl Ticket {
    /// A place in `queue` for a new request.
    pub(crate) fn new(
        now: Timestamp,
        queue: QueueId,
        request: &Request<'_>,
        delivery: Delivery,
    ) -> Self {
        Self {
            owner: request.owner.into(),
            options: request.options,
            is_upgrade: false,
            since: now,
            wait_ends: request.wait.ends(now),
            delivery,
            multi: None,
            queue,
            user: None,
            extras: boxed(request.extras),
        }
    }

    /// Gives the place to a later request of its owner, and returns the delivery
    /// of the earlier one.
    pub(crate) fn take_over(
        &mut self,
        now: Timestamp,
        request: &Request<'_>,
        delivery: Delivery,
    ) -> Delivery {
        self.options = request.options;
        self.wait_ends = request.wait.ends(now);
        self.extras = boxed(request.extras);
        std::mem::replace(&mut self.delivery, delivery)
    }

    /// Whether nobody waits in the place.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        matches!(self.delivery, Delivery::Kept)
    }

    /// Until when the place is kept if its call ends now.
    pub(crate) fn kept_until(&self, now: Timestamp) -> Option<Timestamp> {
        Some(now.plus_millis(self.options.keep?.millis().into()))
    }

    /// Ends the call, and returns its delivery.
    pub(crate) fn keep_until(&mut self, until: Timestamp) -> Delivery {
        self.wait_ends = until;
        self.options.bind = None;
        self.extras = None;
        std::mem::replace(&mut self.delivery, Delivery::Kept)
    }

    fn has_value(&self) -> bool {
        self.extras.as_ref().is_some_and(|it| it.value.is_some())
    }

    /// Whether the hold must be remembered once it is granted: its loss is
    /// reported, it is bound to its connection, or it has a value.
    pub(crate) fn is_watched(&self) -> bool {
        self.options.bind.is_some()
            || self.has_value()
            || matches!(self.delivery, Delivery::Notify(_))
    }
}

/// The position of a ticket in its queue: by arrival, but an upgrade comes before
/// all existing tickets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(i64);

impl Rank {
    /// Before every ticket.
    pub(crate) const MIN: Self = Self(i64::MIN);
    /// After every ticket.
    pub(crate) const MAX: Self = Self(i64::MAX);

    pub(crate) fn of(id: TicketId, is_upgrade: bool) -> Self {
        // Ticket numbers never get that large.
        let arrival = i64::try_from(id.0.get()).unwrap_or(i64::MAX - 1);
        Self(if is_upgrade { -arrival } else { arrival })
    }

    pub(crate) const fn is_upgrade(self) -> bool {
        self.0 < 0
    }

    /// The ticket at this position.
    pub(crate) const fn id(self) -> TicketId {
        match NonZeroU64::new(self.0.unsigned_abs()) {
            Some(number) => TicketId(number),
            None => TicketId::MIN,
        }
    }
}
