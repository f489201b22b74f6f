//! The options of all commands, as they are written.

use super::{
    ArgError, Argument,
    args::{self, Args},
};
use crate::{Channel, ChannelKind, Fence};

/// The options that a command was called with, each at most once.
pub(super) struct Options<'a, A> {
    pub(super) shared: bool,
    pub(super) limit: Option<&'a A>,
    pub(super) permits: Option<&'a A>,
    pub(super) reenter: bool,
    pub(super) wait: Option<&'a A>,
    pub(super) keep: Option<&'a A>,
    notify: Option<&'a A>,
    snotify: Option<&'a A>,
    bind: Option<&'a A>,
    fence: Option<&'a A>,
    pub(super) all: bool,
    pub(super) queue: bool,
    pub(super) count: Option<&'a A>,
}

/// A channel that a command names.
#[derive(Debug)]
pub struct NamedChannel<'a, A> {
    /// Which kind of channel it is.
    pub kind: ChannelKind,
    /// The word that names it.
    pub word: &'a A,
}

impl<A> Clone for NamedChannel<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for NamedChannel<'_, A> {}

impl<'a, A: Argument> NamedChannel<'a, A> {
    /// The channel itself.
    #[must_use]
    pub fn channel(&self) -> Channel<'a> {
        let (kind, name) = (self.kind, self.word.bytes());
        Channel { kind, name }
    }
}

impl<'a, A: Argument> Options<'a, A> {
    /// Reads the options, in any order, of a command that has those `known`.
    pub(super) fn read(words: &'a [A], known: &[&'static str]) -> Result<Self, ArgError> {
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
            fence: None,
            all: false,
            queue: false,
            count: None,
        };
        let mut rest = Args::new(words);
        while let Some(word) = rest.next() {
            let is = |option: &&&str| word.bytes().eq_ignore_ascii_case(option.as_bytes());
            let unknown = || ArgError::UnknownOption {
                value: word.bytes().into(),
            };
            let option = *known.iter().find(is).ok_or_else(unknown)?;
            let flag = match option {
                "SHARED" => Some(&mut it.shared),
                "REENTER" => Some(&mut it.reenter),
                "ALL" => Some(&mut it.all),
                "QUEUE" => Some(&mut it.queue),
                _ => None,
            };
            if let Some(flag) = flag {
                args::once(flag, option)?;
                continue;
            }
            let value = match option {
                "LIMIT" => &mut it.limit,
                "PERMITS" => &mut it.permits,
                "WAIT" => &mut it.wait,
                "KEEP" => &mut it.keep,
                "NOTIFY" => &mut it.notify,
                "SNOTIFY" => &mut it.snotify,
                "BIND" => &mut it.bind,
                "FENCE" => &mut it.fence,
                "COUNT" => &mut it.count,
                _ => return Err(unknown()),
            };
            args::set(value, option, rest.value(option)?)?;
        }
        Ok(it)
    }

    /// The channel that is named, by one of two options.
    pub(super) fn channel(&self) -> Result<Option<NamedChannel<'a, A>>, ArgError> {
        let (kind, word) = match (self.notify, self.snotify) {
            (None, None) => return Ok(None),
            (Some(word), None) => (ChannelKind::Plain, word),
            (None, Some(word)) => (ChannelKind::Sharded, word),
            (Some(_), Some(_)) => {
                return Err(ArgError::ExcludesOption {
                    option: "SNOTIFY",
                    excludes: "NOTIFY",
                });
            }
        };
        let word = args::channel(word)?;
        Ok(Some(NamedChannel { kind, word }))
    }

    /// The grace of a hold that is to be bound, in milliseconds.
    pub(super) fn grace_ms(&self, grace_max_ms: u64) -> Result<Option<u32>, ArgError> {
        let grace = |it| args::millis("BIND grace-ms", it, 0, grace_max_ms);
        self.bind.map(grace).transpose()
    }

    pub(super) fn fence(&self) -> Result<Option<Fence>, ArgError> {
        let fence = |it| args::number("FENCE", it, 1, Fence::MAX);
        Ok(self.fence.map(fence).transpose()?.and_then(Fence::new))
    }
}
