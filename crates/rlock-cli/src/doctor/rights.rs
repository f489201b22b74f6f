//! What the user may do, and who else may.

use rlock_client::redis::aio::MultiplexedConnection;
use rlock_client::redis::{self, Cmd, RedisError, RedisResult, Value};

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
    connection: &mut MultiplexedConnection,
    is_cluster: bool,
) -> RedisResult<Option<Vec<&'static str>>> {
    let mut denied = Vec::new();
    let key = format!("rlock-doctor:{}", uuid::Uuid::new_v4());
    for (command, arguments) in LOCKING.into_iter().chain(OTHERS) {
        let mut cmd = redis::cmd(command);
        for argument in arguments {
            cmd.arg(if *argument == KEY { &*key } else { *argument });
        }
        let error = refusal(connection, &cmd).await?;
        if says(error.as_ref(), "unknown command") {
            return Ok(None);
        }
        // Rights to keys are another matter: nobody knows which are in use.
        if is_about_rights(error.as_ref()) && says(error.as_ref(), " to run ") {
            denied.push(command);
        }
    }
    denied.extend(no_subscription(connection, is_cluster).await?);
    Ok(Some(denied))
}

/// What is missing to be told something by the server.
async fn no_subscription(
    connection: &mut MultiplexedConnection,
    is_cluster: bool,
) -> RedisResult<Option<&'static str>> {
    let subscribe = if is_cluster {
        "SSUBSCRIBE"
    } else {
        "SUBSCRIBE"
    };
    let mut cmd = redis::cmd(subscribe);
    cmd.arg("rlock:client:{0}:doctor");
    let error = refusal(connection, &cmd).await?;
    if !is_about_rights(error.as_ref()) {
        return Ok(None);
    }
    let is_about_channels = says(error.as_ref(), "channel");
    Ok(Some(if is_about_channels {
        CHANNELS
    } else {
        subscribe
    }))
}

/// What the server says against it, if anything.
async fn refusal(
    connection: &mut MultiplexedConnection,
    cmd: &Cmd,
) -> RedisResult<Option<RedisError>> {
    let reply: RedisResult<Value> = cmd.query_async(connection).await;
    match reply {
        Err(error) if error.is_io_error() => Err(error),
        reply => Ok(reply.err()),
    }
}

fn says(error: Option<&RedisError>, words: &str) -> bool {
    let text = error.and_then(RedisError::detail);
    text.is_some_and(|text| text.contains(words))
}

fn is_about_rights(error: Option<&RedisError>) -> bool {
    error.and_then(RedisError::code) == Some("NOPERM")
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
