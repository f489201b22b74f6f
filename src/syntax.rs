//! What each command may be called with. Pure: see [`crate::args`].
//!
//! A function answers `None` if there are too few or too many arguments; the
//! server has its own words for that.

use rlock_core::Wait;

use crate::args::{self, ArgError, Args, Argument};

/// `RLOCK.ACQUIRE key owner lease-ms [ONCE] [WAIT wait-ms] [NOTIFY channel]`
pub(crate) struct Acquire<'a, A> {
    pub(crate) key: &'a A,
    pub(crate) owner: &'a A,
    pub(crate) lease_ms: u64,
    pub(crate) once: bool,
    pub(crate) wait: Wait,
    pub(crate) channel: Option<&'a A>,
}

/// `RLOCK.RENEW key owner lease-ms`
pub(crate) struct Renew<'a, A> {
    pub(crate) key: &'a A,
    pub(crate) owner: &'a A,
    pub(crate) lease_ms: u64,
}

/// `RLOCK.RELEASE key owner [ALL]`
pub(crate) struct Release<'a, A> {
    pub(crate) key: &'a A,
    pub(crate) owner: &'a A,
    pub(crate) all: bool,
}

/// `RLOCK.CANCEL key owner`
pub(crate) struct Cancel<'a, A> {
    pub(crate) key: &'a A,
    pub(crate) owner: &'a A,
}

type Parsed<T> = Option<Result<T, ArgError>>;

/// Reads the arguments of `RLOCK.ACQUIRE`, the command's name being the first.
pub(crate) fn acquire<A: Argument>(words: &[A], lease_max_ms: u64) -> Parsed<Acquire<'_, A>> {
    let [_, key, owner, lease, options @ ..] = words else {
        return None;
    };
    Some(acquire_all(
        key,
        owner,
        lease,
        Args::new(options),
        lease_max_ms,
    ))
}

fn acquire_all<'a, A: Argument>(
    key: &'a A,
    owner: &'a A,
    lease: &A,
    mut options: Args<'a, A>,
    lease_max_ms: u64,
) -> Result<Acquire<'a, A>, ArgError> {
    let owner = args::owner(owner)?;
    let lease_ms = args::number("lease-ms", lease, 1, lease_max_ms)?;
    let mut acquire = Acquire {
        key,
        owner,
        lease_ms,
        once: false,
        wait: Wait::No,
        channel: None,
    };
    let (mut waits, mut notifies) = (false, false);
    while let Some(option) = options.next() {
        let bytes = option.bytes();
        if bytes.eq_ignore_ascii_case(b"ONCE") {
            args::once(&mut acquire.once, "ONCE")?;
        } else if bytes.eq_ignore_ascii_case(b"WAIT") {
            args::once(&mut waits, "WAIT")?;
            let wait = options.value("WAIT")?;
            acquire.wait = match args::number("wait-ms", wait, 0, lease_max_ms)? {
                0 => Wait::Forever,
                millis => Wait::Millis(millis),
            };
        } else if bytes.eq_ignore_ascii_case(b"NOTIFY") {
            args::once(&mut notifies, "NOTIFY")?;
            acquire.channel = Some(args::channel(options.value("NOTIFY")?)?);
        } else {
            return Err(ArgError::UnknownOption {
                value: bytes.into(),
            });
        }
    }
    Ok(acquire)
}

/// Reads the arguments of `RLOCK.RENEW`.
pub(crate) fn renew<A: Argument>(words: &[A], lease_max_ms: u64) -> Parsed<Renew<'_, A>> {
    let [_, key, owner, lease] = words else {
        return None;
    };
    Some(args::owner(owner).and_then(|owner| {
        let lease_ms = args::number("lease-ms", lease, 1, lease_max_ms)?;
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
    mut options: Args<'a, A>,
) -> Result<Release<'a, A>, ArgError> {
    let owner = args::owner(owner)?;
    let mut all = false;
    while let Some(option) = options.next() {
        if !option.bytes().eq_ignore_ascii_case(b"ALL") {
            return Err(ArgError::UnknownOption {
                value: option.bytes().into(),
            });
        }
        args::once(&mut all, "ALL")?;
    }
    Ok(Release { key, owner, all })
}

/// Reads the arguments of `RLOCK.CANCEL`.
pub(crate) fn cancel<A: Argument>(words: &[A]) -> Parsed<Cancel<'_, A>> {
    let [_, key, owner] = words else { return None };
    Some(args::owner(owner).map(|owner| Cancel { key, owner }))
}
