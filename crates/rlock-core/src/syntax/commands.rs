//! The words of all commands except those that ask for a lock.

use std::collections::BTreeSet;

use super::{ArgError, Argument, Command, NamedChannel, Opt, args, options::Options};
use crate::{Extras, Fence, Grace};

/// The most keys of one command.
const KEYS_MAX: u32 = 1024;
/// The largest number of keys that are compared pairwise.
const COMPARED_MAX: usize = 16;
/// The default number of locks in a list.
const LIST_DEFAULT: u32 = 10;

/// `RLOCK.RENEW key owner lease-ms [FENCE n] [NOTIFY channel | SNOTIFY channel]
/// [BIND grace-ms] [VALUE value]`
#[derive(Debug)]
#[allow(missing_docs, reason = "each field is the word of its name")]
pub struct Renew<'a, A> {
    pub key: &'a A,
    pub owner: &'a A,
    pub lease_ms: u32,
    pub fence: Option<Fence>,
    pub channel: Option<NamedChannel<'a, A>>,
    pub bind: Option<Grace>,
    pub extras: Extras<&'a [u8]>,
}

/// `RLOCK.RELEASE key owner [ALL | PERMITS k] [FENCE n]`
#[derive(Debug)]
#[allow(missing_docs, reason = "each field is the word of its name")]
pub struct Release<'a, A> {
    pub key: &'a A,
    pub owner: &'a A,
    pub all: bool,
    pub permits: Option<u32>,
    pub fence: Option<Fence>,
}

/// `RLOCK.CANCEL key owner` and `RLOCK.DOWNGRADE key owner`
#[derive(Debug)]
#[allow(missing_docs, reason = "each field is the word of its name")]
pub struct KeyAndOwner<'a, A> {
    pub key: &'a A,
    pub owner: &'a A,
}

/// `RLOCK.FORCE key [FENCE n] [QUEUE]`
#[derive(Debug)]
#[allow(missing_docs, reason = "each field is the word of its name")]
pub struct Force<'a, A> {
    pub key: &'a A,
    pub fence: Option<Fence>,
    pub queue: bool,
}

/// `RLOCK.MRENEW owner lease-ms numkeys key [key ...] [FENCE n]
/// [NOTIFY channel | SNOTIFY channel]`
#[derive(Debug)]
#[allow(missing_docs, reason = "each field is the word of its name")]
pub struct RenewAll<'a, A> {
    pub owner: &'a A,
    pub lease_ms: u32,
    pub keys: &'a [A],
    pub fence: Option<Fence>,
    pub channel: Option<NamedChannel<'a, A>>,
}

/// `RLOCK.MRELEASE owner numkeys key [key ...] [ALL] [FENCE n]`
#[derive(Debug)]
#[allow(missing_docs, reason = "each field is the word of its name")]
pub struct ReleaseAll<'a, A> {
    pub owner: &'a A,
    pub keys: &'a [A],
    pub all: bool,
    pub fence: Option<Fence>,
}

/// Reads the arguments of `RLOCK.RENEW`.
pub fn renew<A: Argument>(words: &[A], lease_max_ms: u64) -> Result<Renew<'_, A>, ArgError> {
    let [_, key, owner, lease, options @ ..] = words else {
        return Err(ArgError::Arity);
    };
    let owner = args::owner(owner)?;
    let lease_ms = args::millis("lease-ms", lease, 1, lease_max_ms)?;
    let options = Options::read(Command::Renew, options, lease_max_ms)?;
    let fence = options.fence()?;
    let options = options.checked()?;
    Ok(Renew {
        key,
        owner,
        lease_ms,
        fence,
        channel: options.channel()?,
        bind: options.grace(Opt::Bind)?,
        extras: options.extras()?,
    })
}

/// Reads the arguments of `RLOCK.RELEASE`.
pub fn release<A: Argument>(words: &[A]) -> Result<Release<'_, A>, ArgError> {
    let [_, key, owner, options @ ..] = words else {
        return Err(ArgError::Arity);
    };
    let owner = args::owner(owner)?;
    let options = Options::read(Command::Release, options, 0)?.checked()?;
    Ok(Release {
        key,
        owner,
        all: options.has(Opt::All),
        permits: options.small(Opt::ReleasedPermits)?,
        fence: options.fence()?,
    })
}

/// Reads the arguments of `RLOCK.FORCE`.
pub fn force<A: Argument>(words: &[A]) -> Result<Force<'_, A>, ArgError> {
    let [_, key, options @ ..] = words else {
        return Err(ArgError::Arity);
    };
    let options = Options::read(Command::Force, options, 0)?.checked()?;
    Ok(Force {
        key,
        fence: options.fence()?,
        queue: options.has(Opt::Queue),
    })
}

/// Reads the arguments of `RLOCK.CANCEL` and `RLOCK.DOWNGRADE`.
pub fn key_and_owner<A: Argument>(words: &[A]) -> Result<KeyAndOwner<'_, A>, ArgError> {
    let [_, key, owner] = words else {
        return Err(ArgError::Arity);
    };
    let owner = args::owner(owner)?;
    Ok(KeyAndOwner { key, owner })
}

/// Reads the argument of `RLOCK.INFO`: the key.
pub const fn key<A: Argument>(words: &[A]) -> Result<&A, ArgError> {
    match words {
        [_, key] => Ok(key),
        _ => Err(ArgError::Arity),
    }
}

/// Reads the arguments of `RLOCK.HELP`, which has none.
pub const fn nothing<A: Argument>(words: &[A]) -> Result<(), ArgError> {
    match words {
        [_] => Ok(()),
        _ => Err(ArgError::Arity),
    }
}

/// Reads the arguments of `RLOCK.LIST`: the number of locks.
pub fn list<A: Argument>(words: &[A]) -> Result<usize, ArgError> {
    let [_, options @ ..] = words else {
        return Err(ArgError::Arity);
    };
    let options = Options::read(Command::List, options, 0)?.checked()?;
    let count = options.small(Opt::Count)?.unwrap_or(LIST_DEFAULT);
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// Reads the arguments of `RLOCK.MRENEW`.
pub fn renew_all<A: Argument>(words: &[A], lease_max_ms: u64) -> Result<RenewAll<'_, A>, ArgError> {
    let [_, owner, lease, numkeys, rest @ ..] = words else {
        return Err(ArgError::Arity);
    };
    let owner = args::owner(owner)?;
    let lease_ms = args::millis("lease-ms", lease, 1, lease_max_ms)?;
    let (keys, rest) = keys(numkeys, rest)?;
    let options = Options::read(Command::RenewAll, rest, lease_max_ms)?.checked()?;
    Ok(RenewAll {
        owner,
        lease_ms,
        keys,
        fence: options.fence()?,
        channel: options.channel()?,
    })
}

/// Reads the arguments of `RLOCK.MRELEASE`.
pub fn release_all<A: Argument>(words: &[A]) -> Result<ReleaseAll<'_, A>, ArgError> {
    let [_, owner, numkeys, rest @ ..] = words else {
        return Err(ArgError::Arity);
    };
    let owner = args::owner(owner)?;
    let (keys, rest) = keys(numkeys, rest)?;
    let options = Options::read(Command::ReleaseAll, rest, 0)?;
    Ok(ReleaseAll {
        owner,
        keys,
        all: options.has(Opt::All),
        fence: options.fence()?,
    })
}

/// The keys that `numkeys` announces, and the words after them.
pub(super) fn keys<'a, A: Argument>(
    numkeys: &A,
    words: &'a [A],
) -> Result<(&'a [A], &'a [A]), ArgError> {
    let number = args::small("numkeys", numkeys, KEYS_MAX)?;
    let split = usize::try_from(number).ok();
    let split = split.and_then(|number| words.split_at_checked(number));
    let (keys, rest) = split.ok_or(ArgError::TooFewKeys {
        number,
        given: words.len(),
    })?;
    match repeated(keys) {
        Some(twice) => Err(ArgError::RepeatedKey {
            value: twice.bytes().into(),
        }),
        None => Ok((keys, rest)),
    }
}

/// A key that occurs twice.
fn repeated<A: Argument>(keys: &[A]) -> Option<&A> {
    if keys.len() <= COMPARED_MAX {
        let mut known = keys.iter().enumerate();
        return known
            .find(|(at, key)| keys.iter().take(*at).any(|it| it.bytes() == key.bytes()))
            .map(|(_, key)| key);
    }
    let mut seen = BTreeSet::new();
    keys.iter().find(|key| !seen.insert(key.bytes()))
}
