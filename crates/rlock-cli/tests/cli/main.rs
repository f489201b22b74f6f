//! The command line against real servers.
//!
//! Each test starts a server of its own, on a free port in a directory of its
//! own: `RLOCK_SERVER` names the program (default `redis-server`),
//! `RLOCK_MODULE` the module (default: the release build of this workspace).

mod bench;
mod clusters;
mod doctor;
mod documents;
mod election;
mod exec;
mod exporter;
mod foreground;
mod loss;
mod pages;
mod program;
mod prometheus;
mod questions;
mod quorum;
mod rights;
mod sentinels;
mod server;
mod several;
mod sharing;
mod signals;
mod terminal;
#[cfg(feature = "tls-rustls")]
mod tls;
mod top;
mod trouble;
mod upgrading;
