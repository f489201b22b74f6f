//! The servers that tests, benchmarks and examples run on, with the module.
//!
//! - [`Server`] is one server, started from a [`Setup`]; [`Client`] and [`Subscriber`] are connections to it that can be
//!   left waiting;
//! - [`asynchronous`] is the same for tests on a runtime, where others go on while a server starts;
//! - [`Cluster`](cluster::Cluster) and [`Sentinel`](sentinel::Sentinel) are made of those; so is a master with its
//!   [`replica`](sentinel::replica_of);
//! - [`Proxy`](proxy::Proxy) is a network that fails on demand;
//! - [`certificates`] are made for one test;
//! - [`core`] is the core without a server, in virtual time, and beside it a naive second model of the contract;
//! - [`history`] is what happened in a run amid faults, and a checker of what must not have happened;
//! - [`script`] reads the scenarios, which are played on both.
//!
//! Each server has a directory of its own, ends with the value that stands for it, and has to be well until then: alive,
//! without a crash report, and without a panic that the module had to catch.
//!
//! The program `rlock-testserver` starts the same for tests in other languages.

pub mod core;
pub mod history;
pub mod script;
#[cfg(feature = "servers")]
mod servers;

#[cfg(feature = "servers")]
pub use servers::*;
