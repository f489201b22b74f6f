//! What the replies of a server to the commands of the wire contract say.
//!
//! Knows their form only, not what follows from them.

use redis::Value;
use rlock_engine::engine::claims::Claims;
use rlock_engine::engine::request::{Reply, Request, Undo};
use rlock_engine::error::{Error, Fault};

use crate::wire::failure::failure;
use crate::wire::fields::Fields;

/// What the replies to `request` say, or why one of them has to be asked for
/// again.
pub(crate) fn decode_all(request: &Request, replies: Vec<Value>) -> Result<Reply, Fault> {
    for reply in &replies {
        if let Value::ServerError(error) = reply {
            let fault = Fault::from(failure(error.clone()));
            if matches!(fault, Fault::Moved(_) | Fault::Passing(_)) {
                return Err(fault);
            }
        }
    }
    decode(request, &replies).map_err(Fault::Refused)
}

/// What the replies to `request` say: one, or one for each command.
fn decode(request: &Request, replies: &[Value]) -> Result<Reply, Error> {
    let reply = replies.last().unwrap_or(&Value::Nil);
    match request {
        Request::Acquire { .. } => match reply {
            Value::SimpleString(status) if status == "WAITING" => Ok(Reply::Queued),
            other => fence_or_nil(other),
        },
        Request::Renew { claims, .. } | Request::Downgrade { claims } if claims.is_single() => {
            fence_or_nil(reply)
        }
        Request::Renew { claims, known, .. } => Ok(match is_count_of(claims, reply) {
            true => Reply::Fence(*known),
            false => Reply::Nil,
        }),
        Request::Release { claims, .. } => Ok(match reply {
            Value::Int(_) if !claims.is_single() && !is_count_of(claims, reply) => Reply::Nil,
            Value::Nil => Reply::Nil,
            _ => Reply::Done,
        }),
        Request::Cancel { .. } => number(reply).map(Reply::Count),
        Request::CleanUp { undo, .. } => Ok(match (reply, undo) {
            (Value::ServerError(_), _) => Reply::Refused,
            (_, Undo::Downgrade) => fence_or_nil(reply).unwrap_or(Reply::Done),
            _ => Reply::Done,
        }),
        Request::Downgrade { .. } | Request::ReleaseEach { .. } | Request::Ping => Ok(Reply::Done),
    }
}

fn fence_or_nil(reply: &Value) -> Result<Reply, Error> {
    match reply {
        Value::Nil => Ok(Reply::Nil),
        other => number(other).map(Reply::Fence),
    }
}

/// Whether it is the number of keys.
fn is_count_of(claims: &Claims, reply: &Value) -> bool {
    matches!(reply, Value::Int(held) if usize::try_from(*held) == Ok(claims.count()))
}

/// The reply to [`hello`].
pub(crate) fn is_cluster(reply: &Value) -> Result<bool, Error> {
    Ok(Fields(reply).text("mode")? == "cluster")
}

/// The reply to [`hello`].
pub(crate) fn is_master(reply: &Value) -> bool {
    Fields(reply)
        .text("role")
        .is_ok_and(|role| role == "master")
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
    use std::time::Duration;

    use super::*;
    use rlock_engine::engine::ask::{Ask, Queueing};
    use rlock_engine::engine::owner::Owner;

    fn claims(key: &str) -> Claims {
        Claims::new(Owner::new("o").unwrap(), key.as_bytes(), &[])
    }

    #[test]
    fn replies_to_acquire_are_told_apart() {
        let request = Request::Acquire {
            claims: claims("k"),
            ask: Ask::Exclusive,
            lease: Duration::from_millis(5),
            bound: None,
            queueing: Queueing::Try,
            notify: true,
        };
        let said = |reply: Value| decode(&request, &[reply]);
        assert_eq!(said(Value::Int(3)).unwrap(), Reply::Fence(3));
        assert_eq!(said(Value::Nil).unwrap(), Reply::Nil);
        let waiting = Value::SimpleString("WAITING".into());
        assert_eq!(said(waiting).unwrap(), Reply::Queued);
        assert!(said(Value::Int(-1)).is_err());
        assert!(said(Value::Okay).is_err());
    }
}
