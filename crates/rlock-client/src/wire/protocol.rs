//! The commands of the wire contract as bytes.
//!
//! Knows their form only: not when they are sent, nor what follows from them.

use std::time::Duration;

use redis::{Cmd, Pipeline};
use rlock_engine::engine::ask::{Ask, Queueing};
use rlock_engine::engine::claims::Claims;
use rlock_engine::engine::request::{Request, Undo};
use rlock_engine::engine::terms::millis;

/// For how long the server keeps the place of a request whose connection ends.
///
/// It covers a connection that cannot be made within the default response
/// limit of 5 s, the pause after it, and one more attempt. Not longer, as the
/// places of a process that was killed count for `rlock.max-waiters` until
/// then.
const KEPT_MAX: Duration = Duration::from_secs(10);

/// Where a server tells a client something.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) name: String,
    /// In a cluster, where other messages go to every server.
    pub(crate) is_sharded: bool,
}

/// A request as bytes.
pub(crate) enum Encoded {
    One(Cmd),
    Several(Pipeline),
}

pub(crate) fn encode(request: &Request, channel: &Channel) -> Encoded {
    Encoded::One(match request {
        Request::Acquire {
            claims,
            ask,
            lease,
            bound,
            queueing,
            notify,
        } => {
            let mut cmd = acquire(claims, *ask, *lease, *queueing);
            if *notify {
                let word = if channel.is_sharded {
                    "SNOTIFY"
                } else {
                    "NOTIFY"
                };
                cmd.arg(word).arg(&channel.name);
            }
            if let Some(grace) = bound {
                cmd.arg("BIND").arg(millis(*grace));
            }
            cmd
        }
        Request::Renew {
            claims,
            lease,
            raise,
            ..
        } => renew(claims, *lease, *raise),
        Request::Release { claims, fence } => release(claims, *fence),
        Request::ReleaseEach { claims, fence } => {
            return Encoded::Several(release_each(claims, *fence));
        }
        Request::Downgrade { claims } => command("DOWNGRADE", claims),
        Request::Cancel { claims } => command("CANCEL", claims),
        Request::CleanUp { claims, undo } => return Encoded::Several(clean_up(claims, *undo)),
        Request::Ping => redis::cmd("PING"),
    })
}

/// `RLOCK.ACQUIRE` or `RLOCK.MACQUIRE`.
///
/// Never with `REENTER`: the entries of an owner are counted here, the server
/// sees one. So this changes nothing if it is sent again after a lost reply. A
/// wait always has `KEEP`, so that it goes on in its place after a lost
/// connection; nobody comes back for the place after the end of the wait.
fn acquire(claims: &Claims, ask: Ask, lease: Duration, queueing: Queueing) -> Cmd {
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
fn renew(claims: &Claims, lease: Duration, raise: Option<u64>) -> Cmd {
    if claims.is_single() {
        let mut cmd = command("RENEW", claims);
        cmd.arg(millis(lease));
        under(&mut cmd, raise);
        cmd
    } else {
        several("MRENEW", claims, Some(lease))
    }
}

/// A renewal of which the second command changes the end of the lease, if the
/// first does not: what changes nothing is not written, and replicas are not
/// told of it. None for other requests.
pub(crate) fn renew_in_writing(request: &Request) -> Vec<Cmd> {
    let Request::Renew {
        claims,
        lease,
        raise,
        ..
    } = request
    else {
        return Vec::new();
    };
    let ms = Duration::from_millis(1);
    let (less, more) = match *lease > ms {
        true => (*lease - ms, *lease),
        false => (*lease, *lease + ms),
    };
    [less, more]
        .map(|lease| renew(claims, lease, *raise))
        .into()
}

/// All entries, as they are counted here; only under that fence, if there is one.
fn release(claims: &Claims, fence: Option<u64>) -> Cmd {
    let mut cmd = if claims.is_single() {
        command("RELEASE", claims)
    } else {
        several("MRELEASE", claims, None)
    };
    cmd.arg("ALL");
    under(&mut cmd, fence);
    cmd
}

fn under(cmd: &mut Cmd, fence: Option<u64>) {
    if let Some(fence) = fence {
        cmd.arg("FENCE").arg(fence);
    }
}

/// `RLOCK.RELEASE` for each key by itself.
fn release_each(claims: &Claims, fence: Option<u64>) -> Pipeline {
    let mut commands = redis::pipe();
    for key in claims.keys() {
        let mut cmd = redis::cmd("RLOCK.RELEASE");
        cmd.arg(key).arg(claims.owner().as_str()).arg("ALL");
        under(&mut cmd, fence);
        commands.add_command(cmd);
    }
    commands
}

/// `RLOCK.CANCEL` of the first key, which withdraws a request for several, or
/// ends the place that was kept for it; then what undoes a grant.
fn clean_up(claims: &Claims, undo: Undo) -> Pipeline {
    let mut commands = redis::pipe();
    commands.add_command(command("CANCEL", claims));
    match undo {
        Undo::Nothing => {}
        Undo::Release => drop(commands.add_command(release(claims, None))),
        Undo::Downgrade => drop(commands.add_command(command("DOWNGRADE", claims))),
    }
    commands
}

pub(crate) fn force(key: &[u8]) -> Cmd {
    let mut cmd = redis::cmd("RLOCK.FORCE");
    cmd.arg(key);
    cmd
}

/// With the queue of the lock.
pub(crate) fn force_queue(key: &[u8]) -> Cmd {
    let mut cmd = force(key);
    cmd.arg("QUEUE");
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
    let (key, owner) = (claims.key(), claims.owner().as_str());
    let mut cmd = Cmd::with_capacity(12, key.len() + owner.len() + 96);
    cmd.arg(["RLOCK.", verb].concat()).arg(key).arg(owner);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use rlock_engine::engine::owner::Owner;

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
        let rest: Vec<Arc<[u8]>> = keys[1..].iter().map(|key| key.as_bytes().into()).collect();
        Claims::new(Owner::new("o").unwrap(), keys[0].as_bytes(), &rest)
    }

    fn sent(request: &Request) -> String {
        let channel = Channel {
            name: "c".into(),
            is_sharded: false,
        };
        match encode(request, &channel) {
            Encoded::One(cmd) => words(&cmd).join(" "),
            Encoded::Several(cmds) => {
                let cmds: Vec<_> = cmds.cmd_iter().map(|cmd| words(cmd).join(" ")).collect();
                cmds.join("; ")
            }
        }
    }

    fn asked(keys: &[&str], ask: Ask, bound: Option<Duration>, queueing: Queueing) -> String {
        sent(&Request::Acquire {
            claims: claims(keys),
            ask,
            lease: Duration::from_millis(5),
            bound,
            queueing,
            notify: true,
        })
    }

    #[test]
    fn a_wait_below_a_millisecond_is_not_sent_as_without_limit() {
        for wait in [Duration::ZERO, Duration::from_nanos(1)] {
            let queueing = Queueing::AtMost(wait);
            let sent = asked(&["k"], Ask::Exclusive, None, queueing);
            assert_eq!(sent, "RLOCK.ACQUIRE k o 5 WAIT 1 KEEP 1 NOTIFY c");
        }
    }

    #[test]
    fn a_place_is_kept_for_ten_seconds_but_no_longer_than_the_wait() {
        for (ms, kept) in [(300, 300), (10_000, 10_000), (60_000, 10_000)] {
            let queueing = Queueing::AtMost(Duration::from_millis(ms));
            let sent = asked(&["k"], Ask::Exclusive, None, queueing);
            let expected = format!("RLOCK.ACQUIRE k o 5 WAIT {ms} KEEP {kept} NOTIFY c");
            assert_eq!(sent, expected);
        }
    }

    #[test]
    fn a_try_has_no_wait_but_asks_for_loss_notices() {
        let sent = asked(&["k"], Ask::Exclusive, None, Queueing::Try);
        assert_eq!(sent, "RLOCK.ACQUIRE k o 5 NOTIFY c");
    }

    #[test]
    fn mode_and_bond_are_sent_with_a_request_for_one_key() {
        let bound = Some(Duration::ZERO);
        let sent = asked(&["k"], Ask::Shared, bound, Queueing::Unlimited);
        assert_eq!(
            sent,
            "RLOCK.ACQUIRE k o 5 SHARED WAIT 0 KEEP 10000 NOTIFY c BIND 0"
        );
        let (limit, permits) = (9, 2);
        let ask = Ask::Permits { limit, permits };
        let sent = asked(&["k"], ask, None, Queueing::Try);
        assert_eq!(
            sent,
            "RLOCK.ACQUIRE k o 5 SHARED LIMIT 9 PERMITS 2 NOTIFY c"
        );
    }

    #[test]
    fn several_keys_are_asked_for_renewed_and_released_together() {
        let (keys, lease) = (["a", "b"], Duration::from_millis(5));
        let sent = asked(&keys, Ask::Exclusive, None, Queueing::Try);
        assert_eq!(sent, "RLOCK.MACQUIRE o 5 2 a b NOTIFY c");
        let sent = asked(&keys, Ask::Exclusive, None, Queueing::Unlimited);
        assert_eq!(sent, "RLOCK.MACQUIRE o 5 2 a b WAIT 0 KEEP 10000 NOTIFY c");
        let (claims, known) = (claims(&keys), 7);
        let of = |request: &Request| super::tests::sent(request);
        let renew = Request::Renew {
            claims: claims.clone(),
            lease,
            known,
            raise: None,
            replicas: 0,
        };
        assert_eq!(of(&renew), "RLOCK.MRENEW o 5 2 a b");
        let (all, fence) = (claims.clone(), Some(known));
        let release = Request::Release { claims: all, fence };
        assert_eq!(of(&release), "RLOCK.MRELEASE o 2 a b ALL FENCE 7");
        let undo = Undo::Release;
        let clean_up = Request::CleanUp { claims, undo };
        assert_eq!(
            of(&clean_up),
            "RLOCK.CANCEL a o; RLOCK.MRELEASE o 2 a b ALL"
        );
    }
}
