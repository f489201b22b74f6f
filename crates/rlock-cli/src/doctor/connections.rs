//! What ends connections, and what refuses them.

use super::finding::{Finding, Severity};
use super::look::Facts;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let checks = [idle(facts), keepalive(facts), limit(facts), places(facts)];
    checks.into_iter().flatten().collect()
}

fn idle(facts: &Facts) -> Option<Finding> {
    let timeout = facts.setting("timeout")?;
    let (found, docs) = (format!("timeout {timeout}"), "docs/bound.md#what-is-not");
    if timeout == 0 {
        return Some(Finding::ok("idle connections", found).docs(docs));
    }
    let finding = Finding::new(Severity::Warning, "idle connections", found)
        .effect("A connection that sends nothing for so many seconds is closed, unless it is blocked or has subscriptions. Holds with BIND and requests with NOTIFY that were sent by it end with it. The Rust client has a subscription, so its connection stays.")
        .remedy("Set `timeout 0`, or use BIND and NOTIFY on connections that subscribe or are used more often.")
        .docs("docs/bound.md#what-is-not");
    Some(finding)
}

fn keepalive(facts: &Facts) -> Option<Finding> {
    let seconds = facts.setting("tcp-keepalive")?;
    let (found, docs) = (
        format!("tcp-keepalive {seconds}"),
        "docs/bound.md#what-is-not",
    );
    if seconds > 0 {
        return Some(Finding::ok("keep-alive", found).docs(docs));
    }
    let finding = Finding::new(Severity::Warning, "keep-alive", found)
        .effect("The server never notices that a client's machine has vanished. A waiter there may be granted the lock, which then stands still for a lease. A hold with BIND ends with its lease only.")
        .remedy("Set `tcp-keepalive 60`, or leave it at its default of 300.")
        .docs("docs/bound.md#what-is-not");
    Some(finding)
}

/// Each blocked waiter has a connection of its own.
fn limit(facts: &Facts) -> Option<Finding> {
    let (most, waiters) = (
        facts.setting("maxclients")?,
        facts.setting("rlock.max-waiters")?,
    );
    let found = format!("maxclients {most}, rlock.max-waiters {waiters}");
    let docs = "docs/fair-queue.md#two-ways-to-wait";
    if most > waiters {
        return Some(Finding::ok("connections", found).docs(docs));
    }
    let finding = Finding::new(Severity::Note, "connections", found)
        .effect("Each blocked waiter has a connection. So a crowd of them uses up the connections before the queue is full, and holders that have to reconnect are refused.")
        .remedy("Set `maxclients` above `rlock.max-waiters`, or lower the latter, or wait by NOTIFY, where all waits of a client share a connection.")
        .docs("docs/fair-queue.md#two-ways-to-wait");
    Some(finding)
}

/// Only if they are nearly used up.
fn places(facts: &Facts) -> Option<Finding> {
    let (used, most) = (
        facts.number("connected_clients")?,
        facts.setting("maxclients")?,
    );
    if used < most / 10 * 8 {
        return None;
    }
    let found = format!("{used} of {most} connections are in use");
    let finding = Finding::new(Severity::Warning, "free connections", found)
        .effect("When all are in use, a holder whose connection was lost cannot come back to renew, and loses its lock.")
        .remedy("Raise `maxclients` and the limit of open files, or use fewer connections.")
        .docs("docs/fair-queue.md#two-ways-to-wait");
    Some(finding)
}
