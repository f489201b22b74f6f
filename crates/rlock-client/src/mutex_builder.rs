//! The terms of a lock, chosen before it is made.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::mutex::Mutex;
use crate::state::Inner;
use crate::terms::Terms;

/// Terms of a [`Mutex`], from [`Client::mutex_builder`](crate::Client::mutex_builder).
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// let mutex = client
///     .mutex_builder("nightly-report")
///     .lease(Duration::from_secs(10))
///     .max_hold(Duration::from_secs(600))
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct MutexBuilder {
    inner: Arc<Inner>,
    key: Arc<[u8]>,
    terms: Terms,
}

impl MutexBuilder {
    pub(crate) fn new(inner: Arc<Inner>, key: Arc<[u8]>) -> Self {
        Self {
            inner,
            key,
            terms: Terms::default(),
        }
    }

    /// How long a grant lasts unless it is renewed; default 30 s.
    ///
    /// The watchdog renews it every third of it. So this is how long others
    /// wait after a holder's process has died, and how long a holder may be
    /// out of contact without losing the lock. Rounded up to whole
    /// milliseconds; at most what the server allows (24 h by default).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.terms = Terms {
            lease,
            renewed: true,
            ..self.terms
        };
        self
    }

    /// How long a grant lasts; nothing renews it.
    ///
    /// Range and rounding as for [`lease`](Self::lease).
    pub fn fixed_lease(mut self, lease: Duration) -> Self {
        self.terms = Terms {
            lease,
            renewed: false,
            ..self.terms
        };
        self
    }

    /// How long the watchdog goes on at most, from the grant; default without
    /// limit, at most 30 days.
    ///
    /// The lock is lost then, if it was not released. It protects others from
    /// a holder that hangs but lives.
    pub fn max_hold(mut self, bound: Duration) -> Self {
        self.terms.max_hold = Some(bound);
        self
    }

    /// Makes the lock. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a duration that is zero or above 30 days.
    pub fn build(self) -> Result<Mutex, Error> {
        Ok(Mutex::new(self.inner, self.key, self.terms.checked()?))
    }
}
