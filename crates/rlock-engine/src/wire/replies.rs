//! The meaning of a server's replies and messages.
//!
//! This module knows their form, not their consequences.

use crate::engine::claims::{Claims, Name};
use crate::engine::request::{Notice, NoticeKind, Reply, Request, Undo};
use crate::error::{Error, Fault};
use crate::wire::inspect;
use crate::wire::resp::{Command, Frame};

/// Decodes the replies to `request`: one, or one for each of its commands.
///
/// # Errors
///
/// [`Fault::Moved`] and [`Fault::Transient`] if a command must be repeated,
/// [`Fault::Refused`] otherwise.
pub fn decode(request: &Request, replies: &[Frame]) -> Result<Reply, Fault> {
    for reply in replies {
        if let Frame::Error(error) = reply {
            let fault = Fault::from(error.clone());
            if matches!(fault, Fault::Moved(_) | Fault::Transient(_)) {
                return Err(fault);
            }
        }
    }
    match (request, replies.last().unwrap_or(&Frame::Nil)) {
        // The request is always withdrawn.
        (Request::CleanUp { .. }, Frame::Error(_)) => Ok(Reply::Refused),
        // Each key counts separately: some are not locks.
        (Request::ReleaseEach { claims, .. }, _) => released_each(claims, replies),
        (_, Frame::Error(error)) => {
            let claims = request.claims();
            let keys = claims.map_or_else(Vec::new, |claims| claims.keys().collect());
            Err(Fault::of(error.clone(), &keys))
        }
        (_, reply) => read(request, reply).map_err(Fault::Refused),
    }
}

/// Decodes the replies of several releases. The first refusal counts, except for
/// keys that are not locks.
fn released_each(claims: &Claims, replies: &[Frame]) -> Result<Reply, Fault> {
    for (key, reply) in claims.keys().zip(replies) {
        if let Frame::Error(error) = reply
            && error.code != "WRONGTYPE"
        {
            return Err(Fault::of(error.clone(), &[key]));
        }
    }
    Ok(Reply::Done)
}

/// Decodes a reply that is not an error.
fn read(request: &Request, reply: &Frame) -> Result<Reply, Error> {
    match request {
        Request::Acquire { .. } => match reply {
            Frame::Simple(status) if status == "WAITING" => Ok(Reply::Queued),
            other => fence_or_nil(other),
        },
        Request::Renew { claims, .. } | Request::Downgrade { claims } if claims.is_single() => {
            fence_or_nil(reply)
        }
        Request::Renew { claims, known, .. } => Ok(match is_count_of(claims, reply) {
            true => Reply::Fence(*known),
            false => Reply::Nil,
        }),
        Request::CountPermits { claims, fence } => {
            let mut holders = inspect::info(reply)?.holders.into_iter();
            let is_ours = |it: &inspect::Holder| {
                it.owner == claims.owner().as_str() && it.fence == Some(*fence)
            };
            let ours = holders.find(is_ours);
            Ok(ours.map_or(Reply::Nil, |it| Reply::Count(it.permits)))
        }
        Request::Release { claims, .. } | Request::ReleasePermits { claims, .. } => {
            Ok(match reply {
                Frame::Integer(_) if !claims.is_single() && !is_count_of(claims, reply) => {
                    Reply::Nil
                }
                Frame::Nil => Reply::Nil,
                _ => Reply::Done,
            })
        }
        Request::Cancel { .. } => number(reply).map(Reply::Count),
        Request::CleanUp { undo, .. } => Ok(match undo {
            Undo::Downgrade => fence_or_nil(reply).unwrap_or(Reply::Done),
            Undo::Nothing | Undo::Release => Reply::Done,
        }),
        Request::Downgrade { .. } | Request::ReleaseEach { .. } | Request::Ping => Ok(Reply::Done),
    }
}

fn fence_or_nil(reply: &Frame) -> Result<Reply, Error> {
    match reply {
        Frame::Nil => Ok(Reply::Nil),
        other => number(other).map(Reply::Fence),
    }
}

/// Whether the reply is the number of keys.
fn is_count_of(claims: &Claims, reply: &Frame) -> bool {
    matches!(reply, Frame::Integer(held) if usize::try_from(*held) == Ok(claims.count()))
}

/// Whether the server that sent this reply to
/// [`hello`](crate::wire::requests::hello) is a node of a cluster.
///
/// # Errors
///
/// [`Error::Protocol`] if the reply has no mode.
pub fn is_cluster(hello: &Frame) -> Result<bool, Error> {
    let mode = hello.field("mode").and_then(Frame::as_bytes);
    let mode = mode.ok_or_else(|| Error::Protocol(format!("no field `mode` in {hello:?}")))?;
    Ok(mode == b"cluster")
}

/// Whether the server that sent this reply to
/// [`hello`](crate::wire::requests::hello) is a master; false if the reply has
/// no role.
pub fn is_master(hello: &Frame) -> bool {
    let role = hello.field("role").and_then(Frame::as_bytes);
    role == Some(b"master")
}

/// A number that is not negative.
///
/// # Errors
///
/// [`Error::Protocol`] for anything else.
pub fn number(reply: &Frame) -> Result<u64, Error> {
    match reply {
        Frame::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    }
    .ok_or_else(|| Error::Protocol(format!("expected a number, got {reply:?}")))
}

/// Reads `<event> <fence> <owner> <key>` from the connection with that number;
/// `None` for anything else.
pub fn notice(message: &[u8], connection: u64) -> Option<Notice> {
    let (word, rest) = split_word(message)?;
    let (fence, name) = split_word(rest)?;
    let kind = match word {
        b"grant" => NoticeKind::Grant,
        b"timeout" => NoticeKind::WaitEnded,
        b"withdrawn" => NoticeKind::Withdrawn,
        b"lost" => NoticeKind::Lost,
        _ => return None,
    };
    let fence = std::str::from_utf8(fence).ok()?.parse().ok()?;
    Some(Notice {
        kind,
        fence,
        name: Name::new(name),
        connection,
    })
}

/// Reads `<fence> <value>`, or `<fence>` alone when nobody publishes a value any
/// more; `None` for anything else.
pub fn published(message: &[u8]) -> Option<(u64, Option<&[u8]>)> {
    let (fence, value) = match split_word(message) {
        Some((fence, value)) => (fence, Some(value)),
        None => (message, None),
    };
    let fence = std::str::from_utf8(fence).ok()?.parse().ok()?;
    Some((fence, value))
}

fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    Some((text.get(..end)?, text.get(end + 1..)?))
}

/// A connection as its server identifies it; used to ask the server to close it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    id: String,
    addr: String,
    /// Its address, as it is dialled here and as it is there.
    server: String,
}

impl Identity {
    /// Asks the server for the connection's identity.
    pub fn question() -> Command {
        let mut command = Command::new("CLIENT");
        command.arg("INFO");
        command
    }

    /// Reads the reply to [`question`](Self::question); `None` if the user may
    /// not ask.
    ///
    /// Also `None` at a Unix socket, where all connections have the same address:
    /// the socket's path, possibly with spaces, and port 0.
    pub fn read(reply: &Frame, address: &str) -> Option<Self> {
        let info = std::str::from_utf8(reply.as_bytes()?).ok()?;
        let (before, rest) = info.split_once(" addr=")?;
        let (addr, rest) = rest.split_once(" laddr=")?;
        let server = rest.split(' ').next().unwrap_or_default();
        let id = before.strip_prefix("id=")?;
        (!addr.ends_with(":0")).then(|| Self {
            id: id.to_owned(),
            addr: addr.to_owned(),
            server: format!("{address} {server}"),
        })
    }

    /// Whether it is of another server, which says nothing of this connection.
    pub fn is_elsewhere(&self, than: &Self) -> bool {
        self.server != than.server
    }

    /// Asks the server to close it. The reply is the number of closed
    /// connections. 0 is also a success: the connection was already closed.
    ///
    /// Both ID and address must match: after a restart or a failover, another
    /// client may have the same ID.
    pub fn kill(&self) -> Command {
        let mut command = Command::new("CLIENT");
        command.arg("KILL").arg("ID").arg(&self.id);
        command.arg("ADDR").arg(&self.addr);
        command
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::claims::Owner;
    use crate::engine::terms::{Ask, Queueing, Terms};
    use crate::error::ServerError;

    fn claims(keys: &[&str]) -> Claims {
        let rest: Vec<Arc<[u8]>> = keys[1..].iter().map(|key| key.as_bytes().into()).collect();
        Claims::new(Owner::new("o").unwrap(), keys[0].as_bytes(), &rest)
    }

    fn error(code: &str) -> Frame {
        let (code, message) = (code.to_owned(), "1 a:2".to_owned());
        Frame::Error(ServerError { code, message })
    }

    #[test]
    fn replies_to_acquire_are_distinct() {
        let request = Request::Acquire {
            claims: claims(&["k"]),
            ask: Ask::Exclusive,
            terms: Terms::default(),
            queueing: Queueing::Try,
            notify: true,
            value: None,
        };
        let decoded = |reply: Frame| decode(&request, &[reply]);
        assert_eq!(decoded(Frame::Integer(3)).unwrap(), Reply::Fence(3));
        assert_eq!(decoded(Frame::Nil).unwrap(), Reply::Nil);
        let waiting = Frame::Simple("WAITING".into());
        assert_eq!(decoded(waiting).unwrap(), Reply::Queued);
        assert!(decoded(Frame::Integer(-1)).is_err());
        assert!(decoded(Frame::Simple("OK".into())).is_err());
        assert!(matches!(decoded(error("ASK")), Err(Fault::Moved(_))));
        assert!(matches!(
            decoded(error("READONLY")),
            Err(Fault::Transient(_))
        ));
        let denied = decoded(error("NOPERM"));
        assert!(matches!(denied, Err(Fault::Refused(Error::Denied(_)))));
    }

    #[test]
    fn only_transient_errors_of_several_commands_are_retried() {
        let claims = claims(&["a", "b"]);
        let undo = Undo::Release;
        let clean_up = Request::CleanUp {
            claims: claims.clone(),
            undo,
        };
        let decoded = |replies: [Frame; 2]| decode(&clean_up, &replies);
        let one = Frame::Integer(1);
        assert_eq!(decoded([error("ERR"), one.clone()]).unwrap(), Reply::Done);
        let refused = decoded([one.clone(), error("WRONGTYPE")]);
        assert_eq!(refused.unwrap(), Reply::Refused);
        let moved = decoded([error("MOVED"), one.clone()]);
        assert!(matches!(moved, Err(Fault::Moved(_))));
        let fence = None;
        let each = Request::ReleaseEach { claims, fence };
        let done = decode(&each, &[one.clone(), error("WRONGTYPE")]);
        assert_eq!(done.unwrap(), Reply::Done);
        let refused = decode(&each, &[error("NOPERM"), one]);
        assert!(matches!(refused, Err(Fault::Refused(Error::Denied(_)))));
    }

    #[test]
    fn several_keys_are_all_held_or_the_reply_is_nil() {
        let (claims, known) = (claims(&["a", "b"]), 7);
        let renew = Request::Renew {
            claims: claims.clone(),
            terms: Terms::default(),
            known,
            raise: None,
            notify: false,
            value: None,
        };
        let release = Request::Release {
            claims,
            fence: Some(known),
        };
        let decoded = |request, held| decode(request, &[Frame::Integer(held)]).unwrap();
        assert_eq!(decoded(&renew, 2), Reply::Fence(7));
        assert_eq!(decoded(&renew, 1), Reply::Nil);
        assert_eq!(decoded(&release, 2), Reply::Done);
        assert_eq!(decoded(&release, 1), Reply::Nil);
    }

    #[test]
    fn a_server_reports_its_role() {
        let text = |text: &str| Frame::Bulk(text.into());
        let hello = Frame::Map(vec![
            (text("mode"), text("cluster")),
            (text("role"), text("master")),
        ]);
        assert!(is_cluster(&hello).unwrap() && is_master(&hello));
        let hello = Frame::Array(vec![text("mode"), text("standalone")]);
        assert!(!is_cluster(&hello).unwrap() && !is_master(&hello));
        assert!(is_cluster(&Frame::Nil).is_err());
    }

    #[test]
    fn a_key_in_a_notice_may_have_spaces_and_any_bytes() {
        let read = notice(b"grant 17 u:1 a key\xff ", 1).unwrap();
        assert_eq!((read.kind, read.fence), (NoticeKind::Grant, 17));
        assert!(read.name == Name::new(b"u:1 a key\xff "));
    }

    #[test]
    fn a_malformed_notice_is_ignored() {
        for message in [
            &b""[..],
            b"grant",
            b"grant 1",
            b"grant x o k",
            b"grant -1 o k",
            b"won 1 o k",
        ] {
            assert!(notice(message, 1).is_none());
        }
    }

    fn identity(info: &str) -> Option<Identity> {
        Identity::read(&Frame::Verbatim(info.into()), "a:1")
    }

    #[test]
    fn a_connection_is_identified_by_its_whole_address() {
        let info =
            |addr: &str| format!("id=7 addr={addr} laddr={addr} fd=8 name= age=0 db=0 resp=3\n");
        for addr in ["127.0.0.1:45216", "[::1]:45210"] {
            let identity = identity(&info(addr)).unwrap();
            let mut kill = Command::new("CLIENT");
            kill.arg("KILL").arg("ID").arg("7").arg("ADDR").arg(addr);
            assert_eq!(identity.kill(), kill);
        }
        for socket in ["/tmp/a socket:0", "/a=1 addr=2:0"] {
            assert_eq!(identity(&info(socket)), None);
        }
        assert_eq!(identity("id=7"), None);
        assert_eq!(Identity::read(&Frame::Nil, "a:1"), None);
    }
}
