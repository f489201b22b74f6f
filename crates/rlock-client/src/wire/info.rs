//! What the server says about a lock.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

use crate::Error;
use crate::wire::fields::Fields;

/// Whether a lock is held, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Nobody holds it.
    Free,
    /// One owner holds it.
    Exclusive,
    /// Any number of owners hold it together.
    Shared,
}

/// A lock as the server saw it when it was asked; it may be different now.
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
pub struct Info {
    /// Whether it is held, and how.
    pub mode: Mode,
    /// The largest fence of its holders.
    pub fence: Option<u64>,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// How many places its queue has, kept ones too.
    pub queued: u64,
    /// The first 100 places of its queue, in order.
    pub waiters: Vec<Waiter>,
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its name; bytes that are no UTF-8 are replaced.
    pub owner: String,
    /// How often it entered, as the server counts: this crate's clients count
    /// re-entries themselves and show 1.
    pub count: u64,
    /// How many permits it has taken; 1 for an exclusive holder, and for a
    /// shared one that asked for none.
    pub permits: u64,
    /// When its hold ends unless it is renewed.
    pub lease_left: Duration,
    /// Its fence; none for a hold that Redisson took.
    pub fence: Option<u64>,
    /// Whether the hold ends with its connection, or a grace after it.
    pub is_bound: bool,
}

/// One place in the queue of a lock: somebody waits there, or it is kept for
/// somebody whose wait or connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// Its name; bytes that are no UTF-8 are replaced.
    pub owner: String,
    /// How it wants the lock; never [`Mode::Free`].
    pub mode: Mode,
    /// How long it is since it first asked.
    pub waited: Duration,
    /// When it gives up; none without limit, and for a kept place.
    pub wait_left: Option<Duration>,
    /// The server's number for its connection; none for a kept place.
    pub client_id: Option<u64>,
    /// When a kept place ends unless its owner asks again; none while somebody
    /// waits there. A kept place is not granted and holds up nobody.
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

/// Reads the reply to `RLOCK.INFO`, for those who ask on a connection of their
/// own.
impl FromRedisValue for Info {
    fn from_redis_value(reply: Value) -> Result<Self, ParsingError> {
        parse(&reply).map_err(|error| error.to_string().into())
    }
}

/// Reads the field `mode`.
pub(crate) fn mode(fields: &Fields<'_>) -> Result<Mode, Error> {
    match fields.text("mode")?.as_str() {
        "free" => Ok(Mode::Free),
        "exclusive" => Ok(Mode::Exclusive),
        "shared" => Ok(Mode::Shared),
        other => Err(Error::Protocol(format!("unknown mode `{other}`"))),
    }
}

/// Reads the reply to `RLOCK.INFO`.
pub(crate) fn parse(reply: &Value) -> Result<Info, Error> {
    let fields = Fields(reply);
    Ok(Info {
        mode: mode(&fields)?,
        fence: fields.optional("fence")?,
        holders: fields
            .list("holders")?
            .iter()
            .map(holder)
            .collect::<Result<_, _>>()?,
        queued: fields.number("queued")?,
        waiters: fields
            .list("waiters")?
            .iter()
            .map(waiter)
            .collect::<Result<_, _>>()?,
    })
}

fn holder(value: &Value) -> Result<Holder, Error> {
    let fields = Fields(value);
    Ok(Holder {
        owner: fields.text("owner")?,
        count: fields.number("count")?,
        permits: fields.number("permits")?,
        lease_left: Duration::from_millis(fields.number("lease-left-ms")?),
        fence: fields.optional("fence")?,
        is_bound: fields.number("bound")? != 0,
    })
}

fn waiter(value: &Value) -> Result<Waiter, Error> {
    let fields = Fields(value);
    Ok(Waiter {
        owner: fields.text("owner")?,
        mode: mode(&fields)?,
        waited: Duration::from_millis(fields.number("waited-ms")?),
        wait_left: fields.optional("wait-left-ms")?.map(Duration::from_millis),
        client_id: fields.optional("client-id")?,
        kept_left: fields.optional("kept-left-ms")?.map(Duration::from_millis),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, Value)]) -> Value {
        let fields = fields.iter().cloned();
        Value::Map(fields.map(|(name, value)| (text(name), value)).collect())
    }

    #[test]
    fn holders_and_waiters_of_a_shared_lock_are_read_in_full() {
        let holder = map(&[
            ("owner", text("a")),
            ("count", Value::Int(2)),
            ("permits", Value::Int(3)),
            ("lease-left-ms", Value::Int(1500)),
            ("fence", Value::Int(7)),
            ("bound", Value::Int(1)),
        ]);
        let waiter = |client: Value, kept_left: Value| {
            map(&[
                ("owner", text("b")),
                ("mode", text("exclusive")),
                ("waited-ms", Value::Int(20)),
                ("wait-left-ms", Value::Nil),
                ("client-id", client),
                ("kept-left-ms", kept_left),
            ])
        };
        let waiters = vec![
            waiter(Value::Int(9), Value::Nil),
            waiter(Value::Nil, Value::Int(8)),
        ];
        let info = parse(&map(&[
            ("mode", text("shared")),
            ("fence", Value::Int(7)),
            ("holders", Value::Array(vec![holder])),
            ("queued", Value::Int(2)),
            ("waiters", Value::Array(waiters)),
        ]));
        let info = info.unwrap();
        assert_eq!((info.mode, info.fence), (Mode::Shared, Some(7)));
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

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn free() -> Vec<(Value, Value)> {
        vec![
            (text("mode"), text("free")),
            (text("fence"), Value::Nil),
            (text("holders"), Value::Array(vec![])),
            (text("queued"), Value::Int(0)),
            (text("waiters"), Value::Array(vec![])),
        ]
    }

    #[test]
    fn a_flat_array_means_the_same_as_a_map() {
        let flat = free()
            .into_iter()
            .flat_map(|(name, value)| [name, value])
            .collect();
        let info = parse(&Value::Map(free())).unwrap();
        assert_eq!(info, parse(&Value::Array(flat)).unwrap());
        assert_eq!((info.mode, info.fence, info.queued), (Mode::Free, None, 0));
    }

    #[test]
    fn a_missing_field_is_an_error() {
        let mut fields = free();
        fields.remove(3);
        assert!(matches!(
            parse(&Value::Map(fields)),
            Err(Error::Protocol(_))
        ));
        assert!(matches!(parse(&Value::Okay), Err(Error::Protocol(_))));
    }
}
