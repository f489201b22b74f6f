//! The guards for code without async.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tokio::runtime::Handle;

use super::run;
use super::verbs::OnThread;
use crate::{Error, Exclusive, Kind, Loss, Permit, Several, Shared, Write};

/// Holds a lock until it is released, dropped, or lost.
///
/// It can be asked all that [`crate::Guard`] can be, such as
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
/// See [`crate::QuorumGuard`].
#[cfg(feature = "quorum")]
pub type QuorumGuard = Guard<crate::Majority>;
/// See [`crate::Upgrade`].
pub type Upgrade = crate::Upgrade<WriteGuard, ReadGuard>;
/// See [`crate::ChangeError`].
pub type ChangeError = crate::ChangeError<ReadGuard>;

impl<K: Kind> Guard<K> {
    /// Tells when it is lost; see [`crate::Guard::loss`].
    pub fn loss(&self) -> LossSignal {
        let (signal, runtime) = (self.guard.loss(), self.runtime.clone());
        LossSignal { signal, runtime }
    }

    /// Has it last for at least `lease` from now.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Guard::extend`].
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        run(&self.runtime, self.guard.extend(lease))
    }

    /// Releases it and waits for the server's word.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Guard::release`].
    pub fn release(self) -> Result<(), Error> {
        run(&self.runtime, self.guard.release())
    }

    /// Ends this guard, and leaves the lock taken until `least` after its grant;
    /// see [`crate::Guard::release_after`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::Guard::release_after`].
    pub fn release_after(self, least: Duration) -> Result<(), Error> {
        run(&self.runtime, self.guard.release_after(least))
    }
}

impl Guard<Shared> {
    /// Waits until all other readers are gone, and writes.
    ///
    /// # Errors
    ///
    /// Those of [`crate::ReadGuard::upgrade`](crate::Guard::upgrade).
    pub fn upgrade(self) -> Result<WriteGuard, ChangeError> {
        let Self { guard, runtime } = self;
        run(&runtime, guard.upgrade()).on(&runtime)
    }

    /// Writes if nobody else reads.
    ///
    /// # Errors
    ///
    /// Those of [`crate::ReadGuard::try_upgrade`](crate::Guard::try_upgrade).
    pub fn try_upgrade(self) -> Result<Upgrade, ChangeError> {
        let Self { guard, runtime } = self;
        run(&runtime, guard.try_upgrade()).on(&runtime)
    }

    /// Waits to write for at most `wait`.
    ///
    /// # Errors
    ///
    /// Those of [`crate::ReadGuard::upgrade_timeout`](crate::Guard::upgrade_timeout).
    pub fn upgrade_timeout(self, wait: Duration) -> Result<Upgrade, ChangeError> {
        let Self { guard, runtime } = self;
        run(&runtime, guard.upgrade_timeout(wait)).on(&runtime)
    }
}

impl Guard<Write> {
    /// Goes on reading, and lets other readers in.
    ///
    /// # Errors
    ///
    /// Those of [`crate::WriteGuard::downgrade`](crate::Guard::downgrade).
    pub fn downgrade(self) -> Result<ReadGuard, ChangeError> {
        let Self { guard, runtime } = self;
        run(&runtime, guard.downgrade()).on(&runtime)
    }
}

impl Guard<Permit> {
    /// Lowers the number of permits that others can have, for as long as this
    /// client is there; see [`crate::Permits::forget`](crate::Guard::forget).
    pub fn forget(self) {
        self.guard.forget();
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

/// Tells when a lock is lost; see [`crate::LossSignal`].
#[derive(Clone, Debug)]
pub struct LossSignal {
    signal: crate::LossSignal,
    runtime: Handle,
}

impl LossSignal {
    /// Why the lock was lost; `None` while it is held.
    pub fn now(&self) -> Option<Loss> {
        self.signal.now()
    }

    /// Blocks until the lock is lost.
    pub fn wait(self) -> Loss {
        run(&self.runtime, self.signal)
    }
}
