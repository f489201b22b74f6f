//! Locks on Redis and Valkey, for servers with the rlock module.
//!
//! ```no_run
//! # async fn example() -> Result<(), rlock_client::Error> {
//! let client = rlock_client::Client::connect("redis://127.0.0.1/").await?;
//! let mutex = client.mutex("invoice:7");
//!
//! let guard = mutex.lock().await?; // Waits in the server's queue, in order.
//! println!("held, fence {}", guard.fence());
//! guard.release().await?; // The next one has it now.
//! # Ok(()) }
//! ```
//!
//! Without contention this sends two commands. A waiter sends none while it
//! waits: all waiters of a [`Client`] listen on its one connection, and the
//! server wakes the one whose turn it is. [`blocking`] has the same for code
//! without async.
//!
//! # Kinds of locks
//!
//! | | from | held by |
//! |---|---|---|
//! | [`Mutex`] | [`Client::mutex`] | one [`Guard`] at a time |
//! | [`RwLock`] | [`Client::rwlock`] | any number of [`ReadGuard`]s, or one [`WriteGuard`]; one can become the other |
//! | [`Semaphore`] | [`Client::semaphore`] | [`Permits`], of which there is a fixed number |
//! | [`MultiLock`] | [`Client::multi`] | one [`MultiGuard`] of all its keys, all or none |
//! | [`Election`] | [`Client::election`] | one [`Leadership`] at a time, with a value that others can read and observe |
//!
//! All of them wait in one queue per key, first come, first served. The
//! following sections are true of every kind of lock and guard.
//!
//! # Several servers
//!
//! A [`Quorum`] of 3, 5, 7 or 9 independent masters holds locks by majority, so
//! they survive the failure of a minority: [`QuorumMutex`], [`QuorumGuard`].
//! Their queue, renewal, re-entry, loss and drop work like those of other
//! locks. Their fences rise whatever the servers' clocks say.
//!
//! # Losing a lock
//!
//! A lock on a server has a lease, 30 s by default, which the watchdog renews
//! about every third of it. A client that cannot renew loses the lock: its
//! process was stopped, or its network was cut. An operator can also end the
//! hold. The holder knows of a loss before another owner can get the lock,
//! because this client counts the lease from before it sent the request.
//! [`Guard::is_valid`] tells at any time whether the lock is held, and
//! [`Guard::loss`] waits for its loss.
//!
//! ```no_run
//! # async fn work() {}
//! # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
//! let guard = mutex.lock().await?;
//! tokio::select! {
//!     () = work() => guard.release().await?,
//!     loss = guard.loss() => eprintln!("stopped in time: {loss}"),
//! }
//! # Ok(()) }
//! ```
//!
//! The client uses a monotonic clock. On Linux it also runs while the machine
//! is suspended (`CLOCK_BOOTTIME`), so a lock is lost then as well. A virtual
//! machine that its host has paused cannot notice that: use fences.
//!
//! # Fences
//!
//! Any time may pass between a call of `is_valid` and the write that follows.
//! If a late write would do harm, its receiver must refuse it. Send
//! [`Guard::fence`] with the write. It is larger than the fence of every
//! earlier holder, so let the receiver refuse numbers smaller than it has seen.
//!
//! # Cancellation
//!
//! Every future may be dropped at any point, by `tokio::select!`,
//! `tokio::time::timeout` or an aborted task. The client then withdraws the
//! request in the background; neither a hold nor a place in a queue stays. If
//! the connection is lost at that moment, a hold may stay until its lease ends,
//! but only if the server does not let this client close its own earlier
//! connection (`CLIENT KILL`). Without that right, a late release may also free
//! a lock that the same long-lived [`Owner`] has taken again since, a late renewal
//! may shorten a lease to what it was before an extension, and a late request may
//! take a wait's place in the queue to the earlier connection: then the wait goes
//! on only when the client connects again. If a process ends while it waits, the
//! server keeps its places for at most 10 s; they hold up nobody.
//!
//! An operator can end a wait with `RLOCK.CANCEL`: the call then fails with
//! [`Error::Cancelled`].
//!
//! # Entering again
//!
//! A task is not a thread, so the owner is explicit: every `lock` has a new
//! owner, and would wait for itself. To re-enter a lock, keep an [`Owner`]:
//! [`Mutex::by`], [`RwLock::by`], [`MultiLock::by`]. The client counts the
//! entries, and the server sees one. A lock of several keys can be re-entered
//! only with the same keys. Permits cannot be re-entered.
//!
//! # Deadlocks
//!
//! A call that would wait for itself through others fails with
//! [`Error::Deadlock`], which names the owners. The server detects cycles by
//! owner. So use the same [`Owner`] when you hold one lock and wait for
//! another.
//!
//! # Dropping
//!
//! A dropped [`Guard`] is released without waiting for the server's reply. The
//! request is sent before the next request of the task, unless there is no
//! connection just then. The background task awaits the reply, and repeats a
//! failed release. If the server refuses it, [`Client::flush`] and
//! [`Client::close`] return an error. Dropping never blocks and works anywhere. But if the runtime
//! or the process ends first, the lock becomes free only when its lease ends.
//! If that matters, call [`Guard::release`], or [`Client::flush`] before the
//! end. A [bound](Terms::bound) lock becomes free soon after its process has
//! ended for any reason. To keep a lock for a while after the work, so that
//! nobody repeats it, use [`Guard::release_after`].
//!
//! So a guard needs a name: `let _ = mutex.lock().await?` and `if
//! mutex.try_lock().await?.is_some() { … }` release the lock at once. Terms
//! apply only to the lock that [`with`](Mutex::with) returns; the compiler
//! warns if you discard it:
//!
//! ```compile_fail
//! # #![deny(unused_must_use)]
//! # use rlock_client::{Error, Mutex, Terms};
//! # fn example(mutex: Mutex) -> Result<(), Error> {
//! mutex.with(Terms::new().replicas(1)?); // It goes on without replicas.
//! # Ok(()) }
//! ```
//!
//! # Many holds
//!
//! The client spreads the renewals of all holds evenly over time, even of holds
//! that were taken together. At each server at most one renewal is under way
//! for each 500 holds. A renewal that has waited for a twelfth of its lease is
//! sent anyway, short leases first, so that a slow network loses none. A failed
//! renewal is repeated, and does not hold up others. After a reconnect the
//! client checks every hold at once, starting with those that would be lost
//! first.
//!
//! # Connections
//!
//! A client reconnects by itself. Holds survive that as long as their lease.
//! Waiting calls keep their places, which the server keeps for 10 s, or for the
//! rest of the wait if that is less; after that they go to the end of the
//! queue. A wait without limit goes on while the server is unreachable; every
//! other call fails with [`Error::Unavailable`] within a limited time.
//!
//! While a call waits, the client sends a heartbeat on a quiet connection four
//! times in a lease, and at least every 5 s; one heartbeat serves all waiting
//! calls.
//!
//! If a server refuses all writes for a while, because it has too few good
//! replicas or cannot save its data, the client treats it like an unreachable
//! one. If the server has no room for more watches (`rlock.max-watches`), it
//! still grants a free lock; the client then learns of a loss at the next
//! renewal. An upgrade fails with [`Error::QueueFull`] then.
//!
//! The server's user needs the commands `RLOCK.*` and `SUBSCRIBE` with the
//! channels `rlock:client:*`. To observe elections it also needs `UNSUBSCRIBE`
//! and the channels `rlock:value:*`. `CLIENT` is recommended, and required for
//! bound holds. A cluster needs `SSUBSCRIBE`, `SUNSUBSCRIBE`, `CLUSTER SLOTS`
//! and `ASKING` instead. [`Terms::replicas`] needs `WAIT`.
//!
//! # Logging and telemetry
//!
//! The client logs with [`tracing`](https://docs.rs/tracing), so a program needs
//! a subscriber to see it. A lost lock, a refused renewal, a lost connection and
//! an unreachable server are warnings. The client warns once per outage, such as `cannot reach
//! 127.0.0.1:6379 (connection refused), trying again`, and once more if the
//! server then refuses the password. The first failure is not a warning:
//! [`Client::connect`] returns it as [`Error::Connect`].
//!
//! Each call for a lock is a span of the level debug, `rlock.acquire`, with its
//! outcome. A [listener](ClientBuilder::listener) learns how each wait and each
//! hold has ended, for metrics.
//!
//! # Features
//!
//! - `quorum`, on by default: [`Quorum`];
//! - `tls-rustls`: TLS by rustls, for URLs that begin with `rediss`;
//! - `serde`: what is inspected can be serialized, as the command line writes it:
//!   [`Info`], [`Contended`], [`Counters`], [`Metrics`].
//!
//! # Layout
//!
//! Each of these uses only those below it:
//!
//! - `blocking`: the same for code without async;
//! - `quorum`: what users see of a lock on several servers;
//! - `client`, `locks`: the same for all other locks;
//! - `probe`: what is asked of servers and is not about locks;
//! - `pump`: bytes between sockets and `rlock-engine`, the time, and who waits
//!   for what.
//!
//! All decisions are in the crate `rlock-engine`: one state machine without I/O
//! and without a clock.

#![forbid(unsafe_code)]

pub mod blocking;

mod client;
mod client_builder;
mod locks;
pub mod probe;
mod pump;
#[cfg(feature = "quorum")]
mod quorum;

pub use client::Client;
pub use client_builder::ClientBuilder;
pub use locks::election::{Changes, Elected, Election, Leadership};
pub use locks::guard::{Exclusive, Guard, Held, Kind, LossSignal, OneKey};
pub use locks::multi_lock::{MultiGuard, MultiLock, Several};
pub use locks::mutex::Mutex;
pub use locks::rwlock::{ChangeError, ReadGuard, RwLock, Shared, Upgrade, Write, WriteGuard};
pub use locks::semaphore::{Permit, Permits, Semaphore};
#[cfg(feature = "tls-rustls")]
pub use pump::tls::Certificates;
#[cfg(feature = "quorum")]
pub use quorum::{HoldingMember, Majority, Quorum, QuorumBuilder, QuorumGuard, QuorumMutex};
#[doc(inline)]
pub use rlock_engine::endpoint::{Change, Proclaimed};
#[doc(inline)]
pub use rlock_engine::engine::{
    Metrics,
    claims::Owner,
    terms::{Lease, Terms},
};
#[doc(inline)]
pub use rlock_engine::error::{Error, Failure, Loss, ServerError};
#[doc(inline)]
pub use rlock_engine::servers::{Address, Login, Password, Servers, Tls};
#[doc(inline)]
pub use rlock_engine::session::{Occurrence, OccurrenceKind};
#[doc(inline)]
pub use rlock_engine::wire::inspect::{
    Answer, Contended, Counters, Holder, Info, Leader, Mode, Waiter,
};

/// Compiles the examples of the documents.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/clients.md")]
struct Documents;
