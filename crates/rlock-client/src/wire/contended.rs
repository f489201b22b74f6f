//! Which locks have a queue, as the server lists them.

use std::time::Duration;

use redis::{Cmd, FromRedisValue, ParsingError, Value};

use crate::Error;
use crate::wire::fields::Fields;
use crate::wire::info::{Mode, mode};

/// The most locks that one question may be about.
const COUNT_MAX: u64 = 1000;

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
pub struct Contended {
    /// The lock's key.
    pub key: Vec<u8>,
    /// How it is held. [`Mode::Free`] for one that a request for several keys
    /// keeps for itself.
    pub mode: Mode,
    /// How many hold it.
    pub holders: u64,
    /// How many places its queue has, kept ones too.
    pub waiters: u64,
    /// How long it is since the first of them asked.
    pub oldest_wait: Duration,
}

/// Reads one lock of the reply to `RLOCK.LIST`, for those who ask on a
/// connection of their own.
impl FromRedisValue for Contended {
    fn from_redis_value(reply: Value) -> Result<Self, ParsingError> {
        contended(&reply).map_err(|error| error.to_string().into())
    }
}

/// `RLOCK.LIST` of the `count` most contended locks.
pub(crate) fn list(count: u64) -> Result<Cmd, Error> {
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(Error::OutOfRange {
            argument: "count",
            value: count.to_string(),
            limit: format!("from 1 to {COUNT_MAX}").into(),
        });
    }
    let mut cmd = redis::cmd("RLOCK.LIST");
    cmd.arg("COUNT").arg(count);
    Ok(cmd)
}

/// The longest of what all servers replied to [`list`].
pub(crate) fn longest(count: u64, replies: &[Value]) -> Result<Vec<Contended>, Error> {
    let all = replies.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let mut all = all.concat();
    all.sort_by_key(|lock| std::cmp::Reverse(lock.waiters));
    all.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    Ok(all)
}

/// The reply to [`list`].
pub(crate) fn parse(reply: &Value) -> Result<Vec<Contended>, Error> {
    let list = reply.as_sequence();
    let list = list.ok_or_else(|| Error::Protocol(format!("expected a list, got {reply:?}")))?;
    list.iter().map(contended).collect()
}

fn contended(value: &Value) -> Result<Contended, Error> {
    let fields = Fields(value);
    Ok(Contended {
        key: fields.bytes("key")?.to_vec(),
        mode: mode(&fields)?,
        holders: fields.number("holders")?,
        waiters: fields.number("waiters")?,
        oldest_wait: Duration::from_millis(fields.number("oldest-wait-ms")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Vec<(Value, Value)> {
        let text = |text: &str| Value::BulkString(text.into());
        vec![
            (text("key"), Value::BulkString(b"k\xff".to_vec())),
            (text("mode"), text("shared")),
            (text("holders"), Value::Int(2)),
            (text("waiters"), Value::Int(3)),
            (text("oldest-wait-ms"), Value::Int(250)),
        ]
    }

    #[test]
    fn a_lock_of_the_list_is_read_in_full() {
        let list = parse(&Value::Array(vec![Value::Map(fields())])).unwrap();
        assert_eq!(list[0].key, b"k\xff");
        assert_eq!((list[0].holders, list[0].waiters), (2, 3));
        assert_eq!(list[0].mode, Mode::Shared);
        assert_eq!(list[0].oldest_wait, Duration::from_millis(250));
    }

    #[test]
    fn a_missing_field_is_an_error() {
        for missing in 0..5 {
            let mut fields = fields();
            fields.remove(missing);
            let reply = Value::Array(vec![Value::Map(fields)]);
            assert!(matches!(parse(&reply), Err(Error::Protocol(_))));
        }
        assert!(matches!(parse(&Value::Okay), Err(Error::Protocol(_))));
    }
}
