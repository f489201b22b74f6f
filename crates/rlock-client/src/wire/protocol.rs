//! The commands of the wire contract and their replies, as bytes and back.
//!
//! Knows their form only: not when they are sent, nor what follows from them.

use std::time::Duration;

use redis::{Cmd, Value};

use crate::Error;
use crate::engine::ask::Ask;
use crate::engine::claims::Claims;
use crate::engine::terms::{Terms, millis};
use crate::wire::fields::Fields;

/// How a request for a lock is told its outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Queueing {
    /// Not at all: now or never.
    Try,
    /// Waits in the server's queue, at most this long.
    AtMost(Duration),
    /// Waits in the server's queue without limit.
    Unlimited,
}

/// For how long the server keeps the place of a request whose connection ends.
///
/// It covers a connection that cannot be made within the default response
/// limit of 5 s, the pause after it, and one more attempt. Not longer, as the
/// places of a process that was killed count for `rlock.max-waiters` until
/// then.
const KEPT_MAX: Duration = Duration::from_secs(10);

/// `RLOCK.ACQUIRE` or `RLOCK.MACQUIRE`, with `NOTIFY` for the outcome of a wait
/// and for loss notices.
///
/// Never with `REENTER`: the entries of an owner are counted here, the server
/// sees one. So this changes nothing if it is sent again after a lost reply. A
/// wait always has `KEEP`, so that it goes on in its place after a lost
/// connection; nobody comes back for the place after the end of the wait.
pub(crate) fn acquire(
    claims: &Claims,
    ask: Ask,
    terms: &Terms,
    lease: Duration,
    queueing: Queueing,
    channel: Option<&str>,
) -> Cmd {
    let mut cmd = if claims.is_single() {
        let mut cmd = command("ACQUIRE", claims);
        cmd.arg(millis(lease));
        mode(&mut cmd, ask);
        cmd
    } else {
        several("MACQUIRE", claims, Some(lease))
    };
    match queueing {
        Queueing::Try => {}
        // On the wire a wait of 0 is one without limit.
        Queueing::AtMost(wait) => wait_and_keep(&mut cmd, millis(wait).max(1), wait),
        Queueing::Unlimited => wait_and_keep(&mut cmd, 0, KEPT_MAX),
    }
    if let Some(channel) = channel {
        cmd.arg("NOTIFY").arg(channel);
    }
    if let Some(grace) = terms.bound {
        cmd.arg("BIND").arg(millis(grace));
    }
    cmd
}

fn wait_and_keep(cmd: &mut Cmd, wait_ms: u64, kept: Duration) {
    cmd.arg("WAIT").arg(wait_ms);
    cmd.arg("KEEP").arg(millis(kept.min(KEPT_MAX)).max(1));
}

fn mode(cmd: &mut Cmd, ask: Ask) {
    match ask {
        Ask::Exclusive => {}
        Ask::Shared => drop(cmd.arg("SHARED")),
        Ask::Permits { limit, permits } => {
            cmd.arg("SHARED").arg("LIMIT").arg(limit);
            cmd.arg("PERMITS").arg(permits);
        }
    }
}

/// `RLOCK.RENEW`, answered with the fence; `RLOCK.MRENEW`, answered with the
/// number of keys that the owner holds.
pub(crate) fn renew(claims: &Claims, lease: Duration) -> Cmd {
    if claims.is_single() {
        let mut cmd = command("RENEW", claims);
        cmd.arg(millis(lease));
        cmd
    } else {
        several("MRENEW", claims, Some(lease))
    }
}

pub(crate) fn release(claims: &Claims) -> Cmd {
    let mut cmd = if claims.is_single() {
        command("RELEASE", claims)
    } else {
        several("MRELEASE", claims, None)
    };
    cmd.arg("ALL");
    cmd
}

/// `RLOCK.RELEASE` for each key by itself.
pub(crate) fn release_each(claims: &Claims) -> redis::Pipeline {
    let mut commands = redis::pipe();
    for key in claims.keys() {
        let mut cmd = redis::cmd("RLOCK.RELEASE");
        cmd.arg(key).arg(claims.owner().as_str()).arg("ALL");
        commands.add_command(cmd);
    }
    commands
}

/// `RLOCK.CANCEL` of the first key, which withdraws a request for several, or
/// ends the place that was kept for it; answered with how many there were.
pub(crate) fn cancel(claims: &Claims) -> Cmd {
    command("CANCEL", claims)
}

pub(crate) fn downgrade(claims: &Claims) -> Cmd {
    command("DOWNGRADE", claims)
}

pub(crate) fn force(key: &[u8]) -> Cmd {
    let mut cmd = redis::cmd("RLOCK.FORCE");
    cmd.arg(key);
    cmd
}

pub(crate) fn info(key: &[u8]) -> Cmd {
    let mut cmd = redis::cmd("RLOCK.INFO");
    cmd.arg(key);
    cmd
}

/// Asks the server what it is, and changes nothing.
pub(crate) fn hello() -> Cmd {
    redis::cmd("HELLO")
}

/// A command for the owner at the first key.
fn command(verb: &str, claims: &Claims) -> Cmd {
    let (key, owner) = (&claims.first().key, claims.owner().as_str());
    let mut cmd = Cmd::with_capacity(12, key.len() + owner.len() + 96);
    cmd.arg(["RLOCK.", verb].concat()).arg(&**key).arg(owner);
    cmd
}

/// A command for the owner at all keys.
fn several(verb: &str, claims: &Claims, lease: Option<Duration>) -> Cmd {
    let mut cmd = redis::cmd(&["RLOCK.", verb].concat());
    cmd.arg(claims.owner().as_str());
    if let Some(lease) = lease {
        cmd.arg(millis(lease));
    }
    cmd.arg(claims.count());
    for key in claims.keys() {
        cmd.arg(key);
    }
    cmd
}

/// The reply to `RLOCK.ACQUIRE`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted(u64),
    Queued,
    Refused,
}

pub(crate) fn acquired(reply: &Value) -> Result<Acquired, Error> {
    match reply {
        Value::Nil => Ok(Acquired::Refused),
        Value::SimpleString(status) if status == "WAITING" => Ok(Acquired::Queued),
        other => number(other).map(Acquired::Granted),
    }
}

/// The reply to [`hello`].
pub(crate) fn is_cluster(reply: &Value) -> Result<bool, Error> {
    Ok(Fields(reply).text("mode")? == "cluster")
}

/// A number, or nil as `None`.
pub(crate) fn number_or_nil(reply: &Value) -> Result<Option<u64>, Error> {
    match reply {
        Value::Nil => Ok(None),
        other => number(other).map(Some),
    }
}

/// The reply to [`renew`]: the fence, if everything is still held. For several
/// keys the server names no fence; then it is the one known before.
pub(crate) fn renewed(reply: &Value, claims: &Claims, known: u64) -> Result<Option<u64>, Error> {
    if claims.is_single() {
        return number_or_nil(reply);
    }
    let held = number(reply)?;
    Ok((usize::try_from(held) == Ok(claims.count())).then_some(known))
}

/// A number that is not negative.
pub(crate) fn number(reply: &Value) -> Result<u64, Error> {
    match reply {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
    .ok_or_else(|| Error::Protocol(format!("expected a number, got {reply:?}")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::owner::Owner;
    use crate::engine::wakeups::Wakeups;

    fn words(cmd: &Cmd) -> Vec<String> {
        let packed = String::from_utf8(cmd.get_packed_command()).unwrap();
        packed
            .split("\r\n")
            .skip(2)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    }

    fn claims(keys: &[&str]) -> Claims {
        let keys: Vec<Arc<[u8]>> = keys.iter().map(|key| key.as_bytes().into()).collect();
        let owner = Owner::new("o").unwrap();
        Arc::new(Wakeups::default()).claims(&keys[0], &keys[1..], &owner)
    }

    fn asked(keys: &[&str], ask: Ask, terms: &Terms, queueing: Queueing) -> String {
        let lease = Duration::from_millis(5);
        words(&acquire(
            &claims(keys),
            ask,
            terms,
            lease,
            queueing,
            Some("c"),
        ))
        .join(" ")
    }

    #[test]
    fn a_wait_below_a_millisecond_is_not_sent_as_without_limit() {
        for wait in [Duration::ZERO, Duration::from_nanos(1)] {
            let queueing = Queueing::AtMost(wait);
            let sent = asked(&["k"], Ask::Exclusive, &Terms::default(), queueing);
            assert_eq!(sent, "RLOCK.ACQUIRE k o 5 WAIT 1 KEEP 1 NOTIFY c");
        }
    }

    #[test]
    fn a_place_is_kept_for_ten_seconds_but_no_longer_than_the_wait() {
        for (ms, kept) in [(300, 300), (10_000, 10_000), (60_000, 10_000)] {
            let queueing = Queueing::AtMost(Duration::from_millis(ms));
            let sent = asked(&["k"], Ask::Exclusive, &Terms::default(), queueing);
            let expected = format!("RLOCK.ACQUIRE k o 5 WAIT {ms} KEEP {kept} NOTIFY c");
            assert_eq!(sent, expected);
        }
    }

    #[test]
    fn a_try_has_no_wait_but_asks_for_loss_notices() {
        let sent = asked(&["k"], Ask::Exclusive, &Terms::default(), Queueing::Try);
        assert_eq!(sent, "RLOCK.ACQUIRE k o 5 NOTIFY c");
    }

    #[test]
    fn mode_and_bond_are_sent_with_a_request_for_one_key() {
        let terms = Terms {
            bound: Some(Duration::ZERO),
            ..Terms::default()
        };
        let sent = asked(&["k"], Ask::Shared, &terms, Queueing::Unlimited);
        assert_eq!(
            sent,
            "RLOCK.ACQUIRE k o 5 SHARED WAIT 0 KEEP 10000 NOTIFY c BIND 0"
        );
        let (limit, permits) = (9, 2);
        let ask = Ask::Permits { limit, permits };
        let sent = asked(&["k"], ask, &Terms::default(), Queueing::Try);
        assert_eq!(
            sent,
            "RLOCK.ACQUIRE k o 5 SHARED LIMIT 9 PERMITS 2 NOTIFY c"
        );
    }

    #[test]
    fn several_keys_are_asked_for_renewed_and_released_together() {
        let (keys, lease) = (["a", "b"], Duration::from_millis(5));
        let sent = asked(&keys, Ask::Exclusive, &Terms::default(), Queueing::Try);
        assert_eq!(sent, "RLOCK.MACQUIRE o 5 2 a b NOTIFY c");
        let sent = asked(
            &keys,
            Ask::Exclusive,
            &Terms::default(),
            Queueing::Unlimited,
        );
        assert_eq!(sent, "RLOCK.MACQUIRE o 5 2 a b WAIT 0 KEEP 10000 NOTIFY c");
        let claims = claims(&keys);
        let sent = words(&renew(&claims, lease)).join(" ");
        assert_eq!(sent, "RLOCK.MRENEW o 5 2 a b");
        assert_eq!(
            words(&release(&claims)).join(" "),
            "RLOCK.MRELEASE o 2 a b ALL"
        );
        assert_eq!(words(&cancel(&claims)).join(" "), "RLOCK.CANCEL a o");
    }

    #[test]
    fn replies_to_acquire_are_told_apart() {
        assert_eq!(acquired(&Value::Int(3)).unwrap(), Acquired::Granted(3));
        assert_eq!(acquired(&Value::Nil).unwrap(), Acquired::Refused);
        let waiting = Value::SimpleString("WAITING".into());
        assert_eq!(acquired(&waiting).unwrap(), Acquired::Queued);
        assert!(acquired(&Value::Int(-1)).is_err());
        assert!(acquired(&Value::Okay).is_err());
    }
}
