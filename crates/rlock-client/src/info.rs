//! What the server says about a lock.

use std::time::Duration;

use redis::Value;

use crate::Error;
use crate::protocol;

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
    /// How many wait for it.
    pub queued: u64,
    /// The first 100 who wait for it, in order.
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
    /// How many permits it has taken; 1 for an exclusive holder.
    pub permits: u64,
    /// When its hold ends unless it is renewed.
    pub lease_left: Duration,
    /// Its fence; none for a hold that Redisson took.
    pub fence: Option<u64>,
    /// Whether the hold ends with its connection.
    pub is_bound: bool,
}

/// One waiter for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// Its name; bytes that are no UTF-8 are replaced.
    pub owner: String,
    /// How it wants the lock.
    pub mode: Mode,
    /// How long it has waited.
    pub waited: Duration,
    /// When it gives up; none without limit.
    pub wait_left: Option<Duration>,
    /// The server's number for its connection.
    pub client_id: u64,
}

/// Reads the reply to `RLOCK.INFO`.
pub(crate) fn parse(reply: &Value) -> Result<Info, Error> {
    let fields = Fields(reply);
    Ok(Info {
        mode: fields.mode()?,
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
        mode: fields.mode()?,
        waited: Duration::from_millis(fields.number("waited-ms")?),
        wait_left: fields.optional("wait-left-ms")?.map(Duration::from_millis),
        client_id: fields.number("client-id")?,
    })
}

/// A map of the reply: one in RESP3, a flat array in RESP2.
struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn get(&self, name: &str) -> Result<&Value, Error> {
        self.0
            .as_map_iter()
            .and_then(|mut fields| fields.find(|(field, _)| bytes(field) == Some(name.as_bytes())))
            .map(|(_, value)| value)
            .ok_or_else(|| Error::Protocol(format!("no field `{name}` in {:?}", self.0)))
    }

    fn number(&self, name: &str) -> Result<u64, Error> {
        protocol::number(self.get(name)?)
    }

    fn optional(&self, name: &str) -> Result<Option<u64>, Error> {
        protocol::number_or_nil(self.get(name)?)
    }

    fn text(&self, name: &str) -> Result<String, Error> {
        let text = bytes(self.get(name)?).map(String::from_utf8_lossy);
        text.map(Into::into)
            .ok_or_else(|| Error::Protocol(format!("`{name}` is no text")))
    }

    fn list(&self, name: &str) -> Result<&[Value], Error> {
        let list = self.get(name)?.as_sequence();
        list.ok_or_else(|| Error::Protocol(format!("`{name}` is no list")))
    }

    fn mode(&self) -> Result<Mode, Error> {
        match self.text("mode")?.as_str() {
            "free" => Ok(Mode::Free),
            "exclusive" => Ok(Mode::Exclusive),
            "shared" => Ok(Mode::Shared),
            other => Err(Error::Protocol(format!("unknown mode `{other}`"))),
        }
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
