//! The client against real servers.
//!
//! Each test starts a server of its own, on a free port in a directory of its
//! own: `RLOCK_SERVER` names the program (default `redis-server`),
//! `RLOCK_MODULE` the module (default: the release build of this workspace).

mod blocking;
mod cancel;
mod cost;
mod faults;
mod killed;
mod lock;
mod loss;
mod proxy;
mod reentry;
mod refused;
mod replica;
mod server;
mod stopped;
