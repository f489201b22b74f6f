//! What a server reports about locks and about itself.
//!
//! With the feature `serde` all of it can be serialized, in the terms of the
//! command line's JSON. Times are in whole milliseconds, with names that end in
//! `_ms`. Names and keys are text, in which bytes that are not UTF-8 are
//! replaced.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Error;
use crate::wire::replies::number;
use crate::wire::resp::Frame;

/// Whether a lock is held, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Mode {
    /// Nobody holds it.
    Free,
    /// One owner holds it.
    Exclusive,
    /// Any number of owners hold it together.
    Shared,
}

/// A lock as the server saw it when it was asked; it may have changed since.
///
/// # Examples
///
/// ```no_run
/// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
/// let info = mutex.info().await?;
/// for holder in &info.holders {
///     println!("held by {} for {:?} more, {} wait", holder.owner, holder.lease_left, info.queued);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Info {
    /// Whether it is held, and how.
    pub mode: Mode,
    /// The largest fence of its holders.
    pub fence: Option<u64>,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// The number of places in its queue, including kept places.
    pub queued: u64,
    /// The first 100 places of its queue, in order.
    pub waiters: Vec<Waiter>,
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Holder {
    /// Its name; bytes that are not UTF-8 are replaced.
    pub owner: String,
    /// The number of its entries on the server. Clients of this crate count
    /// re-entries themselves, and show 1.
    pub count: u64,
    /// The number of its permits; 1 for an exclusive holder, and for a shared
    /// holder that took none.
    pub permits: u64,
    /// When its hold ends unless it is renewed.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "lease_left_ms", serialize_with = "written::ms")
    )]
    pub lease_left: Duration,
    /// Its fence; none for a hold by Redisson.
    pub fence: Option<u64>,
    /// Whether the hold ends with its connection, or a grace after it.
    #[cfg_attr(feature = "serde", serde(rename = "bound"))]
    pub is_bound: bool,
    /// The value that it publishes, if any: see [`Leader`].
    #[cfg_attr(feature = "serde", serde(serialize_with = "written::maybe_text"))]
    pub value: Option<Vec<u8>>,
}

/// The leader: the exclusive holder of a lock with a published value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Leader {
    /// Its fence.
    pub fence: u64,
    /// Its name; bytes that are not UTF-8 are replaced.
    pub owner: String,
    /// Its published value: 0 to 1024 bytes.
    #[cfg_attr(feature = "serde", serde(serialize_with = "written::text"))]
    pub value: Vec<u8>,
    /// When its leadership ends unless it is renewed.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "time_left_ms", serialize_with = "written::ms")
    )]
    pub time_left: Duration,
}

impl Info {
    /// The leader; none if there is no exclusive holder with a value.
    #[must_use]
    pub fn leader(self) -> Option<Leader> {
        let holder = match self.mode {
            Mode::Exclusive => self.holders.into_iter().next()?,
            Mode::Free | Mode::Shared => return None,
        };
        Some(Leader {
            fence: holder.fence?,
            owner: holder.owner,
            value: holder.value?,
            time_left: holder.lease_left,
        })
    }
}

/// One place in the queue of a lock. An owner waits there, or it is kept for an
/// owner whose wait or connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Waiter {
    /// Its name; bytes that are not UTF-8 are replaced.
    pub owner: String,
    /// The mode that it asks for; never [`Mode::Free`].
    pub mode: Mode,
    /// The time since it first asked.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "waited_ms", serialize_with = "written::ms")
    )]
    pub waited: Duration,
    /// The time until it gives up; none without a limit, and for a kept place.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "wait_left_ms", serialize_with = "written::maybe_ms")
    )]
    pub wait_left: Option<Duration>,
    /// The server's ID of its connection; none for a kept place.
    pub client_id: Option<u64>,
    /// The time until a kept place ends, unless its owner asks again; none while
    /// the owner waits there. A kept place is not granted and blocks nobody.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "kept_left_ms", serialize_with = "written::maybe_ms")
    )]
    pub kept_left: Option<Duration>,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Free => "free",
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        })
    }
}

/// A lock with places in its queue, as the server saw it when it was asked.
///
/// # Examples
///
/// ```no_run
/// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// for lock in client.list(10).await? {
///     println!("{} wait for {}", lock.waiters, String::from_utf8_lossy(&lock.key));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Contended {
    /// The lock's key.
    #[cfg_attr(feature = "serde", serde(serialize_with = "written::text"))]
    pub key: Vec<u8>,
    /// How it is held. A lock that a request for several keys has reserved is
    /// also [`Mode::Free`].
    pub mode: Mode,
    /// The number of its holders.
    pub holders: u64,
    /// The number of places in its queue, including kept places.
    pub waiters: u64,
    /// The time since the first of them asked.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "oldest_wait_ms", serialize_with = "written::ms")
    )]
    pub oldest_wait: Duration,
}

/// The reply to `INFO rlock`, by name without the prefix `rlock_`.
///
/// `docs/commands.md` of the module explains each field. A newer module may have
/// more fields, an older one fewer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Most fields count events since the server started: `acquires`, `grants`,
    /// `handoffs`, `releases`. Fields with `_usec` at the end or before a
    /// quantile, such as `wait_usec_p99`, are in microseconds; fields with `_ms`
    /// are in milliseconds.
    pub numbers: BTreeMap<String, u64>,
    /// Fields that are not numbers: `version` and `commit` of the module, and
    /// `wait_usec_histogram`.
    pub texts: BTreeMap<String, String>,
}

/// The answer of one master.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer<T> {
    /// `host:port`, or the path of a Unix socket. For a master known to Sentinels
    /// that is not connected, its name.
    pub address: String,
    /// The answer, or why there is none.
    pub answer: Result<T, Error>,
}

impl<T> Answer<T> {
    /// Reads each answer with `read`.
    #[doc(hidden)]
    pub fn all(
        answers: Vec<(String, Result<Frame, Error>)>,
        read: impl Fn(&Frame) -> Result<T, Error>,
    ) -> Vec<Self> {
        let read = |(address, answer): (_, Result<Frame, _>)| Self {
            address,
            answer: answer.and_then(|reply| read(&reply)),
        };
        answers.into_iter().map(read).collect()
    }
}

/// Reads the reply to [`requests::info`](crate::wire::requests::info).
///
/// # Errors
///
/// [`Error::Protocol`] if anything is missing.
pub fn info(reply: &Frame) -> Result<Info, Error> {
    Info::read(reply)
}

/// Reads the reply to [`requests::list`](crate::wire::requests::list).
///
/// # Errors
///
/// As for [`info`].
pub fn list(reply: &Frame) -> Result<Vec<Contended>, Error> {
    Vec::read(reply)
}

/// The locks with the longest queues, at most `count`, from the replies of all
/// servers.
///
/// # Errors
///
/// As for [`info`].
pub fn longest(count: u64, replies: &[Frame]) -> Result<Vec<Contended>, Error> {
    let all = replies.iter().map(list).collect::<Result<Vec<_>, _>>()?;
    let mut all = all.concat();
    all.sort_by_key(|lock| std::cmp::Reverse(lock.waiters));
    all.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    Ok(all)
}

/// Reads the reply to [`requests::counters`](crate::wire::requests::counters).
///
/// # Errors
///
/// [`Error::ModuleMissing`] if there are none, [`Error::Protocol`] if it is not
/// text.
pub fn counters(reply: &Frame) -> Result<Counters, Error> {
    let text = String::read(reply)?;
    let mut counters = Counters::default();
    for (name, value) in fields(&text) {
        let Some(name) = name.strip_prefix("rlock_") else {
            continue;
        };
        match value.parse() {
            // A commit's hash may consist of digits only.
            Ok(number) if name != "commit" => {
                counters.numbers.insert(name.to_owned(), number);
            }
            _ => {
                counters.texts.insert(name.to_owned(), value.to_owned());
            }
        }
    }
    match counters.numbers.is_empty() {
        true => Err(Error::ModuleMissing),
        false => Ok(counters),
    }
}

/// The names and values in a reply to `INFO`, or in a reply of the same form,
/// such as the reply to `CLUSTER INFO`.
pub fn fields(info: &str) -> impl Iterator<Item = (&str, &str)> {
    info.lines().filter_map(|line| line.split_once(':'))
}

/// Reads a value from a frame.
trait Read: Sized {
    fn read(frame: &Frame) -> Result<Self, Error>;
}

/// Reads that field of a map.
fn field<T: Read>(map: &Frame, name: &str) -> Result<T, Error> {
    let missing = || Error::Protocol(format!("no field `{name}` in {map:?}"));
    T::read(map.field(name).ok_or_else(missing)?)
}

impl Read for Info {
    fn read(frame: &Frame) -> Result<Self, Error> {
        Ok(Self {
            mode: field(frame, "mode")?,
            fence: field(frame, "fence")?,
            holders: field(frame, "holders")?,
            queued: field(frame, "queued")?,
            waiters: field(frame, "waiters")?,
        })
    }
}

impl Read for Holder {
    fn read(frame: &Frame) -> Result<Self, Error> {
        Ok(Self {
            owner: field(frame, "owner")?,
            count: field(frame, "count")?,
            permits: field(frame, "permits")?,
            lease_left: field(frame, "lease-left-ms")?,
            fence: field(frame, "fence")?,
            is_bound: field::<u64>(frame, "bound")? != 0,
            // Older modules have no such field.
            value: match frame.field("value") {
                Some(value) => Option::read(value)?,
                None => None,
            },
        })
    }
}

impl Read for Waiter {
    fn read(frame: &Frame) -> Result<Self, Error> {
        Ok(Self {
            owner: field(frame, "owner")?,
            mode: field(frame, "mode")?,
            waited: field(frame, "waited-ms")?,
            wait_left: field(frame, "wait-left-ms")?,
            client_id: field(frame, "client-id")?,
            kept_left: field(frame, "kept-left-ms")?,
        })
    }
}

impl Read for Contended {
    fn read(frame: &Frame) -> Result<Self, Error> {
        Ok(Self {
            key: field(frame, "key")?,
            mode: field(frame, "mode")?,
            holders: field(frame, "holders")?,
            waiters: field(frame, "waiters")?,
            oldest_wait: field(frame, "oldest-wait-ms")?,
        })
    }
}

impl Read for Mode {
    fn read(frame: &Frame) -> Result<Self, Error> {
        match String::read(frame)?.as_str() {
            "free" => Ok(Self::Free),
            "exclusive" => Ok(Self::Exclusive),
            "shared" => Ok(Self::Shared),
            other => Err(Error::Protocol(format!("unknown mode `{other}`"))),
        }
    }
}

impl Read for u64 {
    fn read(frame: &Frame) -> Result<Self, Error> {
        number(frame)
    }
}

impl Read for Duration {
    fn read(frame: &Frame) -> Result<Self, Error> {
        number(frame).map(Self::from_millis)
    }
}

impl Read for Vec<u8> {
    fn read(frame: &Frame) -> Result<Self, Error> {
        let bytes = frame.as_bytes().map(Self::from);
        bytes.ok_or_else(|| Error::Protocol(format!("expected text, got {frame:?}")))
    }
}

impl Read for String {
    fn read(frame: &Frame) -> Result<Self, Error> {
        Vec::read(frame).map(|bytes: Vec<u8>| Self::from_utf8_lossy(&bytes).into_owned())
    }
}

impl<T: Read> Read for Option<T> {
    fn read(frame: &Frame) -> Result<Self, Error> {
        match frame {
            Frame::Nil => Ok(None),
            other => T::read(other).map(Some),
        }
    }
}

impl<T: Read> Read for Vec<T> {
    fn read(frame: &Frame) -> Result<Self, Error> {
        let items = frame.as_list();
        let items = items.ok_or_else(|| Error::Protocol(format!("expected a list, got {frame:?}")));
        items?.iter().map(T::read).collect()
    }
}

#[cfg(feature = "serde")]
mod written {
    use std::time::Duration;

    use serde::{Serialize, Serializer};

    pub(super) fn ms<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        maybe_ms(&Some(*time), to)
    }

    pub(super) fn maybe_ms<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let ms = time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        ms.serialize(to)
    }

    pub(super) fn text<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&String::from_utf8_lossy(bytes))
    }

    pub(super) fn maybe_text<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let text = bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes));
        text.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Frame {
        Frame::Bulk(text.into())
    }

    fn map(fields: &[(&str, Frame)]) -> Frame {
        let fields = fields.iter().cloned();
        Frame::Map(fields.map(|(name, value)| (text(name), value)).collect())
    }

    /// A shared lock.
    fn shared() -> Frame {
        let holder = map(&[
            ("owner", text("a")),
            ("count", Frame::Integer(2)),
            ("permits", Frame::Integer(3)),
            ("lease-left-ms", Frame::Integer(1500)),
            ("fence", Frame::Integer(7)),
            ("bound", Frame::Integer(1)),
        ]);
        let waiter = |client: Frame, kept_left: Frame| {
            map(&[
                ("owner", text("b")),
                ("mode", text("exclusive")),
                ("waited-ms", Frame::Integer(20)),
                ("wait-left-ms", Frame::Nil),
                ("client-id", client),
                ("kept-left-ms", kept_left),
            ])
        };
        let waiters = vec![
            waiter(Frame::Integer(9), Frame::Nil),
            waiter(Frame::Nil, Frame::Integer(8)),
        ];
        map(&[
            ("mode", text("shared")),
            ("fence", Frame::Integer(7)),
            ("holders", Frame::Array(vec![holder])),
            ("queued", Frame::Integer(2)),
            ("waiters", Frame::Array(waiters)),
        ])
    }

    #[test]
    fn holders_and_waiters_of_a_shared_lock_are_read_in_full() {
        let info = info(&shared()).unwrap();
        assert_eq!((info.mode, info.fence), (Mode::Shared, Some(7)));
        let modes = [Mode::Free, Mode::Exclusive, Mode::Shared].map(|mode| mode.to_string());
        assert_eq!(modes, ["free", "exclusive", "shared"]);
        let holder = &info.holders[0];
        assert_eq!((holder.permits, holder.is_bound), (3, true));
        assert_eq!(holder.lease_left, Duration::from_millis(1500));
        let [waiter, kept] = &info.waiters[..] else {
            panic!("{info:?}");
        };
        assert_eq!((waiter.mode, waiter.wait_left), (Mode::Exclusive, None));
        assert_eq!((waiter.client_id, waiter.kept_left), (Some(9), None));
        let kept_left = Some(Duration::from_millis(8));
        assert_eq!((kept.client_id, kept.kept_left), (None, kept_left));
    }

    #[test]
    fn each_answer_is_read_by_itself() {
        let asked = [Ok(Frame::Integer(7)), Err(Error::Closed), Ok(Frame::Nil)];
        let asked = asked.map(|answer| ("h:1".to_owned(), answer));
        let answers = Answer::all(asked.into(), |frame| match frame {
            Frame::Integer(number) => Ok(*number),
            other => Err(Error::Protocol(format!("{other:?}"))),
        });
        assert!(answers.iter().all(|it| it.address == "h:1"));
        let [one, failed, unread] = answers.try_into().unwrap();
        assert!(matches!(one.answer, Ok(7)));
        assert!(matches!(failed.answer, Err(Error::Closed)));
        assert!(matches!(unread.answer, Err(Error::Protocol(_))));
    }

    #[test]
    fn a_leader_is_an_exclusive_holder_with_a_published_value() {
        let of = |mode: &str, value: Option<Frame>| {
            let mut holder = vec![
                ("owner", text("a")),
                ("count", Frame::Integer(1)),
                ("permits", Frame::Integer(1)),
                ("lease-left-ms", Frame::Integer(1500)),
                ("fence", Frame::Integer(7)),
                ("bound", Frame::Integer(0)),
            ];
            holder.extend(value.map(|value| ("value", value)));
            let mut lock = free();
            lock[0].1 = text(mode);
            lock[2].1 = Frame::Array(vec![map(&holder)]);
            info(&Frame::Map(lock)).unwrap().leader()
        };
        let value = || Some(Frame::Bulk(b"\xff b".to_vec()));
        let leader = of("exclusive", value()).unwrap();
        assert_eq!((leader.fence, leader.owner.as_str()), (7, "a"));
        assert_eq!(leader.value, b"\xff b");
        assert_eq!(leader.time_left, Duration::from_millis(1500));
        assert_eq!(of("shared", value()), None);
        assert_eq!(of("exclusive", Some(Frame::Nil)), None);
        // An older module's reply.
        assert_eq!(of("exclusive", None), None);
        assert_eq!(info(&Frame::Map(free())).unwrap().leader(), None);
    }

    fn free() -> Vec<(Frame, Frame)> {
        vec![
            (text("mode"), text("free")),
            (text("fence"), Frame::Nil),
            (text("holders"), Frame::Array(vec![])),
            (text("queued"), Frame::Integer(0)),
            (text("waiters"), Frame::Array(vec![])),
        ]
    }

    fn contended() -> Vec<(Frame, Frame)> {
        vec![
            (text("key"), Frame::Bulk(b"k\xff".to_vec())),
            (text("mode"), text("shared")),
            (text("holders"), Frame::Integer(2)),
            (text("waiters"), Frame::Integer(3)),
            (text("oldest-wait-ms"), Frame::Integer(250)),
        ]
    }

    #[test]
    fn a_flat_array_means_the_same_as_a_map() {
        let flat = free()
            .into_iter()
            .flat_map(|(name, value)| [name, value])
            .collect();
        let read = info(&Frame::Map(free())).unwrap();
        assert_eq!(read, info(&Frame::Array(flat)).unwrap());
        assert_eq!((read.mode, read.fence, read.queued), (Mode::Free, None, 0));
    }

    #[test]
    fn a_lock_of_the_list_is_read_in_full() {
        let list = list(&Frame::Array(vec![Frame::Map(contended())])).unwrap();
        assert_eq!(list[0].key, b"k\xff");
        assert_eq!((list[0].holders, list[0].waiters), (2, 3));
        assert_eq!(list[0].mode, Mode::Shared);
        assert_eq!(list[0].oldest_wait, Duration::from_millis(250));
    }

    #[test]
    fn the_longest_queues_of_all_servers_come_first() {
        let of = |waiters| {
            let mut lock = contended();
            lock[3].1 = Frame::Integer(waiters);
            Frame::Map(lock)
        };
        let replies = [
            Frame::Array(vec![of(3), of(1)]),
            Frame::Array(vec![of(5), of(2)]),
        ];
        let longest = longest(3, &replies).unwrap();
        let waiters: Vec<_> = longest.iter().map(|lock| lock.waiters).collect();
        assert_eq!(waiters, [5, 3, 2]);
    }

    #[test]
    fn a_missing_field_is_an_error() {
        for missing in 0..5 {
            let (mut lock, mut of_list) = (free(), contended());
            lock.remove(missing);
            of_list.remove(missing);
            assert!(matches!(info(&Frame::Map(lock)), Err(Error::Protocol(_))));
            let reply = Frame::Array(vec![Frame::Map(of_list)]);
            assert!(matches!(list(&reply), Err(Error::Protocol(_))));
        }
        let status = Frame::Simple("OK".into());
        assert!(matches!(info(&status), Err(Error::Protocol(_))));
        assert!(matches!(list(&status), Err(Error::Protocol(_))));
    }

    #[test]
    fn numbers_and_texts_are_read_without_their_prefix() {
        let reply = text(
            "# rlock\r\nrlock_version:0.1.0\r\nrlock_commit:1234567890\r\n\
             rlock_grants:7\r\nrlock_waiters:0\r\nother:1\r\n",
        );
        let counters = counters(&reply).unwrap();
        let numbers = [("grants".to_owned(), 7), ("waiters".to_owned(), 0)];
        assert_eq!(counters.numbers, numbers.into());
        let texts = [("commit", "1234567890"), ("version", "0.1.0")];
        let texts = texts.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(counters.texts, texts.into());
    }

    #[test]
    fn no_counters_mean_no_module() {
        assert!(matches!(counters(&text("")), Err(Error::ModuleMissing)));
        let no_text = Frame::Array(vec![Frame::Integer(1)]);
        assert!(matches!(counters(&no_text), Err(Error::Protocol(_))));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_lock_is_serialized_in_the_words_of_the_command_line() {
        let json = serde_json::to_value(info(&shared()).unwrap()).unwrap();
        let holder = r#"{"owner":"a","count":2,"permits":3,"lease_left_ms":1500,"fence":7,"bound":true,"value":null}"#;
        assert_eq!(json["mode"], "shared");
        assert_eq!(
            json["holders"][0],
            serde_json::from_str::<serde_json::Value>(holder).unwrap()
        );
        assert_eq!(json["waiters"][1]["kept_left_ms"], 8);
        assert!(json["waiters"][1]["wait_left_ms"].is_null());
        let list = list(&Frame::Array(vec![Frame::Map(contended())])).unwrap();
        let json = serde_json::to_value(&list[0]).unwrap();
        assert_eq!(
            (&json["key"], &json["oldest_wait_ms"]),
            (&"k\u{fffd}".into(), &250.into())
        );
        let metrics = crate::engine::Metrics::default();
        assert_eq!(serde_json::to_value(metrics).unwrap()["grants"], 0);
    }
}
