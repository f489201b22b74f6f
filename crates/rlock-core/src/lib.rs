//! The lock itself: who holds it, who waits, and who is next.
//!
//! Hand-off depends on three things: the [`Hold`] in the store, the queue of
//! tickets in this crate, and the time that the caller passes in. Every operation
//! of [`Locks`] changes one of the three and then *settles*: it drops what has
//! lapsed, and the first in the queue that fit become holders.
//!
//! Nothing here reads a clock, does I/O, knows Redis, or starts a thread. The
//! same input gives the same output. So text files (`tests/scenarios`) can show
//! the rules, and a second, naive model can check them.
//!
//! # Layout
//!
//! - [`time`](Timestamp): the only notion of time;
//! - [`hold`](Hold), [`shared`](Shared), [`fence`](Fence): the holders and their
//!   fences;
//! - [`extras`](Extras): what a hold may have beside its holder;
//! - [`codec`]: the format of a hold in a hash;
//! - [`ticket`](Ticket), `table`, [`watch`](Binding): the waiters and the owners
//!   to notify; no rules;
//! - [`step`](Step): the reply of an operation, and its effects on others;
//! - [`locks`](Locks): the rules. Only they see queues, fences and pending work.
//!   `acquire`, `multi` and `grant` are for requests, `settle`, `watches` and
//!   `sweep` for the consequences, `wait_for` and `graph` for deadlocks; `views`
//!   shows the state to an operator;
//! - [`syntax`]: from the words of a command to a request; [`setting`](Setting),
//!   [`metric`](Metric), [`waits`](Waits): the settings and the metrics of a
//!   server.
#![forbid(unsafe_code)]

pub mod codec;
mod extras;
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

pub use extras::{Extra, Extras};
pub use fence::Fence;
pub use hold::{AcquireOptions, Hold, Holder, Mode, Who};
pub use locks::{
    ContendedView, Granted, Holders, Holding, Locks, ViewFields, ViewValue, VisitHolder, WaiterView,
};
pub use metric::{Counters, Gauges, Metric, MetricKind};
pub use setting::{Setting, SettingKind};
pub use shared::{Change, Shared};
pub use step::{
    Admission, Announce, Due, Effect, Ended, Limits, Name, Refusal, Renewal, Request, Step,
    ValueMessage, Wait,
};
pub use ticket::{BlockedCall, Channel, ChannelKind, Delivery, Listener, Ticket, TicketId};
pub use time::{Grace, Timestamp};
pub use waits::Waits;
pub use watch::Binding;
