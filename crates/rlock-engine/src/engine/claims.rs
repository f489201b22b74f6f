//! Who asks for a lock: one owner at all the keys of one request, a single one or
//! several.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use crate::engine::Id;
use crate::engine::node::slot_of;
use crate::error::Error;

/// The most keys of one request.
const KEYS_MAX: usize = 1024;

/// Checks what can be asked for together; `keys` are in their order.
///
/// # Errors
///
/// [`Error::OutOfRange`] for no keys, for more than 1024, and for one key twice.
pub fn check_keys(keys: &[Arc<[u8]>]) -> Result<(), Error> {
    let twice = keys.windows(2).find(|pair| pair.first() == pair.last());
    let value = match twice.and_then(<[_]>::first) {
        Some(key) => format!("`{}` more than once", String::from_utf8_lossy(key)),
        None if (1..=KEYS_MAX).contains(&keys.len()) => return Ok(()),
        None => format!("{} keys", keys.len()),
    };
    Err(Error::OutOfRange {
        argument: "keys",
        value,
        limit: format!("1 to {KEYS_MAX} different keys").into(),
    })
}

/// One owner at one key: `<owner> <key>`, as messages have it. No owner has a
/// space, so this names both.
#[derive(Clone, PartialEq, Eq)]
pub struct Name {
    /// Made once: a name is looked up about twenty times between a call and
    /// the end of its release.
    hash: u64,
    text: Arc<[u8]>,
}

impl Name {
    /// `text` is `<owner> <key>`.
    pub fn new(text: &[u8]) -> Self {
        // Keys may be anybody's choice, so nobody must know who shares a hash.
        static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self {
            hash: HASHES.hash_one(text),
            text: text.into(),
        }
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A table by names, which have their hash, or by numbers, which are in turn.
pub type Table<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Numbers of what there is.
pub(super) type Numbers = HashSet<Id, BuildHasherDefault<Spread>>;

/// Spreads numbers over all bits.
#[derive(Debug, Default)]
pub struct Spread(u64);

impl Hasher for Spread {
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

/// At least one name; in the order of their keys if there are several.
#[derive(Clone)]
pub struct Claims(Arc<Parts>);

struct Parts {
    owner: Owner,
    /// The slot of the first key: all are in one where that matters.
    slot: u16,
    first: Name,
    rest: Vec<Name>,
}

impl Claims {
    /// `owner` at `key` and the keys in `rest`, which come after it in their order.
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

    /// Those of a name that the server wrote.
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

    /// Whose they are.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// The slot of the first key; all are in one where that matters.
    pub fn slot(&self) -> u16 {
        self.0.slot
    }

    /// One for each key.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        std::iter::once(&self.0.first).chain(&self.0.rest)
    }

    /// Those for which that holds; none if there are none.
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

    /// In the order of the names.
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

    /// How many keys there are; at least one.
    pub fn count(&self) -> usize {
        1 + self.0.rest.len()
    }

    /// Whether there is one key only.
    pub fn is_single(&self) -> bool {
        self.0.rest.is_empty()
    }

    /// The keys for a line of the log.
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
