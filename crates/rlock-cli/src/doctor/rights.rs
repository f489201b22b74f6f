//! What the user may do, and who else may.

use rlock_client::probe::{Command, Frame, Master};
use rlock_client::{Error, ServerError};

use super::finding::{Finding, Severity};
use super::look::Facts;

const DOCS: &str = "docs/operating.md#access-rights";
/// Nobody locks by the Rust client, or by this command line, without these. With
/// arguments by which they change nothing: a lease or an option that is none, or
/// an owner who holds nothing.
const LOCKING: [(&str, &[&str]); 4] = [
    ("RLOCK.ACQUIRE", &[KEY, "doctor", "x"]),
    ("RLOCK.RENEW", &[KEY, "doctor", "x"]),
    ("RLOCK.RELEASE", &[KEY, "doctor", "x"]),
    ("RLOCK.CANCEL", &[KEY, "doctor"]),
];
/// Some need these.
const OTHERS: [(&str, &[&str]); 7] = [
    ("RLOCK.DOWNGRADE", &[KEY, "doctor"]),
    ("RLOCK.MACQUIRE", &["doctor", "x", "1", KEY]),
    ("RLOCK.MRENEW", &["doctor", "x", "1", KEY]),
    ("RLOCK.MRELEASE", &["doctor", "1", KEY, "x"]),
    ("RLOCK.INFO", &[KEY]),
    ("RLOCK.LIST", &["COUNT", "x"]),
    ("RLOCK.FORCE", &[KEY]),
];
/// Stands for the key.
const KEY: &str = "{key}";
const CHANNELS: &str = "channels rlock:client:*";

/// What the user may not use; none if the server does not know the commands.
///
/// Each command is sent in a form that changes nothing, about a key that nobody
/// has. Servers look at rights before they carry out a command, so also a user
/// without the right to `ACL DRYRUN` learns of its own.
pub(super) async fn denied(
    master: &Master,
    is_cluster: bool,
) -> Result<Option<Vec<&'static str>>, Error> {
    let mut denied = Vec::new();
    let key = format!("rlock-doctor:{}", uuid::Uuid::new_v4());
    for (name, arguments) in LOCKING.into_iter().chain(OTHERS) {
        let mut command = Command::new(name);
        for argument in arguments {
            command.arg(if *argument == KEY { &*key } else { *argument });
        }
        let Some(error) = refusal(master, &command).await? else {
            continue;
        };
        if error.message.contains("unknown command") {
            return Ok(None);
        }
        // Rights to keys are another matter: nobody knows which are in use.
        if is_about_rights(&error) && error.message.contains(" to run ") {
            denied.push(name);
        }
    }
    denied.extend(no_subscription(master, is_cluster).await?);
    Ok(Some(denied))
}

/// What is missing to be told something by the server.
async fn no_subscription(master: &Master, is_cluster: bool) -> Result<Option<&'static str>, Error> {
    let subscribe = if is_cluster {
        "SSUBSCRIBE"
    } else {
        "SUBSCRIBE"
    };
    let mut command = Command::new(subscribe);
    command.arg("rlock:client:{0}:doctor");
    let error = refusal(master, &command).await?;
    Ok(error
        .filter(is_about_rights)
        .map(|error| match error.message.contains("channel") {
            true => CHANNELS,
            false => subscribe,
        }))
}

/// What the server says against it, if anything.
async fn refusal(master: &Master, command: &Command) -> Result<Option<ServerError>, Error> {
    Ok(match master.ask(command).await? {
        Frame::Error(error) => Some(error),
        _ => None,
    })
}

fn is_about_rights(error: &ServerError) -> bool {
    error.code == "NOPERM"
}

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let checks = [own(facts), exposure(facts), unanswered(facts)];
    checks.into_iter().flatten().collect()
}

fn own(facts: &Facts) -> Option<Finding> {
    let denied = facts.denied.as_deref()?;
    let user = facts.user.as_deref().map(|user| format!("user {user}"));
    let user = user.unwrap_or_else(|| "this user".to_owned());
    let all = denied.join(", ");
    let is_other = |right: &&str| OTHERS.iter().any(|(other, _)| other == right);
    Some(if !denied.iter().all(is_other) {
        Finding::new(Severity::Warning, "rights", format!("{user} lacks {all}"))
            .effect("This user cannot lock with the Rust client or by `rlock exec`: it gets NOPERM. Other users may have these rights.")
            .remedy("Give a user that locks these rights by `ACL SETUSER`. A user that only looks on does not need them.")
            .docs(DOCS)
    } else if !denied.is_empty() {
        Finding::new(Severity::Note, "rights", format!("{user} lacks {all}"))
            .effect("What needs these commands gets NOPERM. All else of locking works.")
            .remedy("Give them to the user by `ACL SETUSER` if it needs them.")
            .docs(DOCS)
    } else {
        Finding::ok("rights", format!("{user} may use all commands")).docs(DOCS)
    })
}

/// Whether anybody may do anything from another machine.
fn exposure(facts: &Facts) -> Option<Finding> {
    let (protected, bind) = (facts.config("protected-mode")?, facts.config("bind")?);
    let has = |flag: &str| facts.default_user.iter().any(|it| it == flag);
    if facts.default_user.is_empty() {
        return None;
    }
    let password = if has("nopass") { "without" } else { "with" };
    let found =
        format!("user default {password} a password, protected-mode {protected}, bind {bind:?}");
    let is_local = |address: &str| {
        let address = address.trim_start_matches('-');
        address == "::1" || address == "localhost" || address.starts_with("127.")
    };
    let is_reachable = bind.is_empty() || !bind.split(' ').all(is_local);
    if !(is_reachable && protected == "no" && has("on") && has("nopass")) {
        return Some(Finding::ok("access", found).docs(DOCS));
    }
    let finding = Finding::new(Severity::Warning, "access", found)
        .effect("Everybody who can reach the server may end any hold, by RLOCK.FORCE or DEL, and change its settings.")
        .remedy("Give the user `default` a password or switch it off, set `protected-mode yes`, or bind to addresses that only clients can reach.")
        .docs(DOCS);
    Some(finding)
}

fn unanswered(facts: &Facts) -> Option<Finding> {
    if facts.unanswered.is_empty() {
        return None;
    }
    let questions = facts.unanswered.iter();
    let refused = questions
        .clone()
        .map(|(question, why)| format!("{question} ({why})"));
    let rights =
        questions.map(|(question, _)| format!("+{}", question.to_lowercase().replace(' ', "|")));
    let refused = refused.collect::<Vec<_>>().join(", ");
    let found = format!(
        "{refused}; the user needs {}",
        rights.collect::<Vec<_>>().join(" ")
    );
    let finding = Finding::new(Severity::Note, "not looked at", found)
        .effect("INFO tells of the module, versions, memory and replicas. CONFIG GET tells of persistence, start grace, min-replicas-to-write, connections and unlock messages. ACL GETUSER tells of access by the user default. What depends on the refused ones is left out here.")
        .remedy("Give the user these rights by `ACL SETUSER`, or look again as a user that has them.")
        .docs("docs/cli.md#access-rights");
    Some(finding)
}
