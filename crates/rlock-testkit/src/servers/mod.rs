//! Servers with the module, and connections to them.

pub mod asynchronous;
pub mod certificates;
pub mod client;
pub mod cluster;
mod counted;
pub mod proxy;
mod questions;
pub mod sentinel;
mod server;
mod setup;
pub mod signal;
pub mod views;

pub use client::{Client, PATIENCE, Subscriber, eventually};
pub use counted::Counted;
pub use server::{Server, free_port, replicated};
pub use setup::{Setup, module, program};

/// Runs an asynchronous function in a test or a program that is not asynchronous.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: std::sync::LazyLock<tokio::runtime::Runtime> =
        std::sync::LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime can be made"));
    RUNTIME.block_on(future)
}
