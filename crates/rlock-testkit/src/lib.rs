//! Servers with the module for tests, benchmarks and examples.
//!
//! - [`Server`] is one server, started from a [`Setup`]; [`Client`] and [`Subscriber`] are connections to it that can
//!   be left waiting;
//! - [`asynchronous`] is the same for tests on a runtime, where other tasks run while a server starts;
//! - [`Cluster`](cluster::Cluster) and [`Sentinel`](sentinel::Sentinel) consist of these, as does a master with its
//!   [`replica`](sentinel::replica_of);
//! - [`Counted`] is a server whose instructions are counted, where valgrind is installed;
//! - [`Proxy`](proxy::Proxy) is a network that can fail on request;
//! - [`certificates`] makes certificates for one test;
//! - [`core`] is the core without a server, in virtual time, together with a naive second model of the contract;
//! - [`history`] records a run with faults, and checks it for forbidden events;
//! - [`script`] reads the scenarios, which run against both;
//! - [`seeds`] gives random tests other seeds in each run.
//!
//! Each server has its own directory and ends when its value is dropped. Until then it must be healthy: alive, without
//! a crash report, and without a panic in the module.
//!
//! What a test cannot go on without, such as a server that starts, panics here where it is missing.
//!
//! The program `rlock-testserver` starts the same servers for tests in other languages.

pub mod core;
pub mod history;
pub mod script;
pub mod seeds;
#[cfg(feature = "servers")]
mod servers;

#[cfg(feature = "servers")]
pub use servers::*;
