//! The decisions of an rlock client, without sockets, threads and clocks.
//!
//! This crate is for runtimes of the client, such as `rlock-client`, and may
//! change with every release. Programs use `rlock-client`.
//!
//! - [`engine`]: all decisions, in one state machine. `engine/call.rs` handles a
//!   connection that is lost while a call waits;
//! - [`error`]: the errors, and which server replies lead to them;
//! - `rights`: the ACL rule that a user lacks;
//! - [`endpoint`]: the engine with its connections: bytes in, bytes out;
//! - [`session`]: the calls and guards of a client, above its endpoint;
//! - [`servers`]: the addresses of the servers, as parsed from a URL;
//! - [`wire`]: encoding of commands, decoding of replies and messages.

#![forbid(unsafe_code)]

pub mod endpoint;
pub mod engine;
pub mod error;
mod rights;
pub mod servers;
pub mod session;
pub mod wire;
