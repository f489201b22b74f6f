//! The core against scenarios, against a naive model of the contract, and
//! against the clock.

mod allocations;
mod apply;
mod codec;
mod crowds;
mod decode;
mod driver;
mod fences;
mod foreign;
mod in_order;
mod model;
mod native;
mod operation;
mod pair;
mod pair_checks;
mod perform;
mod properties;
mod reached;
mod requests;
mod scenario;
mod seen;
mod sessions;
mod several;
mod short;
mod shown;
mod stage;
mod store;
mod stored;
mod sweeps;
mod told;
mod transact;
mod walk;
