//! The servers that tests, benchmarks and examples run on, with the module.
//!
//! - [`Server`] is one server, started from a [`Setup`]; [`Client`] and [`Subscriber`] are connections to it that can be
//!   left waiting;
//! - [`asynchronous`] is the same for tests on a runtime, where others go on while a server starts;
//! - [`Cluster`](cluster::Cluster) and [`Sentinel`](sentinel::Sentinel) are made of those; so is a master with its
//!   [`replica`](sentinel::replica_of);
//! - [`Proxy`](proxy::Proxy) is a network that can be told to fail;
//! - [`certificates`] are made for one test;
//! - [`core`] is the core without a server, in virtual time, and beside it a naive second model of the contract;
//! - [`script`] reads the scenarios, which are played on both.
//!
//! Each server has a directory of its own, ends with the value that stands for it, and has to be well until then: alive,
//! without a crash report, and without a panic that the module had to catch.
//!
//! The program `rlock-testserver` starts the same for tests in other languages.

#[cfg(feature = "servers")]
pub mod asynchronous;
#[cfg(feature = "servers")]
pub mod certificates;
#[cfg(feature = "servers")]
pub mod client;
#[cfg(feature = "servers")]
pub mod cluster;
pub mod core;
#[cfg(feature = "servers")]
pub mod proxy;
#[cfg(feature = "servers")]
mod questions;
pub mod script;
#[cfg(feature = "servers")]
pub mod sentinel;
#[cfg(feature = "servers")]
mod server;
#[cfg(feature = "servers")]
mod setup;
#[cfg(feature = "servers")]
pub mod signal;
#[cfg(feature = "servers")]
pub mod views;

#[cfg(feature = "servers")]
pub use client::{Client, PATIENCE, Subscriber, eventually};
#[cfg(feature = "servers")]
pub use server::{Server, free_port, replicated};
#[cfg(feature = "servers")]
pub use setup::{Setup, module, program};

#[cfg(feature = "servers")]
/// Runs what is asynchronous in a test, or a program, that is not.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: std::sync::LazyLock<tokio::runtime::Runtime> =
        std::sync::LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime can be made"));
    RUNTIME.block_on(future)
}
