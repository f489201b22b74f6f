//! What a server calls a connection, by which it is asked to close earlier ones.

use redis::Value;
use redis::aio::MultiplexedConnection;

/// A connection as its server calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    id: String,
    addr: String,
}

/// Says what this connection is called, if it has a name.
pub(crate) async fn introduce(connection: &mut MultiplexedConnection, name: Option<&str>) {
    if let Some(name) = name {
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("SETNAME").arg(name);
        // Without the right to it, the owners still have the name.
        let _ = connection.send_packed_command(&cmd).await;
    }
}

/// Asks the server what it calls this connection; `None` where it may not say,
/// and at a Unix socket.
pub(crate) async fn identify(connection: &mut MultiplexedConnection) -> Option<Identity> {
    let info: String = redis::cmd("CLIENT")
        .arg("INFO")
        .query_async(connection)
        .await
        .ok()?;
    identity(&info)
}

/// Reads a line of `CLIENT INFO`. None at a Unix socket, where all connections
/// have one address: its path, maybe with spaces, and port 0.
fn identity(info: &str) -> Option<Identity> {
    let (before, rest) = info.split_once(" addr=")?;
    let (addr, _) = rest.split_once(" laddr=")?;
    let id = before.strip_prefix("id=")?;
    (!addr.ends_with(":0")).then(|| Identity {
        id: id.to_owned(),
        addr: addr.to_owned(),
    })
}

/// Has the server close this client's earlier connections, true if they are.
///
/// Requests that are still on their way there would otherwise be carried out
/// after those of the new connection: an `ACQUIRE` after the clean-up that
/// was to undo it, or a `RENEW` that takes a bound hold back to a connection
/// which is about to end. So it comes before anything is renewed, though the
/// grace of bound holds may begin with it: that is later than counted here,
/// from when the earlier connection was last known to be there.
///
/// Both number and address must match: after a restart or a fail-over the number
/// alone may be a stranger's. One that was made at a Unix socket has no address
/// of its own, so it is not closed, and counts as one that may be open still.
pub(crate) async fn close_earlier(
    connection: &mut MultiplexedConnection,
    earlier: &[Option<Identity>],
) -> bool {
    let mut closed = true;
    for identity in earlier {
        let Some(Identity { id, addr }) = identity else {
            closed = false;
            continue;
        };
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(id).arg("ADDR").arg(addr);
        // 0 is as good as 1: it is closed already.
        let reply = connection.send_packed_command(&kill).await;
        closed &= matches!(reply, Ok(Value::Int(_)));
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_by_its_whole_address() {
        let info =
            |addr: &str| format!("id=7 addr={addr} laddr={addr} fd=8 name= age=0 db=0 resp=3\n");
        for addr in ["127.0.0.1:45216", "[::1]:45210"] {
            let (id, addr) = ("7".to_owned(), addr.to_owned());
            assert_eq!(identity(&info(&addr)), Some(Identity { id, addr }));
        }
        for socket in ["/tmp/a socket:0", "/a=1 addr=2:0"] {
            assert_eq!(identity(&info(socket)), None);
        }
        assert_eq!(identity("id=7"), None);
    }
}
