//! The words of `RLOCK.ACQUIRE` and `RLOCK.MACQUIRE`.

use super::{ArgError, Argument, NamedChannel, args, commands::keys, options::Options};
use crate::{Mode, Request, Wait};

/// The most permits of a lock.
const PERMITS_MAX: u32 = 1_000_000;
/// The longest that a place is kept, in milliseconds.
const KEEP_MAX_MS: u64 = 600_000;

/// The options of a request for one lock, and of one for several.
const OF_ONE: [&str; 9] = [
    "SHARED", "LIMIT", "PERMITS", "REENTER", "WAIT", "KEEP", "NOTIFY", "SNOTIFY", "BIND",
];
const OF_SEVERAL: [&str; 5] = ["REENTER", "WAIT", "KEEP", "NOTIFY", "SNOTIFY"];

/// A request for one lock or several, and those of its words that the caller
/// has more to do with.
#[derive(Debug)]
pub struct Acquire<'a, A> {
    /// The keys; of `RLOCK.ACQUIRE` one.
    pub keys: &'a [A],
    /// The owner.
    pub owner: &'a A,
    /// The channel, if one is named.
    pub channel: Option<NamedChannel<'a, A>>,
    /// What is asked for. The connection that asks is left open.
    pub request: Request<'a>,
}

/// Reads `RLOCK.ACQUIRE key owner lease-ms [option ...]`.
pub fn acquire<A: Argument>(words: &[A], lease_max_ms: u64) -> Result<Acquire<'_, A>, ArgError> {
    let [_, key, owner, lease, options @ ..] = words else {
        return Err(ArgError::Arity);
    };
    let keys = std::slice::from_ref(key);
    Options::read(options, &OF_ONE)?.ask(keys, owner, lease, lease_max_ms)
}

/// Reads `RLOCK.MACQUIRE owner lease-ms numkeys key [key ...] [option ...]`.
pub fn acquire_all<A: Argument>(
    words: &[A],
    lease_max_ms: u64,
) -> Result<Acquire<'_, A>, ArgError> {
    let [_, owner, lease, numkeys, rest @ ..] = words else {
        return Err(ArgError::Arity);
    };
    let (keys, options) = keys(numkeys, rest)?;
    Options::read(options, &OF_SEVERAL)?.ask(keys, owner, lease, lease_max_ms)
}

impl<'a, A: Argument> Options<'a, A> {
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
        let grace_ms = self.grace_ms(lease_max_ms);
        let channel = self.channel()?;
        Ok(Acquire {
            keys,
            owner,
            channel,
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
                user: None,
                channel: channel.map(|it| it.channel()),
                grace_ms: grace_ms?,
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
}

const fn needs(option: &'static str, needs: &'static str) -> ArgError {
    ArgError::NeedsOption { option, needs }
}
