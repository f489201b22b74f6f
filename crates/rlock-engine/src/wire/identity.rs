//! What a server calls a connection, by which it is asked to close earlier ones.

use crate::wire::resp::{Command, Frame};

/// A connection as its server calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    id: String,
    addr: String,
}

/// Asks the server what it calls the connection.
pub fn question() -> Command {
    let mut command = Command::new("CLIENT");
    command.arg("INFO");
    command
}

/// The reply to [`question`]; `None` where the server may not say.
///
/// None at a Unix socket, too, where all connections have one address: its
/// path, maybe with spaces, and port 0.
pub fn read(reply: &Frame) -> Option<Identity> {
    let info = std::str::from_utf8(reply.as_bytes()?).ok()?;
    let (before, rest) = info.split_once(" addr=")?;
    let (addr, _) = rest.split_once(" laddr=")?;
    let id = before.strip_prefix("id=")?;
    (!addr.ends_with(":0")).then(|| Identity {
        id: id.to_owned(),
        addr: addr.to_owned(),
    })
}

impl Identity {
    /// Has the server close it; answered with the number of those closed, of
    /// which 0 is as good as 1: it is closed already.
    ///
    /// Both number and address must match: after a restart or a fail-over the
    /// number alone may be a stranger's.
    pub fn kill(&self) -> Command {
        let mut command = Command::new("CLIENT");
        command.arg("KILL").arg("ID").arg(&self.id);
        command.arg("ADDR").arg(&self.addr);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(info: &str) -> Option<Identity> {
        read(&Frame::Verbatim(info.into()))
    }

    #[test]
    fn a_connection_is_known_by_its_whole_address() {
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
        assert_eq!(read(&Frame::Nil), None);
    }
}
