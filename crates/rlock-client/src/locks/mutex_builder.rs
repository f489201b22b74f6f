//! The terms of a lock, chosen before it is made.

use std::sync::Arc;

use crate::engine::terms::Terms;
use crate::error::Error;
use crate::locks::choose_terms::{choose_bound, choose_terms};
use crate::locks::lock::Lock;
use crate::locks::mutex::Mutex;
use crate::net::state::Inner;

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

    choose_terms!();
    choose_bound!();

    /// Makes the lock. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a duration that is zero or above 30 days.
    pub fn build(self) -> Result<Mutex, Error> {
        let terms = self.terms.checked()?;
        Ok(Mutex::new(Lock::new(self.inner, self.key, terms)))
    }
}
