//! Which of a cluster's 16384 slots a key is in, as the cluster specification
//! has it: a CRC of the key, or of what is between its first braces.

use crc::{CRC_16_XMODEM, Crc};

const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

/// The slot of a key; below [`SLOTS`].
pub fn of(key: &[u8]) -> u16 {
    CRC.checksum(tag(key).unwrap_or(key)) % SLOTS
}

/// What is between the first `{` and the next `}`, unless that is nothing.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|byte| *byte == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those of `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(of(b""), 0);
        assert_eq!(of(b"foo"), 12182);
        assert_eq!(of(b"123456789"), 12739);
        assert_eq!(of(b"somekey"), 11058);
    }

    #[test]
    fn keys_with_the_same_tag_share_a_slot() {
        assert_eq!(of(b"{user1000}.following"), of(b"user1000"));
        assert_eq!(of(b"foo{bar}{zap}"), of(b"bar"));
        assert_eq!(of(b"foo{{bar}}zap"), of(b"{bar"));
    }

    #[test]
    fn an_empty_or_open_tag_is_none() {
        assert_ne!(of(b"foo{}{bar}"), of(b"bar"));
        assert_ne!(of(b"foo{bar"), of(b"bar"));
        assert_ne!(of(b"}foo{"), of(b"foo"));
    }
}
