//! A cursor over the arguments of a command, and what they may be.
//!
//! Knows nothing of the server: anything that has bytes can be an argument,
//! which is how the fuzz target drives it.

use std::fmt;

/// The most bytes of an owner.
pub(crate) const OWNER_LEN_MAX: usize = 256;
/// The most bytes of a channel.
pub(crate) const CHANNEL_LEN_MAX: usize = 512;
/// What the module's own fields in a hash begin with, and no owner does.
pub(crate) const RESERVED_PREFIX: &[u8] = b"rlock:";
/// How much of a bad value an error shows, in bytes.
const SHOWN_MAX: usize = 64;

/// Something with bytes.
pub(crate) trait Argument {
    fn bytes(&self) -> &[u8];
}

/// What is wrong with an argument; its text is the error's sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ArgError {
    Number {
        argument: &'static str,
        value: Box<[u8]>,
        min: u64,
        max: u64,
    },
    Length {
        argument: &'static str,
        len: usize,
        max: usize,
    },
    OwnerByte {
        value: Box<[u8]>,
        byte: u8,
    },
    OwnerPrefix {
        value: Box<[u8]>,
    },
    UnknownOption {
        value: Box<[u8]>,
    },
    RepeatedOption {
        option: &'static str,
    },
    MissingValue {
        option: &'static str,
    },
    NeedsOption {
        option: &'static str,
        needs: &'static str,
    },
    TooFewKeys {
        number: u32,
        given: usize,
    },
    RepeatedKey {
        value: Box<[u8]>,
    },
}

pub(crate) struct Args<'a, A> {
    rest: &'a [A],
}

impl<'a, A: Argument> Args<'a, A> {
    pub(crate) const fn new(rest: &'a [A]) -> Self {
        Self { rest }
    }

    pub(crate) fn next(&mut self) -> Option<&'a A> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// The value that an option needs.
    pub(crate) fn value(&mut self, option: &'static str) -> Result<&'a A, ArgError> {
        self.next().ok_or(ArgError::MissingValue { option })
    }
}

/// Marks an option as seen; each may be given once.
pub(crate) fn once(seen: &mut bool, option: &'static str) -> Result<(), ArgError> {
    if std::mem::replace(seen, true) {
        Err(ArgError::RepeatedOption { option })
    } else {
        Ok(())
    }
}

/// Keeps the value of an option; each may be given once.
pub(crate) fn set<'a, A>(
    value: &mut Option<&'a A>,
    option: &'static str,
    given: &'a A,
) -> Result<(), ArgError> {
    match value.replace(given) {
        None => Ok(()),
        Some(_) => Err(ArgError::RepeatedOption { option }),
    }
}

/// Reads the only option that commands which release have.
pub(crate) fn all<A: Argument>(mut options: Args<'_, A>) -> Result<bool, ArgError> {
    let mut all = false;
    while let Some(option) = options.next() {
        if !option.bytes().eq_ignore_ascii_case(b"ALL") {
            return Err(ArgError::UnknownOption {
                value: option.bytes().into(),
            });
        }
        once(&mut all, "ALL")?;
    }
    Ok(all)
}

/// An owner: 1 to 256 bytes, none of them a control character or a space (so
/// that it can stand in a message of one line), not beginning with `rlock:`.
pub(crate) fn owner<A: Argument>(argument: &A) -> Result<&A, ArgError> {
    let bytes = argument.bytes();
    check_len("owner", bytes, OWNER_LEN_MAX)?;
    if let Some(byte) = bytes
        .iter()
        .copied()
        .find(|byte| *byte <= 0x20 || *byte == 0x7f)
    {
        return Err(ArgError::OwnerByte {
            value: bytes.into(),
            byte,
        });
    }
    if bytes.starts_with(RESERVED_PREFIX) {
        return Err(ArgError::OwnerPrefix {
            value: bytes.into(),
        });
    }
    Ok(argument)
}

/// A channel for messages: 1 to 512 bytes.
pub(crate) fn channel<A: Argument>(argument: &A) -> Result<&A, ArgError> {
    check_len("channel", argument.bytes(), CHANNEL_LEN_MAX)?;
    Ok(argument)
}

/// A whole number from `min` to `max`.
pub(crate) fn number<A: Argument>(
    argument: &'static str,
    text: &A,
    min: u64,
    max: u64,
) -> Result<u64, ArgError> {
    decimal(text.bytes())
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| ArgError::Number {
            argument,
            value: text.bytes().into(),
            min,
            max,
        })
}

/// A number of milliseconds. The largest that there may be fits: it is that of
/// the setting `max-lease-ms`.
pub(crate) fn millis<A: Argument>(
    argument: &'static str,
    text: &A,
    min: u64,
    max: u64,
) -> Result<u32, ArgError> {
    let millis = number(argument, text, min, max)?;
    Ok(u32::try_from(millis).unwrap_or(u32::MAX))
}

/// A whole number from 1 to `max`.
pub(crate) fn small<A: Argument>(
    argument: &'static str,
    text: &A,
    max: u32,
) -> Result<u32, ArgError> {
    let number = number(argument, text, 1, max.into())?;
    Ok(u32::try_from(number).unwrap_or(max))
}

/// Decimal digits, without sign, space or leading zero.
pub(crate) fn decimal(bytes: &[u8]) -> Option<u64> {
    match bytes {
        [] | [b'0', _, ..] => None,
        digits => digits.iter().try_fold(0_u64, |number, byte| {
            let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
            number.checked_mul(10)?.checked_add(digit.into())
        }),
    }
}

fn check_len(argument: &'static str, bytes: &[u8], max: usize) -> Result<(), ArgError> {
    if (1..=max).contains(&bytes.len()) {
        return Ok(());
    }
    Err(ArgError::Length {
        argument,
        len: bytes.len(),
        max,
    })
}

/// A value as it can stand in an error: printable, and not too long.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.get(..SHOWN_MAX).unwrap_or(self.0);
        let more = if shown.len() < self.0.len() {
            "..."
        } else {
            ""
        };
        write!(f, "'{}{more}'", shown.escape_ascii())
    }
}

impl fmt::Display for ArgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number {
                argument,
                value,
                min,
                max,
            } => {
                write!(f, "{argument} is {}, ", Shown(value))?;
                write!(
                    f,
                    "must be a whole number from {min} to {max}, decimal digits only"
                )
            }
            Self::Length { argument, len, max } => {
                write!(f, "{argument} has {len} bytes, must have 1 to {max}")
            }
            Self::OwnerByte { value, byte } => {
                write!(
                    f,
                    "owner is {}, must not contain the byte 0x{byte:02x} ",
                    Shown(value)
                )?;
                f.write_str("(no byte from 0x00 to 0x20, no 0x7f)")
            }
            Self::OwnerPrefix { value } => {
                write!(f, "owner is {}, must not begin with 'rlock:'", Shown(value))
            }
            Self::UnknownOption { value } => {
                write!(
                    f,
                    "syntax error: {} is no option of this command",
                    Shown(value)
                )
            }
            Self::RepeatedOption { option } => {
                write!(
                    f,
                    "syntax error: option {option} is given twice, may be given once"
                )
            }
            Self::MissingValue { option } => {
                write!(f, "syntax error: option {option} needs a value")
            }
            Self::NeedsOption { option, needs } => {
                write!(f, "syntax error: option {option} needs the option {needs}")
            }
            Self::TooFewKeys { number, given } => {
                write!(
                    f,
                    "numkeys is {number}, must be the number of keys, of which at most {given} follow"
                )
            }
            Self::RepeatedKey { value } => {
                write!(f, "key {} is named twice, must be named once", Shown(value))
            }
        }
    }
}
