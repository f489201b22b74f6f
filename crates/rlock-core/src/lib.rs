//! The lock itself: who holds, who waits, and who is next.
//!
//! Hand-off is a function of three things: the [`Hold`] that the store keeps,
//! the queue of tickets that this crate keeps, and the time that the caller
//! passes in. Every operation of [`Locks`] changes one of the three and then
//! *settles*: what lapsed is dropped, and those who are first in the queue and
//! fit become holders.
//!
//! Nothing here reads a clock, does I/O, knows Redis, or runs in a thread. The
//! same input gives the same output, which is why the rules can be shown by
//! text files (`tests/scenarios`) and checked against a second, naive model.
//!
//! # Layout
//!
//! - [`time`](Timestamp): the only notion of time;
//! - [`hold`](Hold), [`shared`](Shared), [`fence`](Fence): who holds, and under
//!   which number;
//! - [`codec`]: how a hold is kept in a hash;
//! - [`ticket`](Ticket), `table`, [`watch`](Binding): who waits, and who must
//!   be notified; no rules;
//! - [`step`](Step): what an operation answers, and whom else it concerns;
//! - [`locks`](Locks): the rules, which alone see queues, fences and the work
//!   that is left. `acquire`, `multi`, `grant` have those of what is asked,
//!   `settle`, `watches`, `sweep` those of what follows from it, `wait_for` and
//!   `graph` those of deadlocks; `views` shows an operator the rest;
//! - [`syntax`]: from the words of a command to a request; [`setting`](Setting),
//!   [`metric`](Metric), [`waits`](Waits): what a server can be set to,
//!   and what it shows of itself.
#![forbid(unsafe_code)]

pub mod codec;
mod fence;
mod hold;
mod locks;
mod metric;
mod setting;
mod shared;
mod step;
pub mod syntax;
mod table;
mod ticket;
mod time;
mod waits;
mod watch;

pub use fence::Fence;
pub use hold::{AcquireOptions, Hold, Holder, Mode, Who};
pub use locks::{
    ContendedView, Granted, Holders, Holding, KeptPlace, Locks, ViewFields, ViewValue, VisitHolder,
    WaiterView,
};
pub use metric::{Counters, Gauges, Metric, MetricKind};
pub use setting::{Setting, SettingKind};
pub use shared::{Change, Shared};
pub use step::{
    Admission, Announce, Due, Effect, Ended, Limits, Name, Refusal, Renewal, Request, Step,
    ValueMessage, Wait,
};
pub use ticket::{Channel, ChannelKind, Delivery, Listener, Ticket, TicketId};
pub use time::{Grace, Timestamp};
pub use waits::Waits;
pub use watch::Binding;
