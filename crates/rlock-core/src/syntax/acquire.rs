//! The words of `RLOCK.ACQUIRE` and `RLOCK.MACQUIRE`.

use super::{
    ArgError, Argument, Parsed,
    args::{self, Args},
    commands::keys,
};
use crate::{Channel, ChannelKind, Mode, Request, Wait};

/// The most permits of a lock.
const PERMITS_MAX: u32 = 1_000_000;
/// The longest that a place is kept, in milliseconds.
const KEEP_MAX_MS: u64 = 600_000;

/// A request for one lock or several, and those of its words that the caller
/// has more to do with.
#[derive(Debug)]
pub struct Acquire<'a, A> {
    /// The keys; of `RLOCK.ACQUIRE` one.
    pub keys: &'a [A],
    /// The owner.
    pub owner: &'a A,
    /// The channel, if one is named.
    pub channel: Option<&'a A>,
    /// What is asked for. The connection that asks is left open.
    pub request: Request<'a>,
}

/// Reads `RLOCK.ACQUIRE key owner lease-ms [option ...]`.
pub fn acquire<A: Argument>(words: &[A], lease_max_ms: u64) -> Parsed<Acquire<'_, A>> {
    let [_, key, owner, lease, options @ ..] = words else {
        return None;
    };
    let keys = std::slice::from_ref(key);
    Some(Options::read(options, true).and_then(|it| it.ask(keys, owner, lease, lease_max_ms)))
}

/// Reads `RLOCK.MACQUIRE owner lease-ms numkeys key [key ...] [option ...]`.
pub fn acquire_all<A: Argument>(words: &[A], lease_max_ms: u64) -> Parsed<Acquire<'_, A>> {
    let [_, owner, lease, numkeys, rest @ ..] = words else {
        return None;
    };
    Some(keys(numkeys, rest).and_then(|(keys, options)| {
        Options::read(options, false)?.ask(keys, owner, lease, lease_max_ms)
    }))
}

/// The options as they are written, each at most once.
struct Options<'a, A> {
    shared: bool,
    limit: Option<&'a A>,
    permits: Option<&'a A>,
    reenter: bool,
    wait: Option<&'a A>,
    keep: Option<&'a A>,
    notify: Option<&'a A>,
    snotify: Option<&'a A>,
    bind: Option<&'a A>,
}

impl<'a, A: Argument> Options<'a, A> {
    /// Reads the options, in any order: those of one key, or those that
    /// requests for several keys have too.
    fn read(words: &'a [A], of_one: bool) -> Result<Self, ArgError> {
        let mut it = Self {
            shared: false,
            limit: None,
            permits: None,
            reenter: false,
            wait: None,
            keep: None,
            notify: None,
            snotify: None,
            bind: None,
        };
        let mut rest = Args::new(words);
        while let Some(word) = rest.next() {
            let is = |option: &str| word.bytes().eq_ignore_ascii_case(option.as_bytes());
            let (value, option) = match () {
                () if is("REENTER") => {
                    args::once(&mut it.reenter, "REENTER")?;
                    continue;
                }
                () if of_one && is("SHARED") => {
                    args::once(&mut it.shared, "SHARED")?;
                    continue;
                }
                () if is("WAIT") => (&mut it.wait, "WAIT"),
                () if is("KEEP") => (&mut it.keep, "KEEP"),
                () if is("NOTIFY") => (&mut it.notify, "NOTIFY"),
                () if is("SNOTIFY") => (&mut it.snotify, "SNOTIFY"),
                () if of_one && is("LIMIT") => (&mut it.limit, "LIMIT"),
                () if of_one && is("PERMITS") => (&mut it.permits, "PERMITS"),
                () if of_one && is("BIND") => (&mut it.bind, "BIND"),
                () => {
                    return Err(ArgError::UnknownOption {
                        value: word.bytes().into(),
                    });
                }
            };
            args::set(value, option, rest.value(option)?)?;
        }
        Ok(it)
    }

    /// The request that the words come to.
    fn ask(
        self,
        keys: &'a [A],
        owner: &'a A,
        lease: &A,
        lease_max_ms: u64,
    ) -> Result<Acquire<'a, A>, ArgError> {
        let owner = args::owner(owner)?;
        let lease_ms = args::millis("lease-ms", lease, 1, lease_max_ms)?;
        let wait = self
            .wait
            .map(|it| args::number("wait-ms", it, 0, lease_max_ms));
        if self.keep.is_some() && self.wait.is_none() {
            return Err(needs("KEEP", "WAIT"));
        }
        let keep = self
            .keep
            .map(|it| args::millis("KEEP grace-ms", it, 1, KEEP_MAX_MS));
        let grace = self
            .bind
            .map(|it| args::millis("BIND grace-ms", it, 0, lease_max_ms));
        let channel = self.channel()?;
        let (kind, name) = channel.unzip();
        Ok(Acquire {
            keys,
            owner,
            channel: name,
            request: Request {
                owner: owner.bytes(),
                mode: self.mode()?,
                lease_ms,
                reenter: self.reenter,
                wait: match wait.transpose()? {
                    None => Wait::No,
                    Some(0) => Wait::Forever,
                    Some(millis) => Wait::Millis(millis),
                },
                keep_ms: keep.transpose()?,
                session: None,
                channel: kind.zip(name).map(|(kind, name)| Channel {
                    kind,
                    name: name.bytes(),
                }),
                grace_ms: grace.transpose()?,
            },
        })
    }

    /// The mode that is asked for, of which each option needs the one before.
    fn mode(&self) -> Result<Mode, ArgError> {
        if self.permits.is_some() && self.limit.is_none() {
            return Err(needs("PERMITS", "LIMIT"));
        }
        if self.limit.is_some() && !self.shared {
            return Err(needs("LIMIT", "SHARED"));
        }
        if !self.shared {
            return Ok(Mode::Exclusive);
        }
        let limit = self.limit.map(|it| args::small("LIMIT", it, PERMITS_MAX));
        let limit = limit.transpose()?;
        let permits = self
            .permits
            .map(|it| args::small("PERMITS", it, limit.unwrap_or(1)));
        Ok(Mode::Shared {
            permits: permits.transpose()?.unwrap_or(1),
            limit,
        })
    }

    fn channel(&self) -> Result<Option<(ChannelKind, &'a A)>, ArgError> {
        let named = match (self.notify, self.snotify) {
            (None, None) => return Ok(None),
            (Some(name), None) => (ChannelKind::Plain, name),
            (None, Some(name)) => (ChannelKind::Sharded, name),
            (Some(_), Some(_)) => {
                return Err(ArgError::ExcludesOption {
                    option: "SNOTIFY",
                    excludes: "NOTIFY",
                });
            }
        };
        Ok(Some((named.0, args::channel(named.1)?)))
    }
}

const fn needs(option: &'static str, needs: &'static str) -> ArgError {
    ArgError::NeedsOption { option, needs }
}
