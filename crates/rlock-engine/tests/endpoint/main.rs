//! The endpoint by itself: what happens to it as a script, what it says as lines.
//!
//! There is no I/O and no clock in it, so a test tells it that a connection is
//! open, which bytes came, and how much time passes.

mod beside;
mod cluster;
mod greeting;
mod observers;
mod played;
mod questions;
mod replies;
mod sentinels;
