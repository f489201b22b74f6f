//! The locks for code without async: a list of what each can do, and how it
//! becomes a call that blocks.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;

#[cfg(feature = "quorum")]
use super::guard::QuorumGuard;
use super::guard::{Guard, MultiGuard, Permits, ReadGuard, WriteGuard};
use super::run;
use crate::{Answer, Contended, Error, Info, Metrics, Owner, Terms};

/// What an async call gives, as a blocking one gives it: locks and guards know
/// the client's thread, and all else stays as it is.
pub(super) trait OnThread {
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

pub(super) use verbs;

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
