//! The numbers that a server with the module keeps.

use std::collections::BTreeMap;

use redis::{Cmd, InfoDict, Value};

use crate::Error;

/// What every name starts with on the wire.
const PREFIX: &str = "rlock_";

/// The numbers of `INFO rlock` by name, without the prefix `rlock_`.
///
/// Most count something since the server started: `acquires`, `grants`,
/// `handoffs`, `releases`. Names that end with `_usec` or have it before their
/// quantile, such as `wait_usec_p99`, are in microseconds, those with `_ms` in
/// milliseconds. `docs/commands.md` of the module tells of each. A newer module
/// may have more of them.
pub type Counters = BTreeMap<String, u64>;

/// What one master has answered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer<T> {
    /// `host:port`, or the path of a Unix socket; the name of a master that
    /// Sentinels know if there is no connection to it.
    pub address: String,
    /// The answer, or why there is none.
    pub answer: Result<T, Error>,
}

impl<T> Answer<T> {
    /// Reads what each has answered.
    pub(crate) fn all(
        answers: Vec<(String, Result<Value, Error>)>,
        read: impl Fn(&Value) -> Result<T, Error>,
    ) -> Vec<Self> {
        let read = |(address, answer): (_, Result<Value, _>)| Self {
            address,
            answer: answer.and_then(|reply| read(&reply)),
        };
        answers.into_iter().map(read).collect()
    }
}

/// `INFO rlock`.
pub(crate) fn counters() -> Cmd {
    let mut cmd = redis::cmd("INFO");
    cmd.arg("rlock");
    cmd
}

/// The reply to [`counters`]. Without the module it is empty.
pub(crate) fn parse(reply: &Value) -> Result<Counters, Error> {
    let info: InfoDict = redis::from_redis_value_ref(reply)
        .map_err(|error| Error::Protocol(format!("expected the lines of INFO: {error}")))?;
    let numbers = info.keys().filter_map(|field| {
        let name = field.strip_prefix(PREFIX)?;
        Some((name.to_owned(), info.get(field)?))
    });
    let numbers: Counters = numbers.collect();
    match numbers.is_empty() {
        true => Err(Error::ModuleMissing),
        false => Ok(numbers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn numbers_are_read_without_their_prefix() {
        let reply = info("# rlock\r\nrlock_grants:7\r\nrlock_waiters:0\r\nother:1\r\n");
        let expected = [("grants".to_owned(), 7), ("waiters".to_owned(), 0)];
        assert_eq!(parse(&reply).unwrap(), expected.into());
    }

    #[test]
    fn no_number_is_no_module() {
        assert!(matches!(parse(&info("")), Err(Error::ModuleMissing)));
        assert!(matches!(
            parse(&Value::Array(vec![Value::Int(1)])),
            Err(Error::Protocol(_))
        ));
    }
}
