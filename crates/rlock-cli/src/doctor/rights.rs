//! The user's rights to the lock commands.

use rlock_client::Error;

use super::questions::{Questions, Refusal};

/// Every program that locks with the Rust client, or with this command line,
/// needs these. Their arguments change nothing: an invalid lease or option, or
/// an owner that holds nothing.
const LOCKING: [(&str, &[&str]); 4] = [
    ("RLOCK.ACQUIRE", &[KEY, "doctor", "x"]),
    ("RLOCK.RENEW", &[KEY, "doctor", "x"]),
    ("RLOCK.RELEASE", &[KEY, "doctor", "x"]),
    ("RLOCK.CANCEL", &[KEY, "doctor"]),
];
/// Some programs need these.
const OTHERS: [(&str, &[&str]); 7] = [
    ("RLOCK.DOWNGRADE", &[KEY, "doctor"]),
    ("RLOCK.MACQUIRE", &["doctor", "x", "1", KEY]),
    ("RLOCK.MRENEW", &["doctor", "x", "1", KEY]),
    ("RLOCK.MRELEASE", &["doctor", "1", KEY, "x"]),
    ("RLOCK.INFO", &[KEY]),
    ("RLOCK.LIST", &["COUNT", "x"]),
    ("RLOCK.FORCE", &[KEY]),
];
/// Stands for a key that nobody uses.
const KEY: &str = "{key}";
/// The missing right to channels.
const CHANNELS: &str = "channels rlock:client:*";

/// What the user may not use.
pub(super) struct Rights {
    /// Commands and channels.
    pub(super) denied: Vec<&'static str>,
    /// Whether all commands were checked, or only those that every program
    /// needs, up to the first that was refused.
    pub(super) is_complete: bool,
}

impl Rights {
    /// Whether the user has the rights that every program needs that locks.
    pub(super) fn can_lock(&self) -> bool {
        let is_other = |right: &&str| OTHERS.iter().any(|(other, _)| other == right);
        self.denied.iter().all(is_other)
    }
}

/// The user's rights; none if the server does not have the commands.
pub(super) async fn rights(
    questions: &Questions<'_>,
    is_cluster: bool,
) -> Result<Option<Rights>, Error> {
    let is_complete = questions.is_silent();
    let others = OTHERS.into_iter().filter(|_| is_complete);
    let key = format!("rlock-doctor:{}", uuid::Uuid::new_v4());
    let mut denied = Vec::new();
    for (name, arguments) in LOCKING.into_iter().chain(others) {
        let arguments = arguments
            .iter()
            .map(|it| if *it == KEY { &key } else { *it });
        let words: Vec<_> = [name].into_iter().chain(arguments).collect();
        match questions.refusal(&words).await? {
            Some(Refusal::Unknown) => return Ok(None),
            // A refused key says nothing: the keys in use are unknown.
            Some(Refusal::Denied(why)) if why.contains(" to run ") => denied.push(name),
            _ => {}
        }
        if !is_complete && !denied.is_empty() {
            break;
        }
    }
    if is_complete || denied.is_empty() {
        denied.extend(no_subscription(questions, is_cluster).await?);
    }
    Ok(Some(Rights {
        denied,
        is_complete,
    }))
}

/// The missing right to receive messages from the server.
async fn no_subscription(
    questions: &Questions<'_>,
    is_cluster: bool,
) -> Result<Option<&'static str>, Error> {
    let subscribe = match is_cluster {
        true => "SSUBSCRIBE",
        false => "SUBSCRIBE",
    };
    let words = [subscribe, "rlock:client:{0}:doctor"];
    Ok(match questions.refusal(&words).await? {
        Some(Refusal::Denied(why)) if why.contains("channel") => Some(CHANNELS),
        Some(Refusal::Denied(_)) => Some(subscribe),
        _ => None,
    })
}
