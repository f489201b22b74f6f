//! The engine of rlock's clients inside another language.
//!
//! A [`Machine`] is a client without its sockets and its clock. Its host, a small
//! library of some language, makes connections, reads and writes bytes, keeps the
//! time, and gives callers their answers. Everything else is decided here, by the
//! same code as in the client for Rust: waiting, renewing, reconnecting, Sentinels,
//! clusters, losses.
//!
//! Events and actions are bytes in a fixed form, so that a host needs no types of
//! Rust. `docs/embedding.md` tells how to write one.
//!
//! - [`machine`](Machine): calls, guards, and what becomes of them;
//! - [`format`](Malformed): events and actions as bytes;
//! - `wasm`: the same as functions of a WebAssembly module;
//! - `python`: the same as a module of Python, with the feature of that name.

mod format;
mod machine;
#[cfg(feature = "python")]
mod python;
#[cfg(target_family = "wasm")]
pub mod wasm;

pub use format::{Malformed, VERSION};
pub use machine::Machine;
