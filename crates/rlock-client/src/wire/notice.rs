//! The messages of the wire contract, and the name that each is known by.
//!
//! Knows their form only, not what follows from them.

use crate::engine::claim::Event;

/// One message on this client's channel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Notice<'a> {
    pub(crate) event: Event,
    pub(crate) fence: u64,
    /// `<owner> <key>`: no owner has a space, so this names both.
    pub(crate) name: &'a [u8],
}

/// Reads `<event> <fence> <owner> <key>`; `None` for anything else.
pub(crate) fn read(message: &[u8]) -> Option<Notice<'_>> {
    let (word, rest) = split_word(message)?;
    let (fence, name) = split_word(rest)?;
    let event = match word {
        b"grant" => Event::Grant,
        b"timeout" => Event::WaitEnded,
        b"withdrawn" => Event::Withdrawn,
        b"lost" => Event::Lost,
        _ => return None,
    };
    let fence = std::str::from_utf8(fence).ok()?.parse().ok()?;
    Some(Notice { event, fence, name })
}

fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    Some((text.get(..end)?, text.get(end + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::wakeups::name;

    #[test]
    fn a_key_in_a_notice_may_have_spaces_and_any_bytes() {
        let read = read(b"grant 17 u:1 a key\xff ").unwrap();
        assert_eq!((read.event, read.fence), (Event::Grant, 17));
        assert_eq!(read.name, name("u:1", b"a key\xff "));
    }

    #[test]
    fn a_malformed_notice_is_none() {
        for message in [
            &b""[..],
            b"grant",
            b"grant 1",
            b"grant x o k",
            b"grant -1 o k",
            b"won 1 o k",
        ] {
            assert_eq!(read(message), None);
        }
    }
}
