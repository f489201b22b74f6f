//! The lock itself: who holds, who waits, and who is next.
//!
//! Hand-off is a function of three things: the [`Hold`] that the store keeps,
//! the queue of tickets that this crate keeps, and the time that the caller
//! passes in. Every operation of [`Locks`] changes one of the three and then
//! *settles*: what lapsed is dropped, and whoever is first in the queue and
//! fits becomes a holder.
//!
//! Nothing here reads a clock, does I/O, knows Redis, or runs in a thread. The
//! same input gives the same output, which is why the rules can be shown by
//! text files (`tests/scenarios`) and checked against a second, naive model.
//!
//! # Layout
//!
//! - [`time`](Timestamp): the only notion of time;
//! - [`hold`](Hold), [`fence`](Fence): who holds, and under which number;
//! - [`ticket`](Ticket), `queue`, `table`, `deadlines`: who waits; no rules;
//! - [`step`](Step): what an operation answers, and whom else it concerns;
//! - [`lock`](Locks), `acquire`, `settle`, `sweep`: the rules.
#![forbid(unsafe_code)]

mod acquire;
mod counters;
mod deadlines;
mod fence;
mod hold;
mod invariants;
mod lock;
mod queue;
mod settle;
mod step;
mod sweep;
mod table;
mod ticket;
mod time;

pub use counters::{Counters, Gauges};
pub use fence::Fence;
pub use hold::{Hold, Mode, Who};
pub use lock::Locks;
pub use queue::Watch;
pub use step::{Admission, Announce, Due, Effect, Limits, Name, Refusal, Request, Step, Wait};
pub use table::WaiterView;
pub use ticket::{Delivery, Ticket, TicketId};
pub use time::Timestamp;
