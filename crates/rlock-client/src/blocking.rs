//! The same locks for code without async.
//!
//! It has the same methods. The calling thread runs their futures, and a thread
//! of the [`Client`] does the background work. It works on any thread; on one
//! that runs async code it blocks that code, like every blocking call.
//!
//! # Examples
//!
//! ```no_run
//! # fn main() -> Result<(), rlock_client::Error> {
//! let client = rlock_client::blocking::Client::connect("redis://127.0.0.1/")?;
//! let guard = client.mutex("invoice:7").lock()?;
//! println!("held, fence {}", guard.fence());
//! guard.release()?;
//! # Ok(()) }
//! ```

use std::fmt;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

#[cfg(feature = "quorum")]
use rlock_engine::session::quorum::read;
use tokio::runtime::Handle;

#[cfg(feature = "quorum")]
use crate::QuorumBuilder;
use crate::client_builder::on_thread;
use crate::pump::now;
use crate::{
    Answer, Change, ClientBuilder, Contended, Counters, Elected, Error, Exclusive, Info, Kind,
    Leader, Loss, Metrics, Owner, Permit, Servers, Several, Shared, Terms, Write,
};

/// Runs `future` on this thread; its timers are those of the client's thread.
fn run<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let _timers = runtime.enter();
    // A task that blocks here must not lend it its budget, which nobody refills.
    let mut future = pin!(tokio::task::unconstrained(future));
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// A thread that waits for a future.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What an async call gives, as a blocking one gives it: locks and guards know
/// the client's thread, and everything else stays as it is.
trait OnThread {
    type Blocking;

    fn on(self, runtime: &Handle) -> Self::Blocking;
}

impl<T: OnThread> OnThread for Option<T> {
    type Blocking = Option<T::Blocking>;

    fn on(self, runtime: &Handle) -> Self::Blocking {
        self.map(|value| value.on(runtime))
    }
}

impl<T: OnThread, E: OnThread> OnThread for Result<T, E> {
    type Blocking = Result<T::Blocking, E::Blocking>;

    fn on(self, runtime: &Handle) -> Self::Blocking {
        match self {
            Ok(value) => Ok(value.on(runtime)),
            Err(error) => Err(error.on(runtime)),
        }
    }
}

macro_rules! unchanged {
    ($($kind:ty),*) => {$(
        impl OnThread for $kind {
            type Blocking = Self;

            fn on(self, _: &Handle) -> Self {
                self
            }
        }
    )*};
}

unchanged!(
    (),
    bool,
    u32,
    u64,
    &[u8],
    Error,
    Info,
    Leader,
    Metrics,
    Owner,
    Vec<Contended>,
    Vec<Info>,
    Vec<Answer<Vec<Contended>>>
);

/// A type around the async one of the same name: first what it gives at once,
/// then what it waits for.
macro_rules! verbs {
    ($(#[$about:meta])* $name:ident {
        $(has $given:ident($($with:ident: $is:ty),*) -> $gives:ty;)*
        $(waits $verb:ident($($arg:ident: $type:ty),*) -> $out:ty;)*
    }) => {
        #[doc = concat!("See [`crate::", stringify!($name), "`].")]
        $(#[$about])*
        #[derive(Clone, Debug)]
        pub struct $name {
            pub(super) inner: crate::$name,
            pub(super) runtime: Handle,
        }

        impl OnThread for crate::$name {
            type Blocking = $name;

            fn on(self, runtime: &Handle) -> $name {
                let runtime = runtime.clone();
                $name { inner: self, runtime }
            }
        }

        impl $name {
            $(
                #[doc = concat!(
                    "See [`crate::", stringify!($name), "::", stringify!($given), "`]."
                )]
                pub fn $given(&self, $($with: $is),*) -> $gives {
                    self.inner.$given($($with),*).on(&self.runtime)
                }
            )*
            $(
                #[doc = concat!(
                    "Blocks; see [`crate::", stringify!($name), "::", stringify!($verb), "`]."
                )]
                ///
                /// # Errors
                ///
                #[doc = concat!(
                    "Those of [`crate::", stringify!($name), "::", stringify!($verb), "`]."
                )]
                pub fn $verb(&self, $($arg: $type),*) -> Result<$out, Error> {
                    run(&self.runtime, self.inner.$verb($($arg),*)).on(&self.runtime)
                }
            )*
        }
    };
}

verbs! {
    ///
    /// Its thread ends when the last client, lock and guard made from it is
    /// gone and their clean-up is done.
    Client {
        has mutex(key: impl AsRef<[u8]>) -> Mutex;
        has rwlock(key: impl AsRef<[u8]>) -> RwLock;
        has semaphore(key: impl AsRef<[u8]>, permits: u32) -> Semaphore;
        has election(key: impl AsRef<[u8]>) -> Election;
        has multi(keys: impl IntoIterator<Item = impl AsRef<[u8]>>) -> MultiLock;
        has owner() -> Owner;
        has metrics() -> Metrics;
        waits close(timeout: Duration) -> ();
        waits list(count: u64) -> Vec<Contended>;
        waits list_each(count: u64) -> Vec<Answer<Vec<Contended>>>;
    }
}

impl Client {
    /// Connects; see [`Client::connect`](crate::Client::connect).
    ///
    /// # Errors
    ///
    /// The errors of [`Client::connect`](crate::Client::connect), and
    /// [`Error::Connect`] if the system gives no thread.
    pub fn connect<S>(servers: S) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        Self::connect_with(crate::Client::builder(), servers)
    }

    /// Connects with settings.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect), and [`Error::OutOfRange`] for a
    /// setting.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), rlock_client::Error> {
    /// let settings = rlock_client::Client::builder().name("billing@host-7");
    /// let client = rlock_client::blocking::Client::connect_with(settings, "redis://127.0.0.1/")?;
    /// # Ok(()) }
    /// ```
    pub fn connect_with<S>(settings: ClientBuilder, servers: S) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        let (runtime, connected) = on_thread(settings.start(servers.try_into()?))?;
        Ok(run(&runtime, connected)?.on(&runtime))
    }

    /// Blocks; see [`crate::Client::counters`].
    pub fn counters(&self) -> Vec<Answer<Counters>> {
        run(&self.runtime, self.inner.counters())
    }

    /// Blocks; see [`crate::Client::flush`].
    ///
    /// # Errors
    ///
    /// The errors of [`crate::Client::flush`].
    pub fn flush(&self) -> Result<(), Error> {
        run(&self.runtime, self.inner.flush())
    }
}

#[cfg(feature = "quorum")]
verbs! {
    Quorum {
        has mutex(key: impl AsRef<[u8]>) -> QuorumMutex;
        has owner() -> Owner;
    }
}

#[cfg(feature = "quorum")]
impl Quorum {
    /// Connects to independent servers; see [`crate::Quorum::connect`].
    ///
    /// # Errors
    ///
    /// The errors of [`crate::Quorum::connect`], and [`Error::Connect`] if the system
    /// gives no thread.
    pub fn connect<S>(servers: impl IntoIterator<Item = S>) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        Self::connect_with(QuorumBuilder::default(), servers)
    }

    /// Connects with settings.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect), and [`Error::OutOfRange`] for a
    /// setting.
    pub fn connect_with<S>(
        settings: QuorumBuilder,
        servers: impl IntoIterator<Item = S>,
    ) -> Result<Self, Error>
    where
        S: TryInto<Servers>,
        Error: From<S::Error>,
    {
        let (runtime, connected) = on_thread(settings.start(read(servers)?))?;
        Ok(run(&runtime, connected)?.on(&runtime))
    }

    /// Blocks; see [`crate::Quorum::flush`].
    ///
    /// # Errors
    ///
    /// The errors of [`crate::Quorum::flush`].
    pub fn flush(&self) -> Result<(), Error> {
        run(&self.runtime, self.inner.flush())
    }
}

verbs! {
    #[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
    Mutex {
        has key() -> &[u8];
        has with(terms: Terms) -> Self;
        has by(owner: &Owner) -> Self;
        waits lock() -> Guard;
        waits try_lock() -> Option<Guard>;
        waits lock_timeout(wait: Duration) -> Option<Guard>;
        waits lock_until(deadline: Instant) -> Option<Guard>;
        waits is_locked() -> bool;
        waits is_held_by(owner: &Owner) -> bool;
        waits info() -> Info;
        waits force_release() -> u64;
        waits force_release_under(fence: u64) -> u64;
        waits force_release_queue() -> u64;
    }
}

verbs! {
    #[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
    RwLock {
        has key() -> &[u8];
        has with(terms: Terms) -> Self;
        has by(owner: &Owner) -> Self;
        waits read() -> ReadGuard;
        waits try_read() -> Option<ReadGuard>;
        waits read_timeout(wait: Duration) -> Option<ReadGuard>;
        waits read_until(deadline: Instant) -> Option<ReadGuard>;
        waits write() -> WriteGuard;
        waits try_write() -> Option<WriteGuard>;
        waits write_timeout(wait: Duration) -> Option<WriteGuard>;
        waits write_until(deadline: Instant) -> Option<WriteGuard>;
        waits is_held_by(owner: &Owner) -> bool;
        waits info() -> Info;
        waits force_release() -> u64;
    }
}

verbs! {
    #[must_use = "it does nothing by itself; `with` gives another one, and changes none"]
    Semaphore {
        has key() -> &[u8];
        has permits() -> u32;
        has with(terms: Terms) -> Self;
        waits acquire() -> Permits;
        waits acquire_many(permits: u32) -> Permits;
        waits try_acquire() -> Option<Permits>;
        waits try_acquire_many(permits: u32) -> Option<Permits>;
        waits acquire_timeout(wait: Duration) -> Option<Permits>;
        waits acquire_until(deadline: Instant) -> Option<Permits>;
        waits acquire_many_timeout(permits: u32, wait: Duration) -> Option<Permits>;
        waits acquire_many_until(permits: u32, deadline: Instant) -> Option<Permits>;
        waits available_permits() -> u32;
        waits is_held_by(owner: &Owner) -> bool;
        waits info() -> Info;
        waits force_release() -> u64;
    }
}

verbs! {
    #[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
    MultiLock {
        has with(terms: Terms) -> Self;
        has by(owner: &Owner) -> Self;
        waits lock() -> MultiGuard;
        waits try_lock() -> Option<MultiGuard>;
        waits lock_timeout(wait: Duration) -> Option<MultiGuard>;
        waits lock_until(deadline: Instant) -> Option<MultiGuard>;
        waits info() -> Vec<Info>;
    }
}

verbs! {
    #[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
    Election {
        has key() -> &[u8];
        has with(terms: Terms) -> Self;
        has by(owner: &Owner) -> Self;
        has observe() -> Changes;
        waits campaign(value: impl AsRef<[u8]>) -> Leadership;
        waits campaign_for(value: impl AsRef<[u8]>, wait: Duration) -> Option<Leadership>;
        waits leader() -> Option<Leader>;
    }
}

impl MultiLock {
    /// The keys, in the order of their names.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.inner.keys()
    }
}

#[cfg(feature = "quorum")]
verbs! {
    #[must_use = "it does nothing by itself; `with` and `by` give another one, and change none"]
    QuorumMutex {
        has key() -> &[u8];
        has with(terms: Terms) -> Self;
        has by(owner: &Owner) -> Self;
        waits lock() -> QuorumGuard;
        waits try_lock() -> Option<QuorumGuard>;
        waits lock_timeout(wait: Duration) -> Option<QuorumGuard>;
        waits lock_until(deadline: Instant) -> Option<QuorumGuard>;
    }
}

/// Holds a lock until it is released, dropped, or lost.
///
/// It has the methods of [`crate::Guard`], such as
/// [`fence`](crate::Guard::fence) and [`is_valid`](crate::Guard::is_valid).
#[must_use = "a lock is released as soon as its guard is dropped"]
pub struct Guard<K: Kind = Exclusive> {
    guard: crate::Guard<K>,
    runtime: Handle,
}

/// See [`crate::ReadGuard`].
pub type ReadGuard = Guard<Shared>;
/// See [`crate::WriteGuard`].
pub type WriteGuard = Guard<Write>;
/// See [`crate::Permits`].
pub type Permits = Guard<Permit>;
/// See [`crate::MultiGuard`].
pub type MultiGuard = Guard<Several>;
/// See [`crate::Leadership`].
pub type Leadership = Guard<Elected>;
/// See [`crate::QuorumGuard`].
#[cfg(feature = "quorum")]
pub type QuorumGuard = Guard<crate::Majority>;
/// See [`crate::Upgrade`].
pub type Upgrade = crate::Upgrade<WriteGuard, ReadGuard>;
/// See [`crate::ChangeError`].
pub type ChangeError = crate::ChangeError<ReadGuard>;

impl<K: Kind> Guard<K> {
    /// Reports its loss; see [`crate::Guard::loss`].
    pub fn loss(&self) -> LossSignal {
        let signal = self.guard.loss();
        LossSignal { signal }
    }

    /// Extends the hold to at least `lease` from now.
    ///
    /// # Errors
    ///
    /// The errors of [`crate::Guard::extend`].
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        run(&self.runtime, self.guard.extend(lease))
    }

    /// Releases it and waits for the server's reply.
    ///
    /// # Errors
    ///
    /// The errors of [`crate::Guard::release`].
    pub fn release(self) -> Result<(), Error> {
        run(&self.runtime, self.guard.release())
    }

    /// Ends this guard, and keeps the lock taken until `least` after its grant;
    /// see [`crate::Guard::release_after`].
    ///
    /// # Errors
    ///
    /// The errors of [`crate::Guard::release_after`].
    pub fn release_after(self, least: Duration) -> Result<(), Error> {
        run(&self.runtime, self.guard.release_after(least))
    }
}

impl Guard<Shared> {
    /// Waits until all other readers are gone, and writes.
    ///
    /// # Errors
    ///
    /// The errors of [`crate::ReadGuard::upgrade`](crate::Guard::upgrade).
    pub fn upgrade(self) -> Result<WriteGuard, ChangeError> {
        let Self { guard, runtime } = self;
        run(&runtime, guard.upgrade()).on(&runtime)
    }

    /// Writes if nobody else reads.
    ///
    /// # Errors
    ///
    /// The errors of [`crate::ReadGuard::try_upgrade`](crate::Guard::try_upgrade).
    pub fn try_upgrade(self) -> Result<Upgrade, ChangeError> {
        let Self { guard, runtime } = self;
        run(&runtime, guard.try_upgrade()).on(&runtime)
    }

    /// Waits to write for at most `wait`.
    ///
    /// # Errors
    ///
    /// The errors of [`crate::ReadGuard::upgrade_timeout`](crate::Guard::upgrade_timeout).
    pub fn upgrade_timeout(self, wait: Duration) -> Result<Upgrade, ChangeError> {
        let Self { guard, runtime } = self;
        run(&runtime, guard.upgrade_timeout(wait)).on(&runtime)
    }
}

impl Guard<Write> {
    /// Keeps reading, and lets other readers in.
    ///
    /// # Errors
    ///
    /// The errors of [`crate::WriteGuard::downgrade`](crate::Guard::downgrade).
    pub fn downgrade(self) -> Result<ReadGuard, ChangeError> {
        let Self { guard, runtime } = self;
        run(&runtime, guard.downgrade()).on(&runtime)
    }
}

impl Guard<Permit> {
    /// Gives `permits` of these permits to a new guard, and keeps the others; see
    /// [`crate::Permits::split`](crate::Guard::split).
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        self.guard.split(permits).on(&self.runtime)
    }

    /// Takes over the permits of `other`.
    ///
    /// # Errors
    ///
    /// `other`, unchanged, if it is of another hold; see
    /// [`crate::Permits::merge`](crate::Guard::merge).
    pub fn merge(&mut self, other: Self) -> Result<(), Self> {
        let Self { guard, runtime } = other;
        self.guard.merge(guard).on(&runtime)
    }

    /// Lowers the number of permits for others, as long as this client exists;
    /// see [`crate::Permits::forget`](crate::Guard::forget).
    pub fn forget(self) {
        self.guard.forget();
    }
}

impl Guard<Elected> {
    /// Publishes another value, and waits for the server's reply.
    ///
    /// # Errors
    ///
    /// The errors of [`crate::Leadership::proclaim`](crate::Guard::proclaim).
    pub fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<(), Error> {
        run(&self.runtime, self.guard.proclaim(value))
    }

    /// Ends the leadership, and waits for the server's reply.
    ///
    /// # Errors
    ///
    /// The errors of [`crate::Leadership::resign`](crate::Guard::resign).
    pub fn resign(self) -> Result<(), Error> {
        run(&self.runtime, self.guard.resign())
    }
}

impl<K: Kind> Deref for Guard<K> {
    type Target = crate::Guard<K>;

    fn deref(&self) -> &crate::Guard<K> {
        &self.guard
    }
}

impl<K: Kind> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

impl<K: Kind> OnThread for crate::Guard<K> {
    type Blocking = Guard<K>;

    fn on(self, runtime: &Handle) -> Guard<K> {
        let runtime = runtime.clone();
        Guard {
            guard: self,
            runtime,
        }
    }
}

impl OnThread for crate::Upgrade {
    type Blocking = Upgrade;

    fn on(self, runtime: &Handle) -> Upgrade {
        match self {
            Self::Granted(writing) => Upgrade::Granted(writing.on(runtime)),
            Self::Refused(reading) => Upgrade::Refused(reading.on(runtime)),
        }
    }
}

impl OnThread for crate::ChangeError {
    type Blocking = ChangeError;

    fn on(self, runtime: &Handle) -> ChangeError {
        ChangeError {
            guard: self.guard.on(runtime),
            error: self.error,
        }
    }
}

/// The leader and each change: an iterator that blocks until there is one. See
/// [`crate::Changes`].
#[derive(Debug)]
#[must_use = "nothing more is observed as soon as it is dropped"]
pub struct Changes {
    changes: crate::Changes,
    runtime: Handle,
}

impl OnThread for crate::Changes {
    type Blocking = Changes;

    fn on(self, runtime: &Handle) -> Changes {
        let runtime = runtime.clone();
        Changes {
            changes: self,
            runtime,
        }
    }
}

impl Iterator for Changes {
    type Item = Result<Change, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        run(&self.runtime, self.changes.next())
    }
}

/// Reports when a lock is lost; see [`crate::LossSignal`].
#[derive(Clone, Debug)]
pub struct LossSignal {
    signal: crate::LossSignal,
}

impl LossSignal {
    /// Why the lock was lost; `None` while it is held.
    pub fn now(&self) -> Option<Loss> {
        self.signal.now()
    }

    /// Blocks until the lock is lost, with or without the client.
    pub fn wait(mut self) -> Loss {
        let waker = Waker::from(Arc::new(Parked(thread::current())));
        loop {
            match self.signal.look(&waker) {
                Ok(loss) => return loss,
                Err(until) => thread::park_timeout(until - now()),
            }
        }
    }
}
