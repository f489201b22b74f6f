//! Which ACL rule a server's user lacks when the server replies `NOPERM`.

/// The number of keys that a message names at most.
const KEYS_SHOWN: usize = 3;

/// What stands between the server's text and the rule.
const NEEDS: &str = "; the user's ACL needs ";

/// The server's own `text`, followed by the rule that the user lacks.
///
/// The text names a refused command, but no refused key: `keys` are the keys of
/// the request.
pub(crate) fn explained(text: &str, keys: &[&[u8]]) -> String {
    match missing(text, keys) {
        Some(rule) => {
            format!("{text}{NEEDS}{rule}: see docs/operating.md, section Access rights")
        }
        None => text.to_owned(),
    }
}

/// The server's own text in an error's, without the rule, which may name a key.
pub(crate) fn unexplained(text: &str) -> &str {
    text.split_once(NEEDS).map_or(text, |(text, _)| text)
}

/// The rule that the user lacks; none for a text of an unknown form.
fn missing(text: &str, keys: &[&[u8]]) -> Option<String> {
    // This text contains the user's name, which may be any word.
    if let Some((_, rest)) = text.split_once(" to run the '") {
        let (command, _) = rest.split_once('\'')?;
        return Some(format!("+{command}"));
    }
    // A channel's name may contain any word.
    if text.contains("channel") {
        let rule = "&rlock:client:*, and &rlock:value:* to observe elections";
        return Some(rule.to_owned());
    }
    text.contains("key").then(|| match keys {
        [] => "a pattern for the key, such as ~lock:*".to_owned(),
        [key] => match pattern(key) {
            Some(pattern) => format!("a pattern for the key {}, such as {pattern}", shown(key)),
            None => format!("a pattern for the key {}", shown(key)),
        },
        keys => {
            let named: Vec<_> = keys.iter().take(KEYS_SHOWN).map(|key| shown(key)).collect();
            let more = match keys.len().saturating_sub(KEYS_SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("a pattern for each of the keys {}{more}", named.join(", "))
        }
    })
}

fn shown(key: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(key))
}

/// A pattern for this key and keys with the same prefix; none if its bytes have
/// a special meaning in a rule.
fn pattern(key: &[u8]) -> Option<String> {
    let key = std::str::from_utf8(key).ok()?;
    let is_plain = |it: char| it.is_ascii_alphanumeric() || ":._-/{}".contains(it);
    if key.is_empty() || !key.chars().all(is_plain) {
        return None;
    }
    Some(match key.split_once(':') {
        Some((first, _)) if !first.is_empty() => format!("~{first}:*"),
        _ => format!("~{key}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "No permissions to access a key";

    fn rule(text: &str, keys: &[&str]) -> String {
        let keys: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
        missing(text, &keys).unwrap_or_default()
    }

    #[test]
    fn a_command_is_named_by_the_server() {
        for text in [
            "this user has no permissions to run the 'rlock.acquire' command",
            "User key-channel has no permissions to run the 'rlock.acquire' command",
        ] {
            assert_eq!(rule(text, &["k"]), "+rlock.acquire", "{text}");
        }
        let text = "this user has no permissions to run the 'client|kill' command";
        assert_eq!(rule(text, &[]), "+client|kill");
    }

    #[test]
    fn a_key_is_named_by_the_request() {
        let old = "this user has no permissions to access one of the keys used as arguments";
        for text in [old, KEY] {
            let expected = "a pattern for the key 'invoice:7', such as ~invoice:*";
            assert_eq!(rule(text, &["invoice:7"]), expected);
        }
        assert_eq!(rule(KEY, &["k"]), "a pattern for the key 'k', such as ~k");
        assert_eq!(
            rule(KEY, &[":k"]),
            "a pattern for the key ':k', such as ~:k"
        );
        assert_eq!(rule(KEY, &["a b"]), "a pattern for the key 'a b'");
        assert_eq!(rule(KEY, &["a*:b"]), "a pattern for the key 'a*:b'");
        assert_eq!(rule(KEY, &[]), "a pattern for the key, such as ~lock:*");
    }

    #[test]
    fn the_first_of_several_keys_are_named() {
        let expected = "a pattern for each of the keys 'a', 'b'";
        assert_eq!(rule(KEY, &["a", "b"]), expected);
        let expected = "a pattern for each of the keys 'a', 'b', 'c' and 2 more";
        assert_eq!(rule(KEY, &["a", "b", "c", "d", "e"]), expected);
    }

    #[test]
    fn a_channel_has_two_patterns() {
        for text in [
            "No permissions to access a channel",
            "the user has no permission for the channel 'key'",
        ] {
            assert!(rule(text, &["k"]).starts_with("&rlock:client:*"), "{text}");
        }
    }

    #[test]
    fn the_servers_own_text_comes_first() {
        assert_eq!(explained("no", &[b"k"]), "no");
        let explained = explained(KEY, &[b"k"]);
        assert!(explained.starts_with("No permissions to access a key; "));
        assert!(explained.contains("docs/operating.md"), "{explained}");
    }
}
