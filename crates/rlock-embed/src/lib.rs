//! The engine of rlock's clients for other languages.
//!
//! A [`Machine`] is a client without sockets and without a clock. Its host, a
//! small library in some language, opens connections, reads and writes bytes,
//! keeps the time, and returns answers to callers. Everything else happens here,
//! in the same code as in the Rust client: waiting, renewing, reconnecting,
//! Sentinels, clusters, losses.
//!
//! Events and actions are bytes in a fixed format, so a host needs no Rust types.
//! `docs/embedding.md` explains how to write a host.
//!
//! - [`machine`](Machine): calls, guards, and their outcomes;
//! - [`format`](mod@format): what events and actions are made of, as bytes;
//! - [`messages`]: all events and actions;
//! - `meaning`: what they mean to the engine;
//! - `wasm`: the machine as functions of a WebAssembly module;
//! - `java`, `python`: the machine as a native library of Java or module of Python, with the feature of that name.

pub mod format;
#[cfg(feature = "java")]
pub mod java;
mod machine;
mod meaning;
pub mod messages;
#[cfg(feature = "python")]
mod python;
#[cfg(target_family = "wasm")]
pub mod wasm;

pub use format::{Malformed, VERSION};
pub use machine::Machine;
