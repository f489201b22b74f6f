//! The terms of a lock for readers and writers, chosen before it is made.

use std::sync::Arc;

use crate::engine::terms::Terms;
use crate::error::Error;
use crate::locks::choose_terms::{choose_bound, choose_terms};
use crate::locks::lock::Lock;
use crate::locks::rwlock::RwLock;
use crate::net::state::Inner;

/// Terms of an [`RwLock`], from [`Client::rwlock_builder`](crate::Client::rwlock_builder).
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// let catalogue = client
///     .rwlock_builder("catalogue")
///     .lease(Duration::from_secs(10))
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RwLockBuilder {
    inner: Arc<Inner>,
    key: Arc<[u8]>,
    terms: Terms,
}

impl RwLockBuilder {
    pub(crate) fn new(inner: Arc<Inner>, key: Arc<[u8]>) -> Self {
        let terms = Terms::default();
        Self { inner, key, terms }
    }

    choose_terms!();
    choose_bound!();

    /// Makes the lock. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a duration that is zero or above 30 days.
    pub fn build(self) -> Result<RwLock, Error> {
        let terms = self.terms.checked()?;
        Ok(RwLock::new(Lock::new(self.inner, self.key, terms)))
    }
}
