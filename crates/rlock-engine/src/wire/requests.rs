//! The commands of the wire contract as bytes.
//!
//! This module knows their form, not when they are sent or what follows.

use std::time::Duration;

use crate::engine::claims::Claims;
use crate::engine::request::{Request, Undo};
use crate::engine::terms::{Ask, Queueing, Terms, Value, millis};
use crate::error::Error;
use crate::wire::resp::Command;

/// How long the server keeps the place of a request whose connection ends.
///
/// This covers a connection attempt that takes the default response limit of 5
/// s, the pause after it, and one more attempt. It is not longer, because
/// during this time the places of a killed process count for
/// `rlock.max-waiters`.
const KEPT_MAX: Duration = Duration::from_secs(10);

/// The prefix of the channels of values.
pub const VALUE_CHANNEL: &[u8] = b"rlock:value:";

/// The largest fence of any lock.
const FENCE_MAX: u64 = (1 << 53) - 1;

/// The largest number of locks in one question.
const COUNT_MAX: u64 = 1000;

/// A channel for messages to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its name.
    pub name: String,
    /// Whether it is sharded: for a cluster, where normal messages go to every
    /// server.
    pub is_sharded: bool,
}

impl Channel {
    fn notify(&self, command: &mut Command) {
        command.arg(match self.is_sharded {
            true => "SNOTIFY",
            false => "NOTIFY",
        });
        command.arg(&self.name);
    }
}

/// Appends `request` to the output, and leaves its last command in `command`, whose
/// memory it reuses; returns the number of replies that will come.
pub fn encode(
    request: &Request,
    channel: &Channel,
    command: &mut Command,
    out: &mut Vec<u8>,
) -> usize {
    let mut count = 0;
    each(request, Some(channel), command, |command| {
        command.write(out);
        count += 1;
    });
    count
}

/// The commands of `request` on a connection without a channel; they ask for no
/// messages.
pub fn commands(request: &Request) -> Vec<Command> {
    let mut commands = Vec::new();
    each(request, None, &mut Command::default(), |command| {
        commands.push(command.clone());
    });
    commands
}

fn each(
    request: &Request,
    channel: Option<&Channel>,
    command: &mut Command,
    mut send: impl FnMut(&Command),
) {
    match request {
        Request::Acquire {
            claims,
            ask,
            terms,
            queueing,
            notify,
            value,
        } => {
            acquire(command, claims, *ask, terms.lease, *queueing);
            options(command, terms, channel.filter(|_| *notify));
            publishing(command, value.as_ref());
        }
        Request::Renew {
            claims,
            terms,
            known,
            raise,
            notify,
            value,
        } => {
            renew(command, claims, terms.lease, *known, *raise);
            options(command, terms, channel.filter(|_| *notify));
            publishing(command, value.as_ref());
        }
        Request::Release { claims, fence } => release(command, claims, *fence),
        Request::ReleaseEach { claims, fence } => {
            for key in claims.keys() {
                command.begin("RLOCK.RELEASE");
                command.arg(key).arg(claims.owner().as_str()).arg("ALL");
                under(command, *fence);
                send(command);
            }
            return;
        }
        Request::ReleasePermits {
            claims,
            permits,
            fence,
        } => {
            one(command, "RLOCK.RELEASE", claims);
            command.arg("PERMITS").number(*permits);
            under(command, Some(*fence));
        }
        Request::CountPermits { claims, .. } => *command = info(claims.key()),
        Request::Downgrade { claims } => one(command, "RLOCK.DOWNGRADE", claims),
        Request::Cancel { claims } => one(command, "RLOCK.CANCEL", claims),
        // The first key withdraws a request for several keys, or ends its kept
        // place. The commands that undo a grant come after it.
        Request::CleanUp { claims, undo } => {
            one(command, "RLOCK.CANCEL", claims);
            send(command);
            match undo {
                Undo::Nothing => return,
                Undo::Release => release(command, claims, None),
                Undo::Downgrade => one(command, "RLOCK.DOWNGRADE", claims),
            }
        }
        Request::Ping => command.begin("PING"),
    }
    send(command);
}

/// `RLOCK.ACQUIRE` or `RLOCK.MACQUIRE`.
///
/// It never has `REENTER`: the client counts re-entries, and the server sees
/// one entry. So a repetition after a lost reply changes nothing. A wait always
/// has `KEEP`, so that it continues in its place after a lost connection.
/// Nobody uses the place after the wait has ended.
fn acquire(command: &mut Command, claims: &Claims, ask: Ask, lease: Duration, queueing: Queueing) {
    if claims.is_single() {
        one(command, "RLOCK.ACQUIRE", claims);
        command.number(millis(lease));
        match ask {
            Ask::Exclusive => {}
            Ask::Shared => drop(command.arg("SHARED")),
            Ask::Permits { limit, permits } => {
                command.arg("SHARED").arg("LIMIT").number(limit.into());
                command.arg("PERMITS").number(permits.into());
            }
        }
    } else {
        several(command, "RLOCK.MACQUIRE", claims, Some(lease));
    }
    // `WAIT 0` has no limit.
    let (wait_ms, kept) = match queueing {
        Queueing::Try => return,
        Queueing::AtMost(wait) => (millis(wait).max(1), wait.min(KEPT_MAX)),
        Queueing::Unlimited => (0, KEPT_MAX),
    };
    command.arg("WAIT").number(wait_ms);
    command.arg("KEEP").number(millis(kept).max(1));
}

/// `RLOCK.RENEW`, answered with the fence; `RLOCK.MRENEW`, answered with the
/// number of keys that the owner holds under the known fence. Without that fence
/// it would also renew and count a newer grant of the same owner.
fn renew(command: &mut Command, claims: &Claims, lease: Duration, known: u64, raise: Option<u64>) {
    if claims.is_single() {
        one(command, "RLOCK.RENEW", claims);
        command.number(millis(lease));
        under(command, raise);
    } else {
        several(command, "RLOCK.MRENEW", claims, Some(lease));
        under(command, Some(known));
    }
}

/// A renewal as two commands, so that at least one of them changes the end of the
/// lease: a command that changes nothing is not written and does not reach
/// replicas. None for other requests.
pub fn renew_in_writing(request: &Request) -> Vec<Command> {
    let Request::Renew {
        claims,
        terms,
        known,
        raise,
        value,
        ..
    } = request
    else {
        return Vec::new();
    };
    let (lease, ms) = (terms.lease, Duration::from_millis(1));
    let (less, more) = match lease > ms {
        true => (lease - ms, lease),
        false => (lease, lease + ms),
    };
    let renewing = |lease| {
        let mut command = Command::default();
        renew(&mut command, claims, lease, *known, *raise);
        publishing(&mut command, value.as_ref());
        command
    };
    [less, more].map(renewing).into()
}

/// Waits until `replicas` replicas have all writes of the connection, for at most
/// `limit`; answered with the number of these replicas.
pub fn wait(replicas: u16, limit: Duration) -> Command {
    let mut command = Command::new("WAIT");
    // `WAIT` with a limit of 0 would have no limit.
    command.number(replicas.into()).number(millis(limit).max(1));
    command
}

/// Releases all entries, because the client counts them; only under `fence`, if
/// there is one.
fn release(command: &mut Command, claims: &Claims, fence: Option<u64>) {
    if claims.is_single() {
        one(command, "RLOCK.RELEASE", claims);
    } else {
        several(command, "RLOCK.MRELEASE", claims, None);
    }
    command.arg("ALL");
    under(command, fence);
}

fn under(command: &mut Command, fence: Option<u64>) {
    if let Some(fence) = fence {
        command.arg("FENCE").number(fence);
    }
}

/// The options that all requests for a lease share: the channel for messages, and
/// what the terms require from the server.
fn options(command: &mut Command, terms: &Terms, channel: Option<&Channel>) {
    if let Some(channel) = channel {
        channel.notify(command);
    }
    if let Some(grace) = terms.bound {
        command.arg("BIND").number(millis(grace));
    }
}

/// The value to publish from now on.
fn publishing(command: &mut Command, value: Option<&Value>) {
    if let Some(value) = value {
        command.arg("VALUE").arg(value.as_bytes());
    }
}

/// Subscribes to a channel; answered by a message or an error.
pub fn subscribe(channel: &Channel) -> Command {
    listening(channel.is_sharded, "SUBSCRIBE", channel.name.as_bytes())
}

/// Subscribes to the values that are published at `key`.
pub fn subscribe_values(key: &[u8], is_sharded: bool) -> Command {
    listening(is_sharded, "SUBSCRIBE", &value_channel(key))
}

/// Ends that subscription; answered by a message, even if there was none.
pub fn unsubscribe_values(key: &[u8], is_sharded: bool) -> Command {
    listening(is_sharded, "UNSUBSCRIBE", &value_channel(key))
}

fn listening(is_sharded: bool, name: &str, channel: &[u8]) -> Command {
    let mut command = match is_sharded {
        true => Command::new(&format!("S{name}")),
        false => Command::new(name),
    };
    command.arg(channel);
    command
}

/// The channel of the values that are published at `key`.
pub fn value_channel(key: &[u8]) -> Vec<u8> {
    match key.contains(&b'{') {
        true => [VALUE_CHANNEL, key].concat(),
        false => [VALUE_CHANNEL, b"{", key, b"}"].concat(),
    }
}

/// The keys whose values a channel carries. `{k}` has the channel of `k`.
pub fn keys_of_channel(channel: &[u8]) -> impl Iterator<Item = &[u8]> {
    let rest = channel.strip_prefix(VALUE_CHANNEL);
    let inner = rest.and_then(|rest| rest.strip_prefix(b"{")?.strip_suffix(b"}"));
    let keys = [rest, inner].into_iter().flatten();
    keys.filter(move |key| value_channel(key) == channel)
}

/// Ends every hold of a lock; answered with the number of holds.
pub fn force(key: &[u8]) -> Command {
    let mut command = Command::new("RLOCK.FORCE");
    command.arg(key);
    command
}

/// Ends the hold of a lock with this fence.
///
/// # Errors
///
/// [`Error::OutOfRange`] unless `fence` is from 1 to 9007199254740991.
pub fn force_under(key: &[u8], fence: u64) -> Result<Command, Error> {
    if !(1..=FENCE_MAX).contains(&fence) {
        return Err(Error::OutOfRange {
            argument: "fence",
            value: fence.to_string(),
            limit: format!("from 1 to {FENCE_MAX}").into(),
        });
    }
    let mut command = force(key);
    under(&mut command, Some(fence));
    Ok(command)
}

/// Ends every hold of a lock and clears its queue.
pub fn force_queue(key: &[u8]) -> Command {
    let mut command = force(key);
    command.arg("QUEUE");
    command
}

/// Asks about a lock; [`inspect::info`](crate::wire::inspect::info) reads the reply.
pub fn info(key: &[u8]) -> Command {
    let mut command = Command::new("RLOCK.INFO");
    command.arg(key);
    command
}

/// Asks for the `count` locks with the longest queues;
/// [`inspect::list`](crate::wire::inspect::list) reads the reply.
///
/// # Errors
///
/// [`Error::OutOfRange`] unless `count` is from 1 to 1000.
pub fn list(count: u64) -> Result<Command, Error> {
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(Error::OutOfRange {
            argument: "count",
            value: count.to_string(),
            limit: format!("from 1 to {COUNT_MAX}").into(),
        });
    }
    let mut command = Command::new("RLOCK.LIST");
    command.arg("COUNT").number(count);
    Ok(command)
}

/// Asks for the server's counters;
/// [`inspect::counters`](crate::wire::inspect::counters) reads the reply.
pub fn counters() -> Command {
    let mut command = Command::new("INFO");
    command.arg("rlock");
    command
}

/// Asks the server for its role and version; changes nothing.
pub fn hello() -> Command {
    Command::new("HELLO")
}

/// A command with the first key and the owner.
fn one(command: &mut Command, name: &str, claims: &Claims) {
    command.begin(name);
    command.arg(claims.key()).arg(claims.owner().as_str());
}

/// A command with the owner and all keys.
fn several(command: &mut Command, name: &str, claims: &Claims, lease: Option<Duration>) {
    command.begin(name);
    command.arg(claims.owner().as_str());
    if let Some(lease) = lease {
        command.number(millis(lease));
    }
    command.number(u64::try_from(claims.count()).unwrap_or(u64::MAX));
    for key in claims.keys() {
        command.arg(key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::claims::Owner;
    use crate::wire::resp::{Decoder, Frame};

    /// The commands as words.
    fn words(bytes: &[u8]) -> Vec<String> {
        let mut decoder = Decoder::default();
        decoder.feed(bytes);
        let mut commands = Vec::new();
        while let Some(Frame::Array(words)) = decoder.next().unwrap() {
            let words: Option<Vec<_>> = words.into_iter().map(Frame::into_text).collect();
            commands.push(words.unwrap().join(" "));
        }
        commands
    }

    fn claims(keys: &[&str]) -> Claims {
        let rest: Vec<Arc<[u8]>> = keys[1..].iter().map(|key| key.as_bytes().into()).collect();
        Claims::new(Owner::new("o").unwrap(), keys[0].as_bytes(), &rest)
    }

    fn channel(is_sharded: bool) -> Channel {
        let name = "c".to_owned();
        Channel { name, is_sharded }
    }

    fn sent(request: &Request) -> String {
        let mut out = Vec::new();
        let count = encode(request, &channel(false), &mut Command::default(), &mut out);
        let sent = words(&out);
        assert_eq!(sent.len(), count);
        sent.join("; ")
    }

    fn elsewhere(commands: &[Command]) -> String {
        let mut out = Vec::new();
        commands.iter().for_each(|command| command.write(&mut out));
        words(&out).join("; ")
    }

    fn terms(ms: u64, bound: Option<Duration>) -> Terms {
        Terms {
            lease: Duration::from_millis(ms),
            bound,
            ..Terms::default()
        }
    }

    fn request(keys: &[&str], ask: Ask, bound: Option<Duration>, queueing: Queueing) -> Request {
        Request::Acquire {
            claims: claims(keys),
            ask,
            terms: terms(5, bound),
            queueing,
            notify: true,
            value: None,
        }
    }

    fn renewal(keys: &[&str], terms: Terms, raise: Option<u64>) -> Request {
        Request::Renew {
            claims: claims(keys),
            terms,
            known: 7,
            raise,
            notify: false,
            value: None,
        }
    }

    fn asked(keys: &[&str], ask: Ask, bound: Option<Duration>, queueing: Queueing) -> String {
        sent(&request(keys, ask, bound, queueing))
    }

    #[test]
    fn a_wait_below_a_millisecond_is_not_sent_as_without_limit() {
        for wait in [Duration::ZERO, Duration::from_nanos(1)] {
            let queueing = Queueing::AtMost(wait);
            let sent = asked(&["k"], Ask::Exclusive, None, queueing);
            assert_eq!(sent, "RLOCK.ACQUIRE k o 5 WAIT 1 KEEP 1 NOTIFY c");
        }
        assert_eq!(elsewhere(&[wait(2, Duration::ZERO)]), "WAIT 2 1");
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
    fn a_try_has_no_wait_but_requests_loss_notices_with_a_channel() {
        let request = request(&["k"], Ask::Exclusive, None, Queueing::Try);
        assert_eq!(sent(&request), "RLOCK.ACQUIRE k o 5 NOTIFY c");
        let mut out = Vec::new();
        let count = encode(&request, &channel(true), &mut Command::default(), &mut out);
        assert_eq!(count, 1);
        assert_eq!(words(&out), ["RLOCK.ACQUIRE k o 5 SNOTIFY c"]);
        assert_eq!(elsewhere(&commands(&request)), "RLOCK.ACQUIRE k o 5");
        assert_eq!(elsewhere(&[subscribe(&channel(true))]), "SSUBSCRIBE c");
    }

    #[test]
    fn mode_and_binding_are_sent_with_a_request_for_one_key() {
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
    fn a_renewal_changes_the_binding_only_on_request() {
        for (bound, renewed) in [
            (None, "RLOCK.RENEW k o 5"),
            (Some(Duration::from_millis(7)), "RLOCK.RENEW k o 5 BIND 7"),
        ] {
            let renew = renewal(&["k"], terms(5, bound), None);
            assert_eq!(sent(&renew), renewed);
        }
    }

    #[test]
    fn a_value_is_sent_last_and_to_replicas_too() {
        let published = Value::new(b"a b").unwrap();
        let mut acquire = request(&["k"], Ask::Exclusive, None, Queueing::Unlimited);
        if let Request::Acquire { value, .. } = &mut acquire {
            *value = Some(published.clone());
        }
        let expected = "RLOCK.ACQUIRE k o 5 WAIT 0 KEEP 10000 NOTIFY c VALUE a b";
        assert_eq!(sent(&acquire), expected);
        let mut renew = renewal(&["k"], terms(5, Some(Duration::ZERO)), None);
        if let Request::Renew { value, .. } = &mut renew {
            *value = Some(published);
        }
        assert_eq!(sent(&renew), "RLOCK.RENEW k o 5 BIND 0 VALUE a b");
        let written = "RLOCK.RENEW k o 4 VALUE a b; RLOCK.RENEW k o 5 VALUE a b";
        assert_eq!(elsewhere(&renew_in_writing(&renew)), written);
    }

    #[test]
    fn the_channel_of_values_is_in_the_slot_of_its_key() {
        for (key, channel, keys) in [
            ("k", "rlock:value:{k}", &["{k}", "k"][..]),
            ("a{k}b", "rlock:value:a{k}b", &["a{k}b"]),
            ("{", "rlock:value:{", &["{"]),
            ("", "rlock:value:{}", &["{}", ""]),
        ] {
            let subscribe = subscribe_values(key.as_bytes(), false);
            assert_eq!(elsewhere(&[subscribe]), format!("SUBSCRIBE {channel}"));
            let leave = unsubscribe_values(key.as_bytes(), true);
            assert_eq!(elsewhere(&[leave]), format!("SUNSUBSCRIBE {channel}"));
            let known: Vec<_> = keys_of_channel(channel.as_bytes()).collect();
            let keys: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
            assert_eq!(known, keys);
        }
        assert_eq!(keys_of_channel(b"rlock:client:c").count(), 0);
        assert_eq!(keys_of_channel(b"rlock:value:k").count(), 0);
    }

    #[test]
    fn several_keys_are_asked_for_renewed_and_released_together() {
        let keys = ["a", "b"];
        let acquire = asked(&keys, Ask::Exclusive, None, Queueing::Try);
        assert_eq!(acquire, "RLOCK.MACQUIRE o 5 2 a b NOTIFY c");
        let acquire = asked(&keys, Ask::Exclusive, None, Queueing::Unlimited);
        assert_eq!(
            acquire,
            "RLOCK.MACQUIRE o 5 2 a b WAIT 0 KEEP 10000 NOTIFY c"
        );
        let renew = renewal(&keys, terms(5, None), None);
        assert_eq!(sent(&renew), "RLOCK.MRENEW o 5 2 a b FENCE 7");
        let written = "RLOCK.MRENEW o 4 2 a b FENCE 7; RLOCK.MRENEW o 5 2 a b FENCE 7";
        assert_eq!(elsewhere(&renew_in_writing(&renew)), written);
        let claims = claims(&keys);
        let (all, fence) = (claims.clone(), Some(7));
        let release = Request::Release { claims: all, fence };
        assert_eq!(sent(&release), "RLOCK.MRELEASE o 2 a b ALL FENCE 7");
        let all = claims.clone();
        let each = Request::ReleaseEach { claims: all, fence };
        assert_eq!(
            sent(&each),
            "RLOCK.RELEASE a o ALL FENCE 7; RLOCK.RELEASE b o ALL FENCE 7"
        );
        let undo = Undo::Release;
        let clean_up = Request::CleanUp { claims, undo };
        assert_eq!(
            sent(&clean_up),
            "RLOCK.CANCEL a o; RLOCK.MRELEASE o 2 a b ALL"
        );
    }

    #[test]
    fn permits_are_counted_and_released_at_their_key() {
        let (permits, fence) = (2, 7);
        let owned = claims(&["k"]);
        let release = Request::ReleasePermits {
            claims: owned.clone(),
            permits,
            fence,
        };
        assert_eq!(sent(&release), "RLOCK.RELEASE k o PERMITS 2 FENCE 7");
        let claims = owned;
        assert_eq!(
            sent(&Request::CountPermits { claims, fence }),
            "RLOCK.INFO k"
        );
    }

    #[test]
    fn renewals_for_replicas_are_always_written() {
        for (ms, written) in [
            (5, "RLOCK.RENEW k o 4 FENCE 9; RLOCK.RENEW k o 5 FENCE 9"),
            (1, "RLOCK.RENEW k o 1 FENCE 9; RLOCK.RENEW k o 2 FENCE 9"),
        ] {
            let renew = renewal(&["k"], terms(ms, None), Some(9));
            assert_eq!(elsewhere(&renew_in_writing(&renew)), written);
        }
        assert!(renew_in_writing(&Request::Ping).is_empty());
    }

    #[test]
    fn questions_and_the_end_of_holds_need_no_owner() {
        let long = "k".repeat(100);
        let asked = [
            force(long.as_bytes()),
            force_queue(b"k"),
            force_under(b"k", 7).unwrap(),
            list(9).unwrap(),
            counters(),
        ];
        let expected = format!(
            "RLOCK.FORCE {long}; RLOCK.FORCE k QUEUE; RLOCK.FORCE k FENCE 7; RLOCK.LIST COUNT 9; INFO rlock"
        );
        assert_eq!(elsewhere(&asked), expected);
    }

    #[test]
    fn numbers_of_questions_have_limits() {
        assert!(list(0).is_err() && list(1).is_ok());
        assert!(list(1000).is_ok() && list(1001).is_err());
        assert!(force_under(b"k", 0).is_err() && force_under(b"k", 1).is_ok());
        assert!(force_under(b"k", (1 << 53) - 1).is_ok() && force_under(b"k", 1 << 53).is_err());
    }
}
