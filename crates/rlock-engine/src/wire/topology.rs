//! The master that a Redis Sentinel names, and the slots that a cluster's
//! servers report.

use crate::engine::node::SLOTS;
use crate::error::{Failure, ServerError};
use crate::wire::resp::{Command, Frame};

/// Stands for the host of a server that prefers host names and has none.
const UNKNOWN: &str = "?";

/// The slots from `first` to `last`, and the address of their server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first slot.
    pub first: u16,
    /// The last one, below [`SLOTS`].
    pub last: u16,
    /// The host of the server.
    pub host: String,
    /// The port of the server.
    pub port: u16,
}

/// Asks which server has which slots.
pub fn slots() -> Command {
    let mut command = Command::new("CLUSTER");
    command.arg("SLOTS");
    command
}

/// Asks for the reliability of the answer to [`slots`].
pub fn info() -> Command {
    let mut command = Command::new("CLUSTER");
    command.arg("INFO");
    command
}

/// The reliability of a server's report about the slots; the largest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reliability {
    /// Whether it serves its slots. A server without contact to a majority does
    /// not serve them, and does not know what the other servers have agreed on.
    pub is_ok: bool,
    /// The largest epoch that it knows.
    pub epoch: u64,
}

/// Reads the reply to [`info`]; missing fields count as the lowest values.
pub fn reliability(reply: &Frame) -> Reliability {
    let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default());
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.fold(Reliability::default(), |reliability, field| match field {
        ("cluster_state", state) => Reliability {
            is_ok: state == "ok",
            ..reliability
        },
        ("cluster_current_epoch", epoch) => Reliability {
            epoch: epoch.parse().unwrap_or(0),
            ..reliability
        },
        _ => reliability,
    })
}

/// Reads the reply to [`slots`] from the server at `asked`, which may omit hosts
/// (see `host`). Ranges that are not understood are left out.
pub fn ranges(reply: &Frame, asked: &str) -> Vec<Range> {
    let ranges = reply.as_list().unwrap_or_default().iter();
    ranges
        .filter_map(|range| Range::read(range, asked))
        .collect()
}

impl Range {
    fn read(range: &Frame, asked: &str) -> Option<Self> {
        let [first, last, master, ..] = range.as_list()? else {
            return None;
        };
        let master = master.as_list()?;
        let [_, port, ..] = master else {
            return None;
        };
        Some(Self {
            first: number(first)?,
            last: number(last)?.min(SLOTS - 1),
            host: host(master, asked)?.to_owned(),
            port: number(port)?,
        })
    }
}

/// The host of a server in a reply to [`slots`] from the server at `asked`.
///
/// Null and an empty host mean `asked`. A server that prefers host names writes
/// `?` if it knows none, and the address as `ip` after the ID.
fn host<'a>(server: &'a [Frame], asked: &'a str) -> Option<&'a str> {
    let is_known = |host: &&str| !matches!(*host, "" | UNKNOWN);
    let host = match server.first()? {
        Frame::Bulk(host) => std::str::from_utf8(host).ok()?,
        _ => "",
    };
    let more = server.get(3).filter(|_| host == UNKNOWN);
    let ip = more.and_then(|more| more.field("ip")).and_then(text);
    let known = Some(host).filter(is_known).or(ip.filter(is_known));
    Some(known.unwrap_or(asked))
}

fn number(value: &Frame) -> Option<u16> {
    match value {
        Frame::Integer(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

/// A server's redirection to another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The slot of the requested key.
    pub slot: u16,
    /// The host of the other server.
    pub host: Host,
    /// The port.
    pub port: u16,
    /// Whether it is for this request only, because the slot is moving there.
    pub is_once: bool,
}

/// The host in a redirection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// This one.
    Named(String),
    /// The host of the server that redirects.
    Same,
    /// The redirecting server does not tell.
    Unknown,
}

/// Reads `MOVED` and `ASK`; `None` for other errors.
pub fn redirect(error: &ServerError) -> Option<Redirect> {
    let is_once = match &*error.code {
        "MOVED" => false,
        "ASK" => true,
        _ => return None,
    };
    let mut words = error.message.split_ascii_whitespace();
    let slot = words.next()?.parse().ok()?;
    let (host, port) = words.next()?.rsplit_once(':')?;
    Some(Redirect {
        slot,
        host: match host {
            "" => Host::Same,
            UNKNOWN => Host::Unknown,
            host => Host::Named(host.to_owned()),
        },
        port: port.parse().ok()?,
        is_once,
    })
}

/// The master that one Sentinel names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The configuration epoch. Each failover has a larger epoch than the
    /// failovers before: the largest counts. None if the Sentinel's user may not
    /// ask for it.
    pub epoch: Option<u64>,
    /// The host of the master.
    pub host: String,
    /// The port of the master.
    pub port: u16,
}

impl Named {
    /// The questions about the master of that name. They also work in RESP2, the
    /// only version that older Sentinels know. [`read`](Self::read) takes both
    /// replies.
    pub fn questions(master: &str) -> [Command; 2] {
        ["GET-MASTER-ADDR-BY-NAME", "MASTER"].map(|question| {
            let mut command = Command::new("SENTINEL");
            command.arg(question).arg(master);
            command
        })
    }

    /// Reads the replies to [`questions`](Self::questions). The second may be an
    /// error: some users may only ask for the address.
    ///
    /// # Errors
    ///
    /// [`Failure::Server`] if the Sentinel refuses to answer, [`Failure::Io`] if
    /// it does not know the master, [`Failure::Protocol`] if the reply is not an
    /// address.
    pub fn read(address: &Frame, about: &Frame, master: &str) -> Result<Self, Failure> {
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
        Ok(Self {
            epoch: epoch.and_then(|epoch| epoch.parse().ok()),
            host: host.ok_or_else(no_address)?.to_owned(),
            port: port.ok_or_else(no_address)?,
        })
    }
}

fn text(frame: &Frame) -> Option<&str> {
    std::str::from_utf8(frame.as_bytes()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ServerError;

    fn bulk(text: &str) -> Frame {
        Frame::Bulk(text.into())
    }

    fn range(first: i64, last: i64, host: Frame) -> Frame {
        range_beside(first, last, host, Frame::Array(Vec::new()))
    }

    fn range_beside(first: i64, last: i64, host: Frame, more: Frame) -> Frame {
        let master = Frame::Array(vec![host, Frame::Integer(7000), bulk("id"), more]);
        Frame::Array(vec![Frame::Integer(first), Frame::Integer(last), master])
    }

    #[test]
    fn an_omitted_host_is_the_asked_server() {
        let reply = Frame::Array(vec![
            range(0, 99, bulk("10.0.0.1")),
            range(100, 200, bulk("")),
            range(201, 20_000, Frame::Nil),
            range(70_000, 80_000, bulk("no slots")),
            range(0, 99, Frame::Bulk(vec![0xff])),
        ]);
        let ranges = ranges(&reply, "asked");
        let read: Vec<_> = ranges
            .iter()
            .map(|it| (it.first, it.last, &*it.host, it.port))
            .collect();
        let expected = [
            (0, 99, "10.0.0.1", 7000),
            (100, 200, "asked", 7000),
            (201, 16_383, "asked", 7000),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn an_unknown_host_name_is_replaced_by_the_address_beside_it() {
        let ip = |ip: &str| Frame::Map(vec![(bulk("ip"), bulk(ip))]);
        let hostname = Frame::Map(vec![(bulk("hostname"), bulk("a.example"))]);
        for (host, more, expected) in [
            (bulk("?"), ip("10.0.0.1"), "10.0.0.1"),
            (bulk("?"), list(&["ip", "fe80::1"]), "fe80::1"),
            (bulk("?"), ip(""), "asked"),
            (bulk("?"), ip("?"), "asked"),
            (bulk("?"), hostname.clone(), "asked"),
            (bulk("?"), Frame::Nil, "asked"),
            (Frame::Nil, ip("10.0.0.1"), "asked"),
            (bulk("a.example"), ip("10.0.0.1"), "a.example"),
            (bulk("10.0.0.1"), hostname, "10.0.0.1"),
        ] {
            let range = range_beside(0, 1, host, more);
            let reply = Frame::Array(vec![range.clone()]);
            let read = ranges(&reply, "asked");
            assert_eq!(read[0].host, expected, "{range:?}");
        }
        let old = [bulk("?"), Frame::Integer(7000)];
        assert_eq!(host(&old, "asked"), Some("asked"));
    }

    #[test]
    fn the_newest_answer_of_a_server_in_service_counts() {
        let read_info = |lines: &str| reliability(&bulk(lines));
        let cut_off = read_info("cluster_state:fail\r\ncluster_current_epoch:9\r\n");
        let before = read_info("cluster_state:ok\r\ncluster_current_epoch:7\r\n");
        let now = read_info("cluster_state:ok\r\ncluster_size:3\r\ncluster_current_epoch:8\r\n");
        assert!(reliability(&Frame::Nil) < cut_off && cut_off < before && before < now);
    }

    #[test]
    fn a_redirect_names_slot_and_address() {
        let error = |text: &str| {
            let (code, message) = text.split_once(' ').unwrap();
            let (code, message) = (code.to_owned(), message.to_owned());
            ServerError { code, message }
        };
        let read = |text| redirect(&error(text)).map(|it| (it.slot, it.host, it.port, it.is_once));
        let host = Host::Named("::1".to_owned());
        assert_eq!(
            read("MOVED 8579 ::1:7001"),
            Some((8579, host.clone(), 7001, false))
        );
        assert_eq!(read("ASK 8579 ::1:7001"), Some((8579, host, 7001, true)));
        let same = Some((8579, Host::Same, 7001, false));
        assert_eq!(read("MOVED 8579 :7001"), same);
        let unknown = Some((8579, Host::Unknown, 7001, false));
        assert_eq!(read("MOVED 8579 ?:7001"), unknown);
        assert_eq!(read("MOVED 8579"), None);
        assert_eq!(read("ERR 8579 a:1"), None);
    }

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
        assert_eq!(Named::read(&address, &about, "main"), Ok(named(Some(7))));
        let denied = Frame::Error(error());
        assert_eq!(Named::read(&address, &denied, "main"), Ok(named(None)));
    }

    #[test]
    fn an_invalid_address_is_a_failure() {
        let read = |address: Frame| Named::read(&address, &Frame::Nil, "main").unwrap_err();
        assert!(matches!(read(Frame::Nil), Failure::Io(_)));
        assert_eq!(read(Frame::Error(error())), Failure::Server(error()));
        for words in [&["::1"][..], &["::1", "99999"], &["::1", "6379", "1"]] {
            assert!(matches!(read(list(words)), Failure::Protocol(_)));
        }
    }
}
