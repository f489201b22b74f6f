//! The core against scenarios, against a naive model of the contract, and
//! against the clock.

mod allocations;
mod codec;
mod crowds;
mod fences;
mod native;
mod properties;
mod requests;
mod scenario;
mod sessions;
mod short;
mod shown;
mod stage;
mod sweeps;
mod turns;
mod walk;
