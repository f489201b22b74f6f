//! The values that arguments may have.

use super::{ArgError, Argument};

/// The most bytes of an owner.
pub const OWNER_LEN_MAX: usize = 256;
/// The most bytes of a channel.
pub const CHANNEL_LEN_MAX: usize = 512;
/// The most bytes of a value that is published with a hold.
pub const VALUE_LEN_MAX: usize = 1024;
/// The prefix of the module's own fields in a hash; owners cannot have it.
pub const RESERVED_PREFIX: &[u8] = b"rlock:";

/// An owner: 1 to 256 bytes, without control characters and spaces (so that it
/// fits into a message of one line), not beginning with `rlock:`.
pub(crate) fn owner<A: Argument>(argument: &A) -> Result<&A, ArgError> {
    let bytes = argument.bytes();
    check_len("owner", bytes, 1, OWNER_LEN_MAX)?;
    let is_wrong = |byte: &u8| *byte <= 0x20 || *byte == 0x7f;
    // Without a branch for each byte, the compiler compares sixteen at once.
    if bytes.iter().fold(false, |any, byte| any | is_wrong(byte))
        && let Some(byte) = bytes.iter().copied().find(is_wrong)
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
    check_len("channel", argument.bytes(), 1, CHANNEL_LEN_MAX)?;
    Ok(argument)
}

/// A value to publish with a hold: 0 to 1,024 bytes of any kind.
pub(crate) fn value<A: Argument>(argument: &A) -> Result<&[u8], ArgError> {
    check_len("VALUE value", argument.bytes(), 0, VALUE_LEN_MAX)?;
    Ok(argument.bytes())
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

/// A number of milliseconds. The largest possible one fits: it is the limit of
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
#[must_use]
pub fn decimal(bytes: &[u8]) -> Option<u64> {
    match bytes {
        [] | [b'0', _, ..] => None,
        digits => digits.iter().try_fold(0_u64, |number, byte| {
            let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
            number.checked_mul(10)?.checked_add(digit.into())
        }),
    }
}

fn check_len(argument: &'static str, bytes: &[u8], min: usize, max: usize) -> Result<(), ArgError> {
    if (min..=max).contains(&bytes.len()) {
        return Ok(());
    }
    Err(ArgError::Length {
        argument,
        len: bytes.len(),
        min,
        max,
    })
}
