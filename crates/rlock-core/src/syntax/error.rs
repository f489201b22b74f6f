//! The error of an argument, as a sentence for the caller.

use std::fmt;

/// The part of a bad value that an error shows, in bytes.
const SHOWN_MAX: usize = 64;

/// The beginning of a bad value: only as much as an error shows, because the
/// value may have hundreds of megabytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Sample(Box<[u8]>);

impl From<&[u8]> for Sample {
    fn from(value: &[u8]) -> Self {
        // One more byte shows that there is more.
        Self(value.get(..=SHOWN_MAX).unwrap_or(value).into())
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(&self.0).fmt(f)
    }
}

/// The error of an argument; its text is the error's sentence.
#[allow(missing_docs, reason = "each field is what the sentence shows of it")]
#[derive(Debug, PartialEq, Eq)]
pub enum ArgError {
    /// Too few or too many arguments.
    Arity,
    Number {
        argument: &'static str,
        value: Sample,
        min: u64,
        max: u64,
    },
    Length {
        argument: &'static str,
        len: usize,
        min: usize,
        max: usize,
    },
    OwnerByte {
        value: Sample,
        byte: u8,
    },
    OwnerPrefix {
        value: Sample,
    },
    UnknownOption {
        value: Sample,
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
    ExcludesOption {
        option: &'static str,
        excludes: &'static str,
    },
    TooFewKeys {
        number: u32,
        given: usize,
    },
    RepeatedKey {
        value: Sample,
    },
}

/// A bad value in an error: printable, and not too long.
pub struct Shown<'a>(pub &'a [u8]);

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
            Self::Arity => f.write_str("wrong number of arguments"),
            Self::Number {
                argument,
                value,
                min,
                max,
            } => {
                write!(f, "{argument} is {}, ", value)?;
                write!(
                    f,
                    "must be a whole number from {min} to {max}, decimal digits only"
                )
            }
            Self::Length {
                argument,
                len,
                min,
                max,
            } => {
                write!(f, "{argument} has {len} bytes, must have {min} to {max}")
            }
            Self::OwnerByte { value, byte } => {
                write!(
                    f,
                    "owner is {}, must not contain the byte 0x{byte:02x} ",
                    value
                )?;
                f.write_str("(no byte from 0x00 to 0x20, no 0x7f)")
            }
            Self::OwnerPrefix { value } => {
                write!(f, "owner is {}, must not begin with 'rlock:'", value)
            }
            Self::UnknownOption { value } => {
                write!(f, "syntax error: {} is no option of this command", value)
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
            Self::ExcludesOption { option, excludes } => {
                write!(
                    f,
                    "syntax error: option {option} cannot be given with the option {excludes}"
                )
            }
            Self::TooFewKeys { number, given } => {
                write!(
                    f,
                    "numkeys is {number}, must be the number of keys, of which at most {given} follow"
                )
            }
            Self::RepeatedKey { value } => {
                write!(f, "key {} is named twice, must be named once", value)
            }
        }
    }
}
