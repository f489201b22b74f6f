//! The claims of a request: one owner, and one or several keys.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use crate::engine::Id;
use crate::engine::node::slot_of;
use crate::error::Error;

/// The largest number of keys in one request.
const KEYS_MAX: usize = 1024;

/// Checks the key of a lock that is requested.
///
/// # Errors
///
/// [`Error::OutOfRange`] for an empty key. Usually a variable was not set, and
/// programs with nothing in common would share the lock.
pub fn check_key(key: &[u8]) -> Result<(), Error> {
    match key {
        [] => Err(Error::OutOfRange {
            argument: "key",
            value: "empty".to_owned(),
            limit: "at least 1 byte".into(),
        }),
        _ => Ok(()),
    }
}

/// The first key and the others.
type Keys<'a> = (&'a [u8], &'a [Arc<[u8]>]);

/// Checks keys that are requested together, in their order.
fn check_keys(keys: &[Arc<[u8]>]) -> Result<Keys<'_>, Error> {
    let twice = keys.windows(2).find(|pair| pair.first() == pair.last());
    let value = match (twice.and_then(<[_]>::first), keys) {
        (Some(key), _) => format!("`{}` more than once", String::from_utf8_lossy(key)),
        (None, [first, rest @ ..]) if rest.len() < KEYS_MAX => {
            check_key(first)?;
            return Ok((first, rest));
        }
        (None, _) => format!("{} keys", keys.len()),
    };
    Err(Error::OutOfRange {
        argument: "keys",
        value,
        limit: format!("1 to {KEYS_MAX} different keys").into(),
    })
}

/// One owner at one key: `<owner> <key>`, as in messages. An owner has no spaces,
/// so the text is unambiguous.
#[derive(Clone, Eq)]
pub struct Name {
    /// Computed once: a name is looked up about fifteen times between a call and
    /// the end of its release.
    hash: u64,
    text: Arc<[u8]>,
}

impl Name {
    /// `text` is `<owner> <key>`.
    pub fn new(text: &[u8]) -> Self {
        // Keys may come from an attacker, who must not be able to predict
        // collisions.
        static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self {
            hash: HASHES.hash_one(text),
            text: text.into(),
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        // All names of a call and its hold share one text.
        let is_shared = || Arc::ptr_eq(&self.text, &other.text);
        self.hash == other.hash && (is_shared() || self.text == other.text)
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A table whose keys are names, which carry their hash, or consecutive numbers.
pub type Table<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// A set of numbers.
pub(super) type Numbers = HashSet<Id, BuildHasherDefault<IdHasher>>;

/// A hasher that spreads numbers over all bits.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio.
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
}

/// At least one name; several are in the order of their keys.
#[derive(Clone)]
pub struct Claims(Arc<Parts>);

struct Parts {
    owner: Owner,
    /// The slot of the first key; all keys share it where that matters.
    slot: u16,
    first: Name,
    rest: Vec<Name>,
}

impl Claims {
    /// `owner` at `key` and at the keys in `rest`, which come after `key` in
    /// order.
    pub fn new(owner: Owner, key: &[u8], rest: &[Arc<[u8]>]) -> Self {
        let first = name(&owner, key);
        let rest = rest.iter().map(|key| name(&owner, key)).collect();
        Self(Arc::new(Parts {
            owner,
            slot: slot_of(key),
            first,
            rest,
        }))
    }

    /// `owner` at these keys, in any order. If there are several, the same owner may
    /// release some and ask for them again.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for no keys, for more than 1024, for one key twice,
    /// and for an empty key.
    pub fn checked(owner: Owner, mut keys: Vec<Arc<[u8]>>) -> Result<Self, Error> {
        keys.sort_unstable();
        let (first, rest) = check_keys(&keys)?;
        let owner = match rest {
            [] => owner,
            _ => owner.reusable(),
        };
        Ok(Self::new(owner, first, rest))
    }

    /// The claims for one of its keys; none beyond the last.
    pub fn of_one(&self, index: usize) -> Option<Self> {
        let first = self.names().nth(index)?.clone();
        Some(Self(Arc::new(Parts {
            owner: self.owner().clone(),
            slot: slot_of(self.key_of(&first)),
            first,
            rest: Vec::new(),
        })))
    }

    /// The claims for a name that the server wrote.
    pub fn named(name: &Name) -> Option<Self> {
        let end = name.text.iter().position(|byte| *byte == b' ')?;
        let owner = std::str::from_utf8(name.text.get(..end)?).ok()?;
        let key = name.text.get(end + 1..)?;
        Some(Self(Arc::new(Parts {
            owner: Owner::new(owner).ok()?,
            slot: slot_of(key),
            first: name.clone(),
            rest: Vec::new(),
        })))
    }

    /// The owner.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// The slot of the first key; all keys share it where that matters.
    pub fn slot(&self) -> u16 {
        self.0.slot
    }

    /// One name for each key.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        std::iter::once(&self.0.first).chain(&self.0.rest)
    }

    /// The claims whose names satisfy `holds`; none if no name does.
    pub fn filtered(&self, holds: impl Fn(&Name) -> bool) -> Option<Self> {
        if self.names().all(&holds) {
            return Some(self.clone());
        }
        let mut names = self.names().filter(|name| holds(name)).cloned();
        Some(Self(Arc::new(Parts {
            owner: self.owner().clone(),
            slot: self.slot(),
            first: names.next()?,
            rest: names.collect(),
        })))
    }

    /// The keys, in the order of the names.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.names().map(|name| self.key_of(name))
    }

    /// The first key.
    pub fn key(&self) -> &[u8] {
        self.key_of(&self.0.first)
    }

    fn key_of<'a>(&self, name: &'a Name) -> &'a [u8] {
        let key = name.text.get(self.owner().as_str().len() + 1..);
        key.unwrap_or_default()
    }

    /// The number of keys; at least one.
    pub fn count(&self) -> usize {
        1 + self.0.rest.len()
    }

    /// Whether there is only one key.
    pub fn is_single(&self) -> bool {
        self.0.rest.is_empty()
    }

    /// The keys, for a log line.
    pub fn label(&self) -> String {
        let first = String::from_utf8_lossy(self.key());
        match self.0.rest.len() {
            0 => first.into_owned(),
            others => format!("{first} and {others} more"),
        }
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.owner(), self.label())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

fn name(owner: &Owner, key: &[u8]) -> Name {
    Name::new(&[owner.as_str().as_bytes(), b" ", key].concat())
}

/// Who asks for a lock, or holds it: 1 to 256 bytes without spaces.
///
/// Each call of `lock` uses a new owner. To re-enter a lock, keep an owner from
/// `Client::owner` and pass it to `Mutex::by`. A clone is the same owner.
///
/// One owner stands for one sequential activity: while it waits for any lock, the
/// server counts it as unable to release.
///
/// The client remembers the last fence that a kept owner has released at a key,
/// in about 165 bytes, until the lease has ended and 10 seconds more: after a
/// fail-over that lost the release, a new hold must not begin under it.
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
#[derive(Clone)]
pub struct Owner {
    name: Arc<str>,
    /// Whether no other call uses it.
    is_single_use: bool,
}

impl Owner {
    /// Creates an owner with this name, for instance a name from another
    /// system.
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
            return Ok(Self {
                name: name.into(),
                is_single_use: false,
            });
        }
        Err(Error::OutOfRange {
            argument: "owner",
            value: format!("{name:?}"),
            limit: "1 to 256 bytes without spaces, not starting with `rlock:`".into(),
        })
    }

    /// An owner whose name is known to be well-formed, for one call and its guard.
    #[doc(hidden)]
    pub fn numbered(client_id: &str, number: u64) -> Self {
        let mut number_text = itoa::Buffer::new();
        Self {
            name: [client_id, ":", number_text.format(number)].concat().into(),
            is_single_use: true,
        }
    }

    /// The same owner, for several calls.
    #[doc(hidden)]
    #[must_use]
    pub fn reusable(self) -> Self {
        Self {
            is_single_use: false,
            ..self
        }
    }

    /// Whether no other call uses it, so that nothing has to be remembered of it.
    pub(super) fn is_single_use(&self) -> bool {
        self.is_single_use
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
        &self.name
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owner").field(&self.name).finish()
    }
}
