//! The commands and messages of the wire contract, as bytes and back.
//!
//! Knows their form only: not when they are sent, nor what follows from them.

use std::time::Duration;

use redis::{Cmd, Value};

use crate::Error;
use crate::terms::millis;

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

/// `RLOCK.ACQUIRE`, always with `ONCE`, so that asking again after a lost
/// reply changes nothing, and always with `NOTIFY`, for loss notices.
pub(crate) fn acquire(
    key: &[u8],
    owner: &str,
    lease: Duration,
    queueing: Queueing,
    channel: &str,
) -> Cmd {
    let mut cmd = command("RLOCK.ACQUIRE", key, owner);
    cmd.arg(millis(lease)).arg("ONCE");
    match queueing {
        Queueing::Try => {}
        // On the wire a wait of 0 is one without limit.
        Queueing::AtMost(wait) => drop(cmd.arg("WAIT").arg(millis(wait).max(1))),
        Queueing::Unlimited => drop(cmd.arg("WAIT").arg(0)),
    }
    cmd.arg("NOTIFY").arg(channel);
    cmd
}

pub(crate) fn renew(key: &[u8], owner: &str, lease: Duration) -> Cmd {
    let mut cmd = command("RLOCK.RENEW", key, owner);
    cmd.arg(millis(lease));
    cmd
}

pub(crate) fn release(key: &[u8], owner: &str) -> Cmd {
    let mut cmd = command("RLOCK.RELEASE", key, owner);
    cmd.arg("ALL");
    cmd
}

pub(crate) fn cancel(key: &[u8], owner: &str) -> Cmd {
    command("RLOCK.CANCEL", key, owner)
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

fn command(name: &str, key: &[u8], owner: &str) -> Cmd {
    let mut cmd = Cmd::with_capacity(8, name.len() + key.len() + owner.len() + 64);
    cmd.arg(name).arg(key).arg(owner);
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

/// A number, or nil as `None`.
pub(crate) fn number_or_nil(reply: &Value) -> Result<Option<u64>, Error> {
    match reply {
        Value::Nil => Ok(None),
        other => number(other).map(Some),
    }
}

/// A number that is not negative.
pub(crate) fn number(reply: &Value) -> Result<u64, Error> {
    match reply {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
    .ok_or_else(|| Error::Protocol(format!("expected a number, got {reply:?}")))
}

/// What happened to a queued request, or to a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Grant,
    WaitEnded,
    Withdrawn,
    Lost,
}

/// One message on this client's channel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Notice<'a> {
    pub(crate) event: Event,
    pub(crate) fence: u64,
    /// `<owner> <key>`: no owner has a space, so this names both.
    pub(crate) name: &'a [u8],
}

/// Reads `<event> <fence> <owner> <key>`; `None` for anything else.
pub(crate) fn notice(message: &[u8]) -> Option<Notice<'_>> {
    let (word, rest) = split_word(message)?;
    let (fence, name) = split_word(rest)?;
    let event = match word {
        b"grant" => Event::Grant,
        b"timeout" => Event::WaitEnded,
        b"withdrawn" => Event::Withdrawn,
        b"lost" => Event::Lost,
        _ => return None,
    };
    let fence = std::str::from_utf8(fence).ok()?.parse().ok()?;
    Some(Notice { event, fence, name })
}

/// The name under which notices speak of `owner` at `key`.
pub(crate) fn notice_name(owner: &str, key: &[u8]) -> Vec<u8> {
    [owner.as_bytes(), b" ", key].concat()
}

fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    Some((text.get(..end)?, text.get(end + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(cmd: &Cmd) -> Vec<String> {
        let packed = String::from_utf8(cmd.get_packed_command()).unwrap();
        packed
            .split("\r\n")
            .skip(2)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn a_wait_below_a_millisecond_is_not_sent_as_without_limit() {
        let queueing = Queueing::AtMost(Duration::from_nanos(1));
        let cmd = acquire(b"k", "o", Duration::from_millis(5), queueing, "c");
        let expected = [
            "RLOCK.ACQUIRE",
            "k",
            "o",
            "5",
            "ONCE",
            "WAIT",
            "1",
            "NOTIFY",
            "c",
        ];
        assert_eq!(words(&cmd), expected);
    }

    #[test]
    fn a_try_has_no_wait_but_asks_for_loss_notices() {
        let cmd = acquire(b"k", "o", Duration::from_millis(5), Queueing::Try, "c");
        assert_eq!(
            words(&cmd),
            ["RLOCK.ACQUIRE", "k", "o", "5", "ONCE", "NOTIFY", "c"]
        );
    }

    #[test]
    fn a_key_in_a_notice_may_have_spaces_and_any_bytes() {
        let read = notice(b"grant 17 u:1 a key\xff ").unwrap();
        assert_eq!((read.event, read.fence), (Event::Grant, 17));
        assert_eq!(read.name, notice_name("u:1", b"a key\xff "));
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
            assert_eq!(notice(message), None);
        }
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
