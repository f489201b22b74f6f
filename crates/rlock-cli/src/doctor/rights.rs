//! What the user may do, and who else may.

use rlock_client::redis::aio::MultiplexedConnection;
use rlock_client::redis::{self, Cmd, RedisResult, Value};

use super::finding::{Finding, Severity};
use super::look::Facts;

const DOCS: &str = "docs/operating.md#access-rights";
/// Without these nobody locks by the Rust client, or by this command line.
const LOCKING: [&str; 6] = [
    "RLOCK.ACQUIRE",
    "RLOCK.RENEW",
    "RLOCK.RELEASE",
    "RLOCK.CANCEL",
    SUBSCRIBE,
    CHANNELS,
];
/// Some need these.
const OTHERS: [&str; 7] = [
    "RLOCK.DOWNGRADE",
    "RLOCK.MACQUIRE",
    "RLOCK.MRENEW",
    "RLOCK.MRELEASE",
    "RLOCK.INFO",
    "RLOCK.LIST",
    "RLOCK.FORCE",
];
const SUBSCRIBE: &str = "SUBSCRIBE (in a cluster SSUBSCRIBE)";
const CHANNELS: &str = "channels rlock:client:*";

/// What the user may not use.
///
/// Each command is sent in a form that changes nothing: any user may ask that,
/// also one without the right to `ACL DRYRUN`. Rights are looked at before
/// everything else in a command.
pub(super) async fn denied(
    connection: &mut MultiplexedConnection,
    is_cluster: bool,
) -> RedisResult<Vec<&'static str>> {
    let mut denied = Vec::new();
    let commands = LOCKING.into_iter().chain(OTHERS);
    for command in commands.filter(|it| it.starts_with("RLOCK.")) {
        if refusal(connection, &redis::cmd(command)).await?.is_some() {
            denied.push(command);
        }
    }
    let mut subscribe = redis::cmd(if is_cluster {
        "SSUBSCRIBE"
    } else {
        "SUBSCRIBE"
    });
    subscribe.arg("rlock:client:{0}:doctor");
    match refusal(connection, &subscribe).await? {
        Some(refusal) if refusal.contains("channel") => denied.push(CHANNELS),
        Some(_) => denied.push(SUBSCRIBE),
        None => {}
    }
    Ok(denied)
}

/// Why the user may not; none for all other replies, also for other errors.
async fn refusal(connection: &mut MultiplexedConnection, cmd: &Cmd) -> RedisResult<Option<String>> {
    let reply: RedisResult<Value> = cmd.query_async(connection).await;
    match reply {
        Err(error) if error.is_io_error() => Err(error),
        Err(error) if error.code() == Some("NOPERM") => {
            Ok(Some(error.detail().unwrap_or_default().to_owned()))
        }
        _ => Ok(None),
    }
}

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let checks = [own(facts), exposure(facts), unanswered(facts)];
    checks.into_iter().flatten().collect()
}

fn own(facts: &Facts) -> Option<Finding> {
    if !facts.has_module() {
        return None;
    }
    let user = facts.user.as_deref().map(|user| format!("user {user}"));
    let user = user.unwrap_or_else(|| "this user".to_owned());
    let lacks = |wanted: &[&str]| {
        let lacking = facts
            .denied
            .iter()
            .copied()
            .filter(|it| wanted.contains(it));
        lacking.collect::<Vec<_>>().join(", ")
    };
    let (locking, others) = (lacks(&LOCKING), lacks(&OTHERS));
    Some(if !locking.is_empty() {
        let all = facts.denied.join(", ");
        Finding::new(Severity::Warning, "rights", format!("{user} lacks {all}"))
            .effect("This user cannot lock with the Rust client or by `rlock exec`: it gets NOPERM. Other users may have these rights.")
            .remedy("Give a user that locks these rights by `ACL SETUSER`. A user that only looks on does not need them.")
            .docs(DOCS)
    } else if !others.is_empty() {
        Finding::new(Severity::Note, "rights", format!("{user} lacks {others}"))
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
    let questions = facts.unanswered.iter();
    let questions = questions.map(|(question, why)| format!("{question} ({why})"));
    let questions: Vec<_> = questions.collect();
    if questions.is_empty() {
        return None;
    }
    let found = format!("refused: {}", questions.join("; "));
    let finding = Finding::new(Severity::Note, "not looked at", found)
        .effect("INFO tells of the module, versions, memory and replicas. CONFIG GET tells of persistence, start grace, min-replicas-to-write, connections and unlock messages. ACL GETUSER tells of access by the user default. What depends on the refused ones is left out here.")
        .remedy("Give the user `+info +config|get +time +acl|whoami +acl|getuser`, in a cluster `+cluster|info` too.")
        .docs("docs/cli.md#access-rights");
    Some(finding)
}
