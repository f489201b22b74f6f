//! The core against scenarios, against a naive model of the contract, and
//! against the clock.

mod driver;
mod fences;
mod foreign;
mod model;
mod model_settle;
mod native;
mod operation;
mod pair;
mod pair_checks;
mod perform;
mod properties;
mod requests;
mod scenario;
mod script;
mod sessions;
mod stage;
mod store;
mod sweeps;
mod told;
mod walk;
