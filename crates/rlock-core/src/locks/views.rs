//! The views for an operator: who waits for a lock, and which locks have waiters.

use std::array;
use std::iter::Flatten;
use std::sync::Arc;
use std::time::Duration;

use crate::table::Queue;
use crate::{Extras, Fence, Holder, Locks, Mode, Name, Ticket, Timestamp};

/// The number of waiters that are checked to find the longest wait.
const FIRST_MAX: usize = 64;

/// The number of waiters that are shown for a lock.
const WAITERS_SHOWN: usize = 100;

/// The most fields of one view.
const FIELDS_MAX: usize = 7;

/// A view: its fields in order, each with its name. They need no allocation,
/// because thousands of holders may be shown.
pub struct ViewFields<'a>([Option<(&'static str, ViewValue<'a>)>; FIELDS_MAX]);

impl<'a> ViewFields<'a> {
    fn of<const N: usize>(fields: [(&'static str, ViewValue<'a>); N]) -> Self {
        const { assert!(N <= FIELDS_MAX) };
        let mut all = [const { None }; FIELDS_MAX];
        for (room, field) in all.iter_mut().zip(fields) {
            *room = Some(field);
        }
        Self(all)
    }

    /// The number of fields.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }
}

impl<'a> IntoIterator for ViewFields<'a> {
    type Item = (&'static str, ViewValue<'a>);
    type IntoIter = Flatten<array::IntoIter<Option<Self::Item>, FIELDS_MAX>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}

/// The value of a field.
pub enum ViewValue<'a> {
    /// None, or unknown.
    Nil,
    /// A number.
    Number(u64),
    /// A text.
    Text(&'a [u8]),
    /// A list of views, each made on demand.
    List(Box<dyn ExactSizeIterator<Item = ViewFields<'a>> + 'a>),
}

impl From<u64> for ViewValue<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<Duration> for ViewValue<'_> {
    fn from(time: Duration) -> Self {
        Self::Number(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<Option<u64>> for ViewValue<'_> {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Self::Nil, Self::Number)
    }
}

impl From<Option<Fence>> for ViewValue<'_> {
    fn from(fence: Option<Fence>) -> Self {
        fence.map(Fence::get).into()
    }
}

impl<'a> From<Option<&'a [u8]>> for ViewValue<'a> {
    fn from(text: Option<&'a [u8]>) -> Self {
        text.map_or(Self::Nil, Self::Text)
    }
}

impl<'a> From<&'a [u8]> for ViewValue<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self::Text(text)
    }
}

impl From<&'static str> for ViewValue<'_> {
    fn from(text: &'static str) -> Self {
        Self::Text(text.as_bytes())
    }
}

/// The holders of a lock whose leases have not ended.
#[derive(Debug, Default)]
pub struct Holding {
    /// Whether it is held in shared mode, if it is held.
    pub is_shared: bool,
    /// The holders, each with its owner.
    pub holders: Vec<(Arc<[u8]>, Holder)>,
    /// The extras of an exclusive holder.
    pub extras: Extras,
}

impl Holding {
    /// The fields of `RLOCK.INFO` for a lock. Without `locks` the waiters are
    /// unknown.
    #[must_use]
    pub fn fields<'a>(
        &'a self,
        now: Timestamp,
        name: Name<'a>,
        locks: Option<&'a Locks>,
    ) -> ViewFields<'a> {
        let waiters = locks.map(|locks| locks.waiters(now, name).take(WAITERS_SHOWN));
        let waiters: Vec<_> = waiters.into_iter().flatten().collect();
        let holders = self.holders.iter().map(move |(owner, holder)| {
            let is_bound = locks.is_some_and(|locks| locks.is_bound(name, owner));
            holder_fields(now, owner, holder, is_bound, &self.extras)
        });
        let fence = self.holders.iter().filter_map(|it| it.1.fence).max();
        ViewFields::of([
            ("mode", mode(self.is_shared, self.holders.len()).into()),
            ("fence", fence.into()),
            ("holders", ViewValue::List(Box::new(holders))),
            ("queued", locks.map(|it| u64::from(it.queued(name))).into()),
            (
                "waiters",
                ViewValue::List(Box::new(waiters.into_iter().map(waiter_fields))),
            ),
        ])
    }
}

fn holder_fields<'a>(
    now: Timestamp,
    owner: &'a [u8],
    holder: &Holder,
    is_bound: bool,
    extras: &'a Extras,
) -> ViewFields<'a> {
    ViewFields::of([
        ("owner", owner.into()),
        ("count", u64::from(holder.count).into()),
        ("permits", u64::from(holder.permits).into()),
        ("lease-left-ms", holder.deadline.millis_from(now).into()),
        ("fence", holder.fence.into()),
        ("bound", u64::from(is_bound).into()),
        ("value", extras.value.as_deref().into()),
    ])
}

fn waiter_fields(waiter: WaiterView<'_>) -> ViewFields<'_> {
    let is_shared = waiter.mode != Mode::Exclusive;
    ViewFields::of([
        ("owner", waiter.owner.into()),
        ("mode", mode(is_shared, 1).into()),
        ("waited-ms", waiter.waited.into()),
        ("wait-left-ms", waiter.wait_left_ms.into()),
        ("client-id", waiter.session.into()),
        ("kept-left-ms", waiter.kept_left_ms.into()),
    ])
}

/// The word for a mode. A lock without holders is free.
const fn mode(is_shared: bool, holders: usize) -> &'static str {
    match (holders, is_shared) {
        (0, _) => "free",
        (_, true) => "shared",
        (_, false) => "exclusive",
    }
}

/// One waiter, for an operator.
#[derive(Clone, Copy, Debug)]
pub struct WaiterView<'a> {
    /// The owner.
    pub owner: &'a [u8],
    /// The requested mode.
    pub mode: Mode,
    /// How long it has waited, since it first asked.
    pub waited: Duration,
    /// The milliseconds until its wait ends; `None` for no limit, or if nobody
    /// waits in the place.
    pub wait_left_ms: Option<u64>,
    /// The waiting connection, if there is one.
    pub session: Option<u64>,
    /// The milliseconds until a kept place ends, if nobody waits in it.
    pub kept_left_ms: Option<u64>,
}

/// A lock with a queue, for an operator.
#[derive(Clone, Copy, Debug)]
pub struct ContendedView<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The number of places in its queue, including kept ones.
    pub waiters: u32,
    /// The age of the first of them.
    pub oldest_wait: Duration,
}

impl<'a> ContendedView<'a> {
    /// The fields of `RLOCK.LIST` for a lock with this number of holders.
    #[must_use]
    pub fn fields(&self, is_shared: bool, holders: usize) -> ViewFields<'a> {
        ViewFields::of([
            ("key", self.key.into()),
            ("mode", mode(is_shared, holders).into()),
            ("holders", (holders as u64).into()),
            ("waiters", u64::from(self.waiters).into()),
            ("oldest-wait-ms", self.oldest_wait.into()),
        ])
    }
}

impl Locks {
    /// The places in the queue of a lock in order, including kept ones.
    pub fn waiters(&self, now: Timestamp, name: Name<'_>) -> impl Iterator<Item = WaiterView<'_>> {
        let queue = self.table.find(name);
        queue.into_iter().flat_map(move |id| {
            let places = self.table.places(id);
            places.map(move |ticket| view(now, ticket))
        })
    }

    /// The number of places in the queue of a lock, including kept ones.
    #[must_use]
    pub fn queued(&self, name: Name<'_>) -> u32 {
        let queue = self.table.find(name);
        let queue = queue.and_then(|id| self.table.queue(id));
        queue.map_or(0, Queue::len)
    }

    /// The locks of a database with places in their queues: first those with the
    /// most places, and for equal numbers the oldest queue.
    pub fn most_contended(
        &self,
        now: Timestamp,
        db: u32,
    ) -> impl Iterator<Item = ContendedView<'_>> {
        self.table.contended(db).map(move |(id, queue)| {
            // Tickets that were put first may have come after all others.
            let mut since = Timestamp::NEVER;
            for ticket in self.table.places(id).take(FIRST_MAX) {
                since = since.min(ticket.since);
                if !ticket.is_upgrade {
                    break;
                }
            }
            ContendedView {
                key: queue.name().key,
                waiters: queue.len(),
                oldest_wait: now.since(since),
            }
        })
    }
}

fn view(now: Timestamp, ticket: &Ticket) -> WaiterView<'_> {
    let left = (ticket.wait_ends != Timestamp::NEVER).then(|| ticket.wait_ends.millis_from(now));
    WaiterView {
        owner: &ticket.owner,
        mode: ticket.options.mode,
        waited: now.since(ticket.since),
        wait_left_ms: left.filter(|_| !ticket.is_kept()),
        session: ticket.delivery.session(),
        kept_left_ms: left.filter(|_| ticket.is_kept()),
    }
}
