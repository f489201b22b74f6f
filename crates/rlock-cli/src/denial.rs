//! What a user may not do: what the server refused, and the rule that allows it.

use std::borrow::Cow;

use rlock_client::Servers;

use crate::address::Place;

/// Where the documents have the rules of users.
const RULES: &str = "docs/operating.md, `Access rights`";
/// The channels that every command needs.
pub(crate) const CLIENT_CHANNELS: &str = "rlock:client:*";
/// The channels that `observe` needs.
pub(crate) const VALUE_CHANNELS: &str = "rlock:value:*";

/// What the server refused.
#[derive(Debug, PartialEq, Eq)]
enum Refused<'a> {
    Command(&'a str),
    Key,
    Channel,
}

impl<'a> Refused<'a> {
    /// Reads the text of a `NOPERM` error, which differs between servers.
    fn read(sentence: &'a str) -> Option<Self> {
        if let Some((_, rest)) = sentence.split_once(" to run the '") {
            return rest.split('\'').next().map(Self::Command);
        }
        if sentence.contains("channel") {
            return Some(Self::Channel);
        }
        sentence.contains(" key").then_some(Self::Key)
    }
}

/// A refusal for lack of a right: the message and the hint. `None` if the
/// server does not say what it refused.
///
/// Servers do not name the key or the channel, so `key` is the one that the
/// command is about, and `channels` are those that it uses at this point.
pub(crate) fn explain(
    sentence: &str,
    user: &str,
    key: Option<&str>,
    channels: &str,
) -> Option<(String, String)> {
    let (what, rule): (Cow<'_, str>, _) = match Refused::read(sentence)? {
        Refused::Command(name) => (format!("run {name}").into(), format!("+{name}")),
        Refused::Channel => (
            format!("use the channel {channels}").into(),
            format!("&{channels}"),
        ),
        Refused::Key => match key {
            Some(key) => (format!("use the key {key}").into(), format!("~{key}")),
            None => ("use a key".into(), "~*".to_owned()),
        },
    };
    let message = format!("user {user} is not permitted to {what}");
    let setuser = format!("`ACL SETUSER {user} {rule}` allows it");
    let hint = match rule.starts_with('~') {
        true => format!(
            "{setuser}; the rule for a program in {RULES}, allows all keys that begin with lock:"
        ),
        false => format!("{setuser}; {RULES}, has a rule for each purpose"),
    };
    Some((message, hint))
}

/// The user that logs in, as the server calls it.
pub(crate) fn user(place: &Place) -> &str {
    let servers = match place {
        Place::Servers(servers) => Some(servers),
        Place::Quorum(members) => members.first(),
    };
    let login = servers.map(|servers| match servers {
        Servers::One { login, .. }
        | Servers::Sentinels { login, .. }
        | Servers::Cluster { login, .. } => login,
    });
    let named = login.filter(|login| login.password.is_some());
    named
        .and_then(|login| login.user.as_deref())
        .unwrap_or("default")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_every_server_are_understood() {
        for (sentence, refused) in [
            (
                "this user has no permissions to run the 'config|get' command",
                Some(Refused::Command("config|get")),
            ),
            (
                "User ann has no permissions to run the 'rlock.list' command",
                Some(Refused::Command("rlock.list")),
            ),
            (
                "this user has no permissions to access one of the keys used as arguments",
                Some(Refused::Key),
            ),
            ("No permissions to access a key", Some(Refused::Key)),
            (
                "this user has no permissions to access one of the channels used as arguments",
                Some(Refused::Channel),
            ),
            ("No permissions to access a channel", Some(Refused::Channel)),
            (
                "the user has no permission for the channel 'rlock:client:1'",
                Some(Refused::Channel),
            ),
            ("no", None),
        ] {
            assert_eq!(Refused::read(sentence), refused, "{sentence}");
        }
    }
}
