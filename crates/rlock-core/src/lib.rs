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
//! - [`hold`](Hold), [`shared`](Shared), `holders`, `changes`, [`fence`](Fence): who holds, and under
//!   which number;
//! - [`ticket`](Ticket), `watch`, `queue`, `table`, `tickets`, `watches`,
//!   `deadlines`: who waits, and what is remembered of holds; no rules;
//! - [`step`](Step): what an operation answers, and whom else it concerns;
//!   `granted`: a hand-off until it has arrived;
//! - [`lock`](Locks), `acquire`, `multi`, `grant`, `bind`: the rules of what is
//!   asked; `settle`, `losses`, `ready`, `offer`, `sweep`: of what follows from
//!   it; `budget`: how much of that in one turn;
//! - `wait_for`, `graph`: deadlocks; `views`: what an operator sees;
//! - [`syntax`]: from the words of a command to a request.
#![forbid(unsafe_code)]

mod acquire;
mod bind;
mod budget;
mod changes;
mod counters;
mod deadlines;
mod fence;
mod grant;
mod granted;
mod graph;
mod hold;
mod holders;
mod invariants;
mod lock;
mod losses;
mod multi;
mod offer;
mod queue;
mod ready;
mod settle;
mod shared;
mod step;
mod sweep;
pub mod syntax;
mod table;
mod ticket;
mod tickets;
mod time;
mod views;
mod wait_for;
mod watch;
mod watches;

pub use changes::Change;
pub use counters::{Counters, Gauges};
pub use fence::Fence;
pub use granted::{Granted, KeptPlace};
pub use hold::{Hold, Mode, Who};
pub use lock::Locks;
pub use shared::{Holder, Shared};
pub use step::{
    Admission, Announce, Due, Effect, Ended, Limits, Name, Refusal, Renewal, Request, Step, Wait,
};
pub use ticket::{Channel, ChannelKind, Delivery, Listener, Ticket, TicketId};
pub use time::Timestamp;
pub use views::{ContendedView, WaiterView};
pub use wait_for::{Holders, VisitHolder};
pub use watch::Binding;
