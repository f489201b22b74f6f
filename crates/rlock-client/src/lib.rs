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
//! Uncontended, that is two commands. A waiter costs none while it waits: all
//! waiters of a [`Client`] listen on its one connection, and the server wakes
//! the one whose turn it is. [`blocking`] has the same for code without async.
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
//! All of them wait in one queue per key, in the order of asking, and all that
//! is said below of a lock and its guard is true of every kind.
//!
//! # Several servers
//!
//! A [`Quorum`] of 3, 5, 7 or 9 independent masters holds locks by majority, so
//! they outlive a minority: [`QuorumMutex`], [`QuorumGuard`]. They wait in order,
//! have fences that rise whatever the servers' clocks say, are renewed, entered
//! again, lost and dropped as all others are.
//!
//! # Losing a lock
//!
//! A lock on a server rests on a lease, 30 s unless chosen otherwise, that the
//! watchdog renews about every third of it. A client that cannot renew it loses the
//! lock: a process that was stopped, a network that was cut. An operator can
//! take it away. The holder knows before anybody else can have it, as its
//! lease counts here from before the request was sent: [`Guard::is_valid`]
//! says so at any time, [`Guard::loss`] waits for it.
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
//! The clock is one that nobody sets. On Linux it also runs while the machine
//! is suspended (`CLOCK_BOOTTIME`), so a lock is lost then as well. A virtual
//! machine that was stopped by its host cannot tell: see fences.
//!
//! # Fences
//!
//! Between a look at `is_valid` and the write that follows, any time may pass.
//! Whatever must be safe even then has to be refused by its receiver: send
//! [`Guard::fence`] along, a number larger than the fence of every earlier holder,
//! and let the receiver refuse numbers smaller than it has seen.
//!
//! # Cancellation
//!
//! Every future may be dropped at any point, by `tokio::select!`,
//! `tokio::time::timeout` or an aborted task. What it asked for is then
//! withdrawn in the background; neither a hold nor a place in a queue stays.
//! If the connection is lost in just that moment, a hold may stay until its
//! lease ends, but only if the server does not let this client close its own
//! earlier connection (`CLIENT KILL`). Without that right, a late release may
//! also free what the same long-lived [`Owner`] has taken again since. The places of a process that ends while
//! it waits are kept for at most 10 s; they hold up nobody.
//!
//! An operator can end a wait with `RLOCK.CANCEL`: the call then fails with
//! [`Error::Cancelled`].
//!
//! # Entering again
//!
//! A task is not a thread, so who asks is named: every `lock` is a new owner,
//! and would wait for itself. An [`Owner`] that is kept can enter a lock that
//! it holds: [`Mutex::by`], [`RwLock::by`], [`MultiLock::by`].
//! Its entries are counted here, and the server sees one. What was taken by
//! one call for several keys is entered by the same keys only. Permits are not
//! entered again.
//!
//! # Deadlocks
//!
//! A call that would wait for itself through others is refused with
//! [`Error::Deadlock`], which names them. The server sees it by the owners: it
//! can only if those who hold one lock and wait for another do so as one
//! [`Owner`].
//!
//! # Dropping
//!
//! A dropped [`Guard`] is released without waiting for the server's word. The
//! request is on its way before what the task asks for next, unless there is no
//! connection just then. The background task awaits the reply and repeats what
//! has failed. That never blocks, and works anywhere; but if the runtime or the
//! process ends first, the lock is free when its lease ends. Call
//! [`Guard::release`] where that matters, or [`Client::flush`] before the end.
//! A lock that is [bound](Terms::bound) is free soon after its process
//! has ended, however that came. One that stays taken for a while after the
//! work is done, so that nobody repeats it, ends by [`Guard::release_after`].
//!
//! So a guard needs a name: `let _ = mutex.lock().await?` and
//! `if mutex.try_lock().await?.is_some() { … }` release the lock at once. And
//! terms are those of the lock that [`with`](Mutex::with) gives, which the
//! compiler does not let you throw away unseen:
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
//! The renewals of all holds are spread evenly over time, also of those that
//! were taken together. At each server one is under way at a time for each 500
//! holds. One that has waited for a twelfth of its lease is sent all the same,
//! short leases first, so that a slow network loses none. One that fails is
//! tried again, and holds up no other. After a new connection every
//! hold is looked at once, those first that would be lost first.
//!
//! # Connections
//!
//! A client reconnects by itself. Holds survive that as long as their lease.
//! Waiting calls go on in their places, which the server keeps for 10 s, or as
//! long as the wait may last if that is less; after that they are last in the
//! queue. A wait without limit goes on while the server is unreachable; all others
//! end within a bound with [`Error::Unavailable`].
//!
//! While somebody waits, a quiet connection is asked for a heartbeat four
//! times in a lease and every 5 s at least, once for all waiting calls of the
//! client.
//!
//! A server that refuses all writes for a while, as it has too few good
//! replicas or cannot save its data, is asked again like an unreachable one.
//! When it can remember no more (`rlock.max-watches`), a lock that is free is
//! still granted; its loss is then known at the next renewal.
//!
//! The server's user needs the commands `RLOCK.*` and `SUBSCRIBE` with the
//! channels `rlock:client:*`, and with `rlock:value:*` and `UNSUBSCRIBE` if it
//! observes elections; `CLIENT` is recommended, and bound holds need it. In a
//! cluster it is `SSUBSCRIBE` and `SUNSUBSCRIBE`, and `CLUSTER SLOTS` and `ASKING`; who asks
//! replicas needs `WAIT`.
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
//! - `quorum`: locks of several servers, each with a client;
//! - `client`, `locks`: what users see;
//! - `probe`: what is asked of servers and is not about locks;
//! - `pump`: bytes between sockets and the endpoint of `rlock-engine`, the time,
//!   and who waits for what.
//!
//! All decisions are in a crate of their own, `rlock-engine`: one state machine
//! without I/O and without a clock.

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
pub use rlock_engine::wire::inspect::{
    Answer, Contended, Counters, Holder, Info, Leader, Mode, Waiter,
};

/// Compiles the examples of the documents.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/clients.md")]
struct Documents;
