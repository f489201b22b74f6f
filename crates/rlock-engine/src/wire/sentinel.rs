//! Which server is the master, as a Redis Sentinel says.
//!
//! In RESP2, too: older Sentinels know nothing else.

use crate::error::Failure;
use crate::wire::resp::{Command, Frame};

/// The master that one Sentinel names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Each fail-over has a number larger than those before it: what was said
    /// with the largest counts. 0 if the Sentinel may not say it.
    pub epoch: u64,
    /// Where the master is.
    pub host: String,
    /// Where the master listens.
    pub port: u16,
}

/// What to ask about the master of that name; [`read`] takes both replies.
pub fn questions(master: &str) -> [Command; 2] {
    ["GET-MASTER-ADDR-BY-NAME", "MASTER"].map(|question| {
        let mut command = Command::new("SENTINEL");
        command.arg(question).arg(master);
        command
    })
}

/// The replies to [`questions`]. The second may be an error: not every user may
/// ask for more than the address.
///
/// # Errors
///
/// [`Failure::Server`] if the Sentinel refuses to answer, [`Failure::Io`] if it
/// knows no such master, [`Failure::Protocol`] for what is no address.
pub fn read(address: &Frame, about: &Frame, master: &str) -> Result<Named, Failure> {
    let (host, port) = match address {
        Frame::Error(error) => return Err(Failure::Server(error.clone())),
        Frame::Nil => {
            let unknown = format!("it knows no master of this name: {master}");
            return Err(Failure::Io(unknown));
        }
        address => match address.as_list() {
            Some([host, port]) => (text(host), text(port).and_then(|port| port.parse().ok())),
            _ => (None, None),
        },
    };
    let no_address = || Failure::Protocol(format!("expected an address, got {address:?}"));
    let epoch = about.field("config-epoch").and_then(text);
    Ok(Named {
        epoch: epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(0),
        host: host.ok_or_else(no_address)?.to_owned(),
        port: port.ok_or_else(no_address)?,
    })
}

fn text(frame: &Frame) -> Option<&str> {
    std::str::from_utf8(frame.as_bytes()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ServerError;

    fn list(words: &[&str]) -> Frame {
        Frame::Array(words.iter().map(|it| Frame::Bulk((*it).into())).collect())
    }

    fn error() -> ServerError {
        ServerError {
            code: "NOPERM".into(),
            message: "no".into(),
        }
    }

    #[test]
    fn a_master_is_named_with_its_epoch_if_the_user_may_see_it() {
        let address = list(&["::1", "6379"]);
        let about = list(&["name", "main", "config-epoch", "7"]);
        let named = |epoch| Named {
            epoch,
            host: "::1".into(),
            port: 6379,
        };
        assert_eq!(read(&address, &about, "main"), Ok(named(7)));
        let denied = Frame::Error(error());
        assert_eq!(read(&address, &denied, "main"), Ok(named(0)));
    }

    #[test]
    fn what_is_no_address_is_a_failure() {
        let read = |address: Frame| read(&address, &Frame::Nil, "main").unwrap_err();
        assert!(matches!(read(Frame::Nil), Failure::Io(_)));
        assert_eq!(read(Frame::Error(error())), Failure::Server(error()));
        for words in [&["::1"][..], &["::1", "99999"], &["::1", "6379", "1"]] {
            assert!(matches!(read(list(words)), Failure::Protocol(_)));
        }
    }
}
