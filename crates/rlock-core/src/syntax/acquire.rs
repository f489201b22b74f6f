//! The words of `RLOCK.ACQUIRE` and `RLOCK.MACQUIRE`.

use super::{
    ArgError, Argument, Command, NamedChannel, Opt, args, commands::keys, options::Options,
};
use crate::{AcquireOptions, Mode, Request, Wait};

/// A request for one lock or several, and the words that the caller needs for
/// other purposes.
#[derive(Debug)]
pub struct Acquire<'a, A> {
    /// The keys; one for `RLOCK.ACQUIRE`.
    pub keys: &'a [A],
    /// The owner.
    pub owner: &'a A,
    /// The channel, if one is named.
    pub channel: Option<NamedChannel<'a, A>>,
    /// The request. The connection that asks is not set.
    pub request: Request<'a>,
}

/// Reads `RLOCK.ACQUIRE key owner lease-ms [option ...]`.
pub fn acquire<A: Argument>(words: &[A], lease_max_ms: u64) -> Result<Acquire<'_, A>, ArgError> {
    let [_, key, owner, lease, options @ ..] = words else {
        return Err(ArgError::Arity);
    };
    let keys = std::slice::from_ref(key);
    Options::read(Command::Acquire, options, lease_max_ms)?.ask(keys, owner, lease, lease_max_ms)
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
    Options::read(Command::AcquireAll, options, lease_max_ms)?.ask(keys, owner, lease, lease_max_ms)
}

impl<'a, A: Argument> Options<'a, A> {
    /// The request in the words.
    fn ask(
        self,
        keys: &'a [A],
        owner: &'a A,
        lease: &A,
        lease_max_ms: u64,
    ) -> Result<Acquire<'a, A>, ArgError> {
        let owner = args::owner(owner)?;
        let lease_ms = args::millis("lease-ms", lease, 1, lease_max_ms)?;
        let options = self.checked()?;
        let channel = options.channel()?;
        let mode = options.mode()?;
        let extras = options.extras()?;
        if extras.value.is_some() && matches!(mode, Mode::Shared { .. }) {
            return Err(ArgError::ExcludesOption {
                option: Opt::Value.spec().token,
                excludes: Opt::Shared.spec().token,
            });
        }
        let wait = match options.number(Opt::Wait)? {
            None => Wait::No,
            Some(0) => Wait::Forever,
            Some(millis) => Wait::Millis(millis),
        };
        Ok(Acquire {
            keys,
            owner,
            channel,
            request: Request {
                owner: owner.bytes(),
                options: AcquireOptions {
                    mode,
                    lease_ms,
                    reenter: options.has(Opt::Reenter),
                    keep: options.grace(Opt::Keep)?,
                    bind: options.grace(Opt::Bind)?,
                },
                wait,
                session: None,
                user: None,
                channel: channel.map(|it| it.channel()),
                extras,
            },
        })
    }

    /// The requested mode.
    fn mode(&self) -> Result<Mode, ArgError> {
        if !self.has(Opt::Shared) {
            return Ok(Mode::Exclusive);
        }
        Ok(Mode::Shared {
            limit: self.small(Opt::Limit)?,
            permits: self.small(Opt::Permits)?.unwrap_or(1),
        })
    }
}
