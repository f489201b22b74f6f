//! The endpoint alone, and the session above it: a script of events, and the actions as lines.
//!
//! It has no I/O and no clock, so a test says when a connection is open, which
//! bytes arrive, and how much time passes.

mod closing;
mod cluster;
mod cost;
mod earlier;
mod greeting;
mod holds;
mod late;
mod lost;
mod observers;
mod outages;
mod permits;
mod played;
mod questions;
mod quorum;
mod replies;
mod sentinels;
mod separate;
mod session;
mod waits;
mod watchdog;
