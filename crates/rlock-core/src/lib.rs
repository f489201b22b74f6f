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
//! - [`ticket`](Ticket), `table`: who waits; no rules;
//! - [`step`](Step): what an operation answers, and whom else it concerns;
//! - [`lock`](Locks), `acquire`, `multi`, `grant`: the rules of what is asked;
//!   `settle`, `watch`, `sweep`: of what follows from it;
//! - `wait_for`, `graph`: deadlocks; `views`: what an operator sees;
//! - [`syntax`]: from the words of a command to a request; [`setting`](Setting),
//!   [`metric`](Metric): what a server can be told, and what it tells of itself.
#![forbid(unsafe_code)]

mod acquire;
pub mod codec;
mod fence;
mod grant;
mod graph;
mod hold;
mod lock;
mod metric;
mod multi;
mod setting;
mod settle;
mod shared;
mod step;
mod sweep;
pub mod syntax;
mod table;
mod ticket;
mod time;
mod views;
mod wait_for;
mod watch;

pub use fence::Fence;
pub use grant::{Granted, KeptPlace};
pub use hold::{Hold, Mode, Who};
pub use lock::Locks;
pub use metric::{Counters, Gauges, Metric, MetricKind};
pub use setting::{Setting, SettingKind};
pub use shared::{Change, Holder, Shared};
pub use step::{
    AcquireOptions, Admission, Announce, Due, Effect, Ended, Limits, Name, Refusal, Renewal,
    Request, Step, Wait,
};
pub use ticket::{Channel, ChannelKind, Delivery, Listener, Ticket, TicketId};
pub use time::{Grace, Timestamp};
pub use views::{ContendedView, Holding, ViewFields, ViewValue, WaiterView};
pub use wait_for::{Holders, VisitHolder};
pub use watch::Binding;
