//! Who asks for a lock.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// Who asks for a lock, or holds it: 1 to 256 bytes without spaces.
///
/// Every call of `lock` has an owner of its own. An owner that is kept, from
/// `Client::owner`, can enter a lock again that it
/// holds already, with `Mutex::by`. Cloning
/// gives another handle on the same owner.
///
/// One owner stands for one sequential activity: while it waits anywhere, the
/// server counts it as unable to release.
///
/// # Examples
///
/// ```no_run
/// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// let owner = client.owner();
/// let mutex = client.mutex("invoice:7").by(&owner);
/// let outer = mutex.lock().await?;
/// let inner = mutex.lock().await?;
/// assert_eq!(outer.fence(), inner.fence());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// Names an owner by hand, for instance one that another system uses.
    ///
    /// Two processes must never use the same name at the same time: to the
    /// server they would be one owner, and both would hold the lock.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if `name` is empty, longer than 256 bytes, has a
    /// space or control character, or starts with `rlock:`.
    ///
    /// # Examples
    ///
    /// ```
    /// use rlock_client::Owner;
    ///
    /// assert!(Owner::new("billing-worker-3").is_ok());
    /// assert!(Owner::new("two words").is_err());
    /// ```
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        let forbidden = |byte: u8| byte <= b' ' || byte == 0x7f;
        let fits = (1..=256).contains(&name.len());
        if fits && !name.bytes().any(forbidden) && !name.starts_with("rlock:") {
            return Ok(Self(name.into()));
        }
        Err(Error::OutOfRange {
            argument: "owner",
            value: format!("{name:?}"),
            limit: "1 to 256 bytes without spaces, not starting with `rlock:`".into(),
        })
    }

    /// An owner whose name is known to be well-formed.
    #[doc(hidden)]
    pub fn numbered(client_id: &str, number: u64) -> Self {
        let mut number_text = itoa::Buffer::new();
        Self([client_id, ":", number_text.format(number)].concat().into())
    }

    /// The owner as the server sees it.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), rlock_client::Error> {
    /// assert_eq!(rlock_client::Owner::new("worker-3")?.as_str(), "worker-3");
    /// # Ok(()) }
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owner").field(&self.0).finish()
    }
}
