//! What the commands for several keys may be called with. Pure: see
//! [`crate::args`].

use std::collections::HashSet;

use crate::{
    args::{self, ArgError, Args, Argument},
    syntax::{self, Options, Parsed},
};

/// The most keys of one command.
const KEYS_MAX: u32 = 1024;
/// Up to how many keys are compared each with each.
const COMPARED_MAX: usize = 16;

/// `RLOCK.MACQUIRE owner lease-ms numkeys key [key ...] [ONCE] [WAIT wait-ms]
/// [NOTIFY channel]`
pub(crate) struct AcquireAll<'a, A> {
    pub(crate) owner: &'a A,
    pub(crate) lease_ms: u32,
    pub(crate) keys: &'a [A],
    pub(crate) options: Options<'a, A>,
}

/// `RLOCK.MRENEW owner lease-ms numkeys key [key ...]`
pub(crate) struct RenewAll<'a, A> {
    pub(crate) owner: &'a A,
    pub(crate) lease_ms: u32,
    pub(crate) keys: &'a [A],
}

/// `RLOCK.MRELEASE owner numkeys key [key ...] [ALL]`
pub(crate) struct ReleaseAll<'a, A> {
    pub(crate) owner: &'a A,
    pub(crate) keys: &'a [A],
    pub(crate) all: bool,
}

/// Reads the arguments of `RLOCK.MACQUIRE`.
pub(crate) fn acquire<A: Argument>(words: &[A], lease_max_ms: u64) -> Parsed<AcquireAll<'_, A>> {
    let [_, owner, lease, numkeys, rest @ ..] = words else {
        return None;
    };
    Some(args::owner(owner).and_then(|owner| {
        let lease_ms = args::millis("lease-ms", lease, 1, lease_max_ms)?;
        let (keys, rest) = keys(numkeys, rest)?;
        // A hold that is bound is taken key by key.
        let options = syntax::options(rest, lease_max_ms, &mut |_, _| Ok(false))?;
        if options.grace_ms.is_some() {
            return Err(ArgError::UnknownOption {
                value: (*b"BIND").into(),
            });
        }
        Ok(AcquireAll {
            owner,
            lease_ms,
            keys,
            options,
        })
    }))
}

/// Reads the arguments of `RLOCK.MRENEW`.
pub(crate) fn renew<A: Argument>(words: &[A], lease_max_ms: u64) -> Parsed<RenewAll<'_, A>> {
    let [_, owner, lease, numkeys, rest @ ..] = words else {
        return None;
    };
    Some(args::owner(owner).and_then(|owner| {
        let lease_ms = args::millis("lease-ms", lease, 1, lease_max_ms)?;
        let (keys, rest) = keys(numkeys, rest)?;
        if let Some(word) = rest.first() {
            return Err(ArgError::UnknownOption {
                value: word.bytes().into(),
            });
        }
        Ok(RenewAll {
            owner,
            lease_ms,
            keys,
        })
    }))
}

/// Reads the arguments of `RLOCK.MRELEASE`.
pub(crate) fn release<A: Argument>(words: &[A]) -> Parsed<ReleaseAll<'_, A>> {
    let [_, owner, numkeys, rest @ ..] = words else {
        return None;
    };
    Some(args::owner(owner).and_then(|owner| {
        let (keys, rest) = keys(numkeys, rest)?;
        let all = args::all(Args::new(rest))?;
        Ok(ReleaseAll { owner, keys, all })
    }))
}

/// As many keys as `numkeys` says, and what comes after them.
fn keys<'a, A: Argument>(numkeys: &A, words: &'a [A]) -> Result<(&'a [A], &'a [A]), ArgError> {
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

/// A key that is named twice.
fn repeated<A: Argument>(keys: &[A]) -> Option<&A> {
    if keys.len() <= COMPARED_MAX {
        let mut known = keys.iter().enumerate();
        return known
            .find(|(at, key)| keys.iter().take(*at).any(|it| it.bytes() == key.bytes()))
            .map(|(_, key)| key);
    }
    let mut seen = HashSet::with_capacity(keys.len());
    keys.iter().find(|key| !seen.insert(key.bytes()))
}
