//! What a client of rlock decides: no socket, no thread, no clock.
//!
//! This crate is for runtimes of the client, such as `rlock-client`, and may
//! change with every release. Programs use `rlock-client`.
//!
//! - [`engine`]: all decisions, in one state machine. What happens when the
//!   connection is lost while somebody waits is in `engine/call.rs`;
//! - [`error`]: what can go wrong, and which answers of a server mean what;
//! - [`endpoint`]: the engine with its connections: bytes in, bytes out;
//! - [`servers`]: where the servers are, as a URL says it;
//! - [`wire`]: commands, replies and messages as bytes, and back.

#![forbid(unsafe_code)]

pub mod endpoint;
pub mod engine;
pub mod error;
pub mod servers;
pub mod wire;
