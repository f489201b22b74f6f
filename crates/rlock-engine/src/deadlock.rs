//! Who is part of a deadlock, as the server's sentence names them.
//!
//! The sentence is for people; a form that is not known here gives no owners.

/// What precedes the owners. A key may contain it too, but comes before; no
/// owner contains it, as owners have no spaces.
const BEFORE_OWNERS: &str = " owners: ";

/// The owners named in `sentence`, in its order; none if it has another form.
pub(crate) fn owners(sentence: &str) -> Vec<String> {
    let Some(start) = sentence.rfind(BEFORE_OWNERS) else {
        return Vec::new();
    };
    let named = sentence.get(start + BEFORE_OWNERS.len()..).unwrap_or("");
    let words = named.split(' ').filter(|word| *word != "...");
    words.map(quoted).collect::<Option<_>>().unwrap_or_default()
}

/// The text of `'text'`.
fn quoted(word: &str) -> Option<String> {
    let escaped = word.strip_prefix('\'')?.strip_suffix('\'')?;
    let bytes = unescaped(escaped.as_bytes())?;
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Undoes `<[u8]>::escape_ascii`.
fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                b'x' => hex(rest.next()?)? << 4 | hex(rest.next()?)?,
                mark @ (b'\\' | b'\'' | b'"') => mark,
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_in_their_order() {
        let waiting = "waiting for key 'k' would close a cycle of owners: 'a' 'b:1' 'c'";
        assert_eq!(owners(waiting), ["a", "b:1", "c"]);
        let upgrading = "upgrading key 'k' would close a cycle of owners: 'me' 'other'";
        assert_eq!(owners(upgrading), ["me", "other"]);
    }

    #[test]
    fn a_key_cannot_pass_for_owners() {
        let text = r"waiting for key 'x owners: \'z\'' would close a cycle of owners: 'a' 'b'";
        assert_eq!(owners(text), ["a", "b"]);
    }

    #[test]
    fn escaped_owners_are_as_they_were_given() {
        for name in ["ümlaut", "it's", "back\\slash", "\"", "x\u{e9}:\u{1F512}"] {
            let escaped = name.as_bytes().escape_ascii();
            let text = format!("waiting for key 'k' would close a cycle of owners: '{escaped}'");
            assert_eq!(owners(&text), [name]);
        }
    }

    #[test]
    fn those_left_out_are_not_an_owner() {
        assert_eq!(owners("x cycle of owners: 'a' 'b' ..."), ["a", "b"]);
    }

    #[test]
    fn another_form_names_nobody() {
        for text in [
            "",
            "a cycle",
            "a cycle of owners: ",
            "a cycle of owners: a b",
            "a cycle of owners: 'a' b'",
            "a cycle of owners: '",
            "a cycle of owners: ''",
            r"a cycle of owners: '\'",
            r"a cycle of owners: '\x4'",
            r"a cycle of owners: '\q'",
        ] {
            assert!(owners(text).is_empty(), "{text}");
        }
    }
}
