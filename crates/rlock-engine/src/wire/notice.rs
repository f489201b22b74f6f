//! The messages of the wire contract, and the name that each is known by.
//!
//! Knows their form only, not what follows from them.

use crate::engine::claims::Name;
use crate::engine::notices::{Notice, Word};

/// Reads `<event> <fence> <owner> <key>`, which came by the connection of that
/// number; `None` for anything else.
pub fn read(message: &[u8], link: u64) -> Option<Notice> {
    let (word, rest) = split_word(message)?;
    let (fence, name) = split_word(rest)?;
    let word = match word {
        b"grant" => Word::Grant,
        b"timeout" => Word::WaitEnded,
        b"withdrawn" => Word::Withdrawn,
        b"lost" => Word::Lost,
        _ => return None,
    };
    let fence = std::str::from_utf8(fence).ok()?.parse().ok()?;
    Some(Notice {
        word,
        fence,
        name: Name::new(name),
        link,
    })
}

fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    Some((text.get(..end)?, text.get(end + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_a_notice_may_have_spaces_and_any_bytes() {
        let read = read(b"grant 17 u:1 a key\xff ", 1).unwrap();
        assert_eq!((read.word, read.fence), (Word::Grant, 17));
        assert!(read.name == Name::new(b"u:1 a key\xff "));
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
            assert!(read(message, 1).is_none());
        }
    }
}
