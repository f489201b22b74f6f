//! The options of all commands, as words.

use super::{
    ArgError, Argument, Command, Opt, args,
    table::{Max, Value},
};
use crate::{Channel, ChannelKind, Extras, Fence, Grace};

/// The options of a command, each at most once.
pub(super) struct Options<'a, A> {
    /// The value of each given option, by its number; for an option without a
    /// value, its token.
    given: [Option<&'a A>; Opt::ALL.len()],
    /// A bit for each given option, by its number.
    which: u32,
    lease_max_ms: u64,
}

/// The first words of all options, side by side, so that most words are compared
/// with little more than their lengths.
const TOKENS: [&str; Opt::ALL.len()] = {
    let mut tokens = [""; Opt::ALL.len()];
    let mut at = 0;
    while at < tokens.len() {
        tokens[at] = Opt::ALL[at].spec().token;
        at += 1;
    }
    tokens
};

/// A channel in a command.
#[derive(Debug)]
pub struct NamedChannel<'a, A> {
    /// The kind of the channel.
    pub kind: ChannelKind,
    /// Its name.
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
    /// Reads the options of a command, in any order. A number of milliseconds may
    /// be at most `lease_max_ms`, unless its option has its own limit. Their
    /// combination is not [`checked`](Self::checked) yet: errors of owner and
    /// lease come first.
    pub(super) fn read(
        command: Command,
        words: &'a [A],
        lease_max_ms: u64,
    ) -> Result<Self, ArgError> {
        let mut it = Self {
            given: [None; Opt::ALL.len()],
            which: 0,
            lease_max_ms,
        };
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let bytes = word.bytes();
            let is = |(option, token): &(&Opt, &&str)| {
                bytes.eq_ignore_ascii_case(token.as_bytes())
                    && option.spec().commands.contains(&command)
            };
            let option = Opt::ALL.iter().zip(&TOKENS).find(is);
            let (option, token) = option.ok_or_else(|| ArgError::UnknownOption {
                value: bytes.into(),
            })?;
            let value = match option.spec().value {
                Value::None => word,
                Value::Number { .. } | Value::Channel | Value::Bytes => {
                    let missing = ArgError::MissingValue { option: token };
                    rest.next().ok_or(missing)?
                }
            };
            it.which |= 1 << *option as u32;
            let given = it.given.get_mut(*option as usize);
            if given.and_then(|given| given.replace(value)).is_some() {
                return Err(ArgError::RepeatedOption { option: token });
            }
        }
        Ok(it)
    }

    /// Checks that each option has what it requires, and nothing that it
    /// excludes.
    pub(super) fn checked(self) -> Result<Self, ArgError> {
        let mut rest = self.which;
        while let Some(option) = Opt::ALL.get(rest.trailing_zeros() as usize) {
            rest &= rest - 1;
            let spec = option.spec();
            if let Some(needs) = spec.needs.filter(|it| !self.has(*it)) {
                return Err(ArgError::NeedsOption {
                    option: spec.token,
                    needs: needs.spec().token,
                });
            }
            if let Some(excludes) = spec.excludes.filter(|it| self.has(*it)) {
                return Err(ArgError::ExcludesOption {
                    option: spec.token,
                    excludes: excludes.spec().token,
                });
            }
        }
        Ok(self)
    }

    fn value(&self, option: Opt) -> Option<&'a A> {
        self.given.get(option as usize).copied().flatten()
    }

    /// Whether an option was given.
    pub(super) fn has(&self, option: Opt) -> bool {
        self.value(option).is_some()
    }

    /// The number of an option, if it was given. Most options are not, which
    /// costs no call.
    #[inline]
    pub(super) fn number(&self, option: Opt) -> Result<Option<u64>, ArgError> {
        match self.value(option) {
            None => Ok(None),
            Some(text) => self.read_number(option, text),
        }
    }

    #[inline(never)]
    fn read_number(&self, option: Opt, text: &A) -> Result<Option<u64>, ArgError> {
        let Value::Number {
            argument, min, max, ..
        } = &option.spec().value
        else {
            return Ok(None);
        };
        let max = match *max {
            Max::Of(max) => max,
            Max::LeaseMs => self.lease_max_ms,
            Max::Given(other) => self.number(other)?.unwrap_or(*min),
        };
        args::number(argument, text, *min, max).map(Some)
    }

    /// The same for an option whose numbers are all small.
    #[inline(always)]
    pub(super) fn small(&self, option: Opt) -> Result<Option<u32>, ArgError> {
        match self.value(option) {
            None => Ok(None),
            Some(text) => self.read_small(option, text),
        }
    }

    #[inline(never)]
    fn read_small(&self, option: Opt, text: &A) -> Result<Option<u32>, ArgError> {
        let number = self.read_number(option, text)?;
        Ok(number.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
    }

    /// The channel, given by one of two options.
    pub(super) fn channel(&self) -> Result<Option<NamedChannel<'a, A>>, ArgError> {
        let (kind, word) = match (self.value(Opt::Notify), self.value(Opt::Snotify)) {
            (None, None) => return Ok(None),
            (Some(word), _) => (ChannelKind::Plain, word),
            (None, Some(word)) => (ChannelKind::Sharded, word),
        };
        let word = args::channel(word)?;
        Ok(Some(NamedChannel { kind, word }))
    }

    /// What the hold gets beside its holder.
    #[inline]
    pub(super) fn extras(&self) -> Result<Extras<&'a [u8]>, ArgError> {
        Ok(Extras {
            value: self.value(Opt::Value).map(args::value).transpose()?,
        })
    }

    /// The grace of an option.
    #[inline(always)]
    pub(super) fn grace(&self, option: Opt) -> Result<Option<Grace>, ArgError> {
        Ok(self.small(option)?.map(Grace::from_millis))
    }

    pub(super) fn fence(&self) -> Result<Option<Fence>, ArgError> {
        Ok(self.number(Opt::Fence)?.and_then(Fence::new))
    }
}
