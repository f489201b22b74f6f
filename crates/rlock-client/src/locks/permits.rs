//! The proof of holding permits of a semaphore.

use crate::locks::guard::Guard;
use crate::locks::held::held;

/// Holds some of a semaphore's permits, until they are released, dropped, or
/// lost: all of them together.
///
/// Everything that is said of [`Guard`](crate::Guard) holds here too. The
/// fence is this holder's own.
///
/// # Examples
///
/// ```no_run
/// # async fn example(semaphore: rlock_client::Semaphore) -> Result<(), rlock_client::Error> {
/// let permits = semaphore.acquire_many(3).await?;
/// assert_eq!(permits.count(), 3);
/// permits.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "permits are released as soon as their guard is dropped"]
pub struct Permits {
    guard: Guard,
}

held!(Permits);

impl Permits {
    pub(crate) fn new(guard: Guard) -> Self {
        Self { guard }
    }

    /// How many they are.
    pub fn count(&self) -> u32 {
        self.guard.ask().permits()
    }
}
