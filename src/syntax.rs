//! What each command may be called with. Pure: see [`crate::args`].
//!
//! A function answers `None` if there are too few or too many arguments; the
//! server has its own words for that.

use rlock_core::{Mode, Wait};

use crate::args::{self, ArgError, Args, Argument};

/// The most permits of a lock.
const PERMITS_MAX: u32 = 1_000_000;
/// How many locks are listed unless another number is asked for, and at most.
const LIST_DEFAULT: u32 = 10;
const LIST_MAX: u32 = 1000;

/// `RLOCK.ACQUIRE key owner lease-ms [SHARED [LIMIT n [PERMITS k]]] [ONCE]
/// [WAIT wait-ms] [NOTIFY channel] [BIND grace-ms]`
pub(crate) struct Acquire<'a, A> {
    pub(crate) key: &'a A,
    pub(crate) owner: &'a A,
    pub(crate) lease_ms: u32,
    pub(crate) mode: Mode,
    pub(crate) options: Options<'a, A>,
}

/// The options that requests for one key and for several have in common.
pub(crate) struct Options<'a, A> {
    pub(crate) once: bool,
    pub(crate) wait: Wait,
    pub(crate) channel: Option<&'a A>,
    pub(crate) grace_ms: Option<u32>,
}

/// `RLOCK.RENEW key owner lease-ms`
pub(crate) struct Renew<'a, A> {
    pub(crate) key: &'a A,
    pub(crate) owner: &'a A,
    pub(crate) lease_ms: u32,
}

/// `RLOCK.RELEASE key owner [ALL]`
pub(crate) struct Release<'a, A> {
    pub(crate) key: &'a A,
    pub(crate) owner: &'a A,
    pub(crate) all: bool,
}

/// `RLOCK.CANCEL key owner` and `RLOCK.DOWNGRADE key owner`
pub(crate) struct KeyAndOwner<'a, A> {
    pub(crate) key: &'a A,
    pub(crate) owner: &'a A,
}

pub(crate) type Parsed<T> = Option<Result<T, ArgError>>;

/// Reads the arguments of `RLOCK.ACQUIRE`, the command's name being the first.
pub(crate) fn acquire<A: Argument>(words: &[A], lease_max_ms: u64) -> Parsed<Acquire<'_, A>> {
    let [_, key, owner, lease, options @ ..] = words else {
        return None;
    };
    Some(acquire_all(key, owner, lease, options, lease_max_ms))
}

fn acquire_all<'a, A: Argument>(
    key: &'a A,
    owner: &'a A,
    lease: &A,
    words: &'a [A],
    lease_max_ms: u64,
) -> Result<Acquire<'a, A>, ArgError> {
    let owner = args::owner(owner)?;
    let lease_ms = args::millis("lease-ms", lease, 1, lease_max_ms)?;
    let (mut shared, mut limit, mut permits) = (false, None, None);
    let options = options(words, lease_max_ms, &mut |word, rest| {
        if word.eq_ignore_ascii_case(b"SHARED") {
            args::once(&mut shared, "SHARED")?;
        } else if word.eq_ignore_ascii_case(b"LIMIT") {
            args::set(&mut limit, "LIMIT", rest.value("LIMIT")?)?;
        } else if word.eq_ignore_ascii_case(b"PERMITS") {
            args::set(&mut permits, "PERMITS", rest.value("PERMITS")?)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    })?;
    Ok(Acquire {
        key,
        owner,
        lease_ms,
        mode: mode(shared, limit, permits)?,
        options,
    })
}

/// The mode that is asked for, of which each option needs the one before.
fn mode<A: Argument>(
    shared: bool,
    limit: Option<&A>,
    permits: Option<&A>,
) -> Result<Mode, ArgError> {
    let needs = |option, needs| ArgError::NeedsOption { option, needs };
    if permits.is_some() && limit.is_none() {
        return Err(needs("PERMITS", "LIMIT"));
    }
    if limit.is_some() && !shared {
        return Err(needs("LIMIT", "SHARED"));
    }
    if !shared {
        return Ok(Mode::Exclusive);
    }
    let limit = limit.map(|it| args::small("LIMIT", it, PERMITS_MAX));
    let limit = limit.transpose()?;
    let permits = permits.map(|it| args::small("PERMITS", it, limit.unwrap_or(1)));
    Ok(Mode::Shared {
        permits: permits.transpose()?.unwrap_or(1),
        limit,
    })
}

/// What reads an option that only one command has; false if it is none.
type Special<'s, 'a, A> = &'s mut dyn FnMut(&[u8], &mut Args<'a, A>) -> Result<bool, ArgError>;

/// Reads the options after the arguments, in any order.
pub(crate) fn options<'a, A: Argument>(
    words: &'a [A],
    lease_max_ms: u64,
    special: Special<'_, 'a, A>,
) -> Result<Options<'a, A>, ArgError> {
    let mut rest = Args::new(words);
    let (mut once, mut wait, mut channel, mut grace) = (false, None, None, None);
    while let Some(option) = rest.next() {
        let bytes = option.bytes();
        if bytes.eq_ignore_ascii_case(b"ONCE") {
            args::once(&mut once, "ONCE")?;
        } else if bytes.eq_ignore_ascii_case(b"WAIT") {
            args::set(&mut wait, "WAIT", rest.value("WAIT")?)?;
        } else if bytes.eq_ignore_ascii_case(b"NOTIFY") {
            args::set(&mut channel, "NOTIFY", rest.value("NOTIFY")?)?;
        } else if bytes.eq_ignore_ascii_case(b"BIND") {
            args::set(&mut grace, "BIND", rest.value("BIND")?)?;
        } else if !special(bytes, &mut rest)? {
            return Err(ArgError::UnknownOption {
                value: bytes.into(),
            });
        }
    }
    let wait = wait.map(|it| args::number("wait-ms", it, 0, lease_max_ms));
    let grace = grace.map(|it| args::millis("grace-ms", it, 0, lease_max_ms));
    Ok(Options {
        once,
        wait: match wait.transpose()? {
            None => Wait::No,
            Some(0) => Wait::Forever,
            Some(millis) => Wait::Millis(millis),
        },
        channel: channel.map(args::channel).transpose()?,
        grace_ms: grace.transpose()?,
    })
}

/// Reads the arguments of `RLOCK.RENEW`.
pub(crate) fn renew<A: Argument>(words: &[A], lease_max_ms: u64) -> Parsed<Renew<'_, A>> {
    let [_, key, owner, lease] = words else {
        return None;
    };
    Some(args::owner(owner).and_then(|owner| {
        let lease_ms = args::millis("lease-ms", lease, 1, lease_max_ms)?;
        Ok(Renew {
            key,
            owner,
            lease_ms,
        })
    }))
}

/// Reads the arguments of `RLOCK.RELEASE`.
pub(crate) fn release<A: Argument>(words: &[A]) -> Parsed<Release<'_, A>> {
    let [_, key, owner, options @ ..] = words else {
        return None;
    };
    Some(release_all(key, owner, Args::new(options)))
}

fn release_all<'a, A: Argument>(
    key: &'a A,
    owner: &'a A,
    options: Args<'a, A>,
) -> Result<Release<'a, A>, ArgError> {
    let owner = args::owner(owner)?;
    let all = args::all(options)?;
    Ok(Release { key, owner, all })
}

/// Reads the arguments of `RLOCK.CANCEL` and `RLOCK.DOWNGRADE`.
pub(crate) fn key_and_owner<A: Argument>(words: &[A]) -> Parsed<KeyAndOwner<'_, A>> {
    let [_, key, owner] = words else { return None };
    Some(args::owner(owner).map(|owner| KeyAndOwner { key, owner }))
}

/// Reads the arguments of `RLOCK.LIST`: how many locks are asked for.
pub(crate) fn list<A: Argument>(words: &[A]) -> Parsed<usize> {
    let [_, options @ ..] = words else {
        return None;
    };
    Some(list_all(Args::new(options)))
}

fn list_all<A: Argument>(mut options: Args<'_, A>) -> Result<usize, ArgError> {
    let mut count = None;
    while let Some(option) = options.next() {
        if !option.bytes().eq_ignore_ascii_case(b"COUNT") {
            return Err(ArgError::UnknownOption {
                value: option.bytes().into(),
            });
        }
        args::set(&mut count, "COUNT", options.value("COUNT")?)?;
    }
    let count = count.map(|it| args::small("COUNT", it, LIST_MAX));
    let count = count.transpose()?.unwrap_or(LIST_DEFAULT);
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}
