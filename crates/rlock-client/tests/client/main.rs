//! The client against real servers.
//!
//! Each test starts a server of its own, on a free port in a directory of its
//! own: `RLOCK_SERVER` names the program (default `redis-server`),
//! `RLOCK_MODULE` the module (default: the release build of this workspace).

mod address;
mod blocking;
mod bound;
mod calm;
mod cancel;
mod cancel_faults;
mod cluster;
mod connecting;
mod connects;
mod cost;
mod deadlock;
mod election;
mod faults;
mod kept;
mod killed;
mod kinds;
mod list;
mod lock;
mod loss;
mod messages;
mod multi;
mod multi_cluster;
mod outages;
mod probe;
#[cfg(feature = "quorum")]
mod quorum;
#[cfg(feature = "quorum")]
mod quorum_faults;
mod reentry;
mod refused;
mod renewals;
mod replica;
mod replicated;
mod runtime;
mod rwlock;
mod semaphore;
mod sentinel;
mod stopped;
mod telemetry;
mod tls;
mod upgrade;
