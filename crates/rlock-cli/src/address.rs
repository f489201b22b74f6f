//! Where the servers are, and how to call them without their password.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rlock_client::{Client, ClientBuilder, Quorum, redis};

use crate::failure::{Code, Failure};
use crate::readable::printable;

/// How much of the name of the host is shown.
const HOST_MAX: usize = 40;
/// For how long it is tried again to get an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is at the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Server,
    /// Sentinels, who know where this master is.
    Sentinels(String),
    Cluster,
    /// The members of a quorum.
    Quorum,
}

/// The servers that all commands are about.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    url: String,
    builder: ClientBuilder,
    pub(crate) place: Place,
    /// Host, port and database; or all hosts.
    shown: String,
}

impl Address {
    /// The address `url`, which is that of Sentinels or of a cluster if they
    /// are asked for. What is wrong with it is said when it is connected to.
    pub(crate) fn new(url: &str, sentinel: Option<&str>, cluster: bool) -> Result<Self, Failure> {
        let url = match (sentinel, cluster) {
            (Some(_), true) => return Err(usage("--sentinel and --cluster exclude each other")),
            (Some(master), false) => of_sentinels(url, master)?,
            (None, true) => of_kind(url, "cluster")?,
            (None, false) => url.trim().to_owned(),
        };
        let place = place(&url);
        let shown = match &place {
            Place::Server => server(&url),
            Place::Sentinels(_) | Place::Cluster | Place::Quorum => hosts(&url).to_owned(),
        };
        Ok(Self {
            url,
            builder: Client::builder().name(process_name()),
            place,
            shown,
        })
    }

    /// The same, with these certificates.
    #[cfg(feature = "tls-rustls")]
    pub(crate) fn certificates(mut self, certificates: redis::TlsCertificates) -> Self {
        self.builder = self.builder.certificates(certificates);
        self
    }

    /// Connects a client that locks.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        self.connect(self.builder.clone()).await
    }

    /// The members of a quorum, connected to in the way of this address.
    pub(crate) fn of_quorum(&self, urls: &[String]) -> Self {
        let shown: Vec<_> = urls.iter().map(|url| hosts(url)).collect();
        Self {
            place: Place::Quorum,
            shown: shown.join(","),
            ..self.clone()
        }
    }

    /// Connects to them.
    pub(crate) async fn quorum(&self, urls: &[String]) -> Result<Quorum, Failure> {
        let quorum = Quorum::builder().members(self.builder.clone());
        let quorum = quorum.connect(urls).await;
        quorum.map_err(|error| self.failure(&error))
    }

    /// Connects a client that asks, which takes the time of a few questions.
    pub(crate) async fn questioner(&self) -> Result<Client, Failure> {
        self.connect(self.builder.clone().patience(PATIENCE)).await
    }

    /// The same, which does not wait for long for a master that is away.
    pub(crate) async fn impatient(&self, patience: Duration) -> Result<Client, Failure> {
        self.connect(self.builder.clone().patience(patience)).await
    }

    /// The masters, for questions that are not about locks; none of them has
    /// been asked yet.
    pub(crate) async fn masters(&self) -> Result<Vec<redis::Client>, Failure> {
        let masters = self.builder.clone().masters(&self.url).await;
        masters.map_err(|error| self.failure(&error))
    }

    /// Whether somebody replaces a master that is away.
    pub(crate) fn has_fail_over(&self) -> bool {
        matches!(self.place, Place::Sentinels(_) | Place::Cluster)
    }

    async fn connect(&self, builder: ClientBuilder) -> Result<Client, Failure> {
        let client = builder.connect(&self.url).await;
        client.map_err(|error| self.failure(&error))
    }

    /// An error of the lock client, for the user.
    pub(crate) fn failure(&self, error: &rlock_client::Error) -> Failure {
        Failure::client(self, error)
    }

    /// Nothing was heard of it for so long.
    pub(crate) fn silent(&self, limit: Duration) -> Failure {
        let limit = humantime::format_duration(limit);
        let message = format!("no answer from {} within {limit}", self.words());
        Failure::unreachable(&self.place, message)
    }

    /// What a metric calls the master, until it has been reached: as the client
    /// calls it from then on, so that one server has one name.
    pub(crate) fn label(&self) -> String {
        match &self.place {
            Place::Server => self.shown.rsplit_once('/').map_or("", |(it, _)| it).into(),
            Place::Sentinels(master) => master.clone(),
            Place::Cluster | Place::Quorum => self.title(),
        }
    }

    /// What is spoken to, for a title.
    pub(crate) fn title(&self) -> String {
        match &self.place {
            Place::Server => self.shown.clone(),
            Place::Sentinels(master) => format!("{} at {}", printable(master), self.shown),
            Place::Cluster => format!("cluster at {}", self.shown),
            Place::Quorum => format!("quorum of {}", self.shown),
        }
    }

    /// What is spoken to, in words.
    pub(crate) fn words(&self) -> String {
        let shown = &self.shown;
        match &self.place {
            Place::Server => format!("the server at {shown}"),
            Place::Sentinels(master) => {
                let master = printable(master);
                format!("the master {master} of the Sentinels at {shown}")
            }
            Place::Cluster => format!("the cluster at {shown}"),
            Place::Quorum => format!("the quorum of {shown}"),
        }
    }
}

/// Host, port and database of one server; empty if it cannot be read.
fn server(url: &str) -> String {
    redis::Client::open(url).map_or_else(
        |_| String::new(),
        |redis| {
            let info = redis.get_connection_info();
            format!("{}/{}", info.addr(), info.redis_settings().db())
        },
    )
}

fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

fn place(url: &str) -> Place {
    let scheme = scheme(url).to_ascii_lowercase();
    if scheme.ends_with("+cluster") {
        return Place::Cluster;
    }
    if !scheme.ends_with("+sentinel") {
        return Place::Server;
    }
    let (_, path) = split(url);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let master = path.trim_start_matches('/').split('/').next();
    let master = percent_decode_str(master.unwrap_or_default());
    Place::Sentinels(master.decode_utf8_lossy().into_owned())
}

/// What comes before the path, and the rest.
fn split(url: &str) -> (&str, &str) {
    let start = url.find("://").map_or(0, |at| at + "://".len());
    let end = url.get(start..).and_then(|rest| rest.find(['/', '?', '#']));
    url.split_at(end.map_or(url.len(), |end| start + end))
}

/// The hosts and ports, without user and password.
fn hosts(url: &str) -> &str {
    let (authority, _) = split(url);
    let authority = authority.split_once("://").map_or("", |(_, rest)| rest);
    authority.rsplit('@').next().unwrap_or_default()
}

fn of_sentinels(url: &str, master: &str) -> Result<String, Failure> {
    let url = of_kind(url, "sentinel")?;
    let (before, rest) = split(&url);
    let master = utf8_percent_encode(master, NON_ALPHANUMERIC);
    Ok(format!("{before}/{master}{rest}"))
}

/// The same URL of another kind.
fn of_kind(url: &str, kind: &str) -> Result<String, Failure> {
    let url = url.trim();
    let scheme = scheme(url);
    let plain = ["redis", "rediss", "valkey", "valkeys"];
    if !plain.iter().any(|it| scheme.eq_ignore_ascii_case(it)) {
        let message = format!(
            "--{kind} is for an address (--url, RLOCK_URL or REDIS_URL) of redis:// or rediss://"
        );
        return Err(usage(&message));
    }
    let rest = url.get(scheme.len()..).unwrap_or_default();
    Ok(format!("{scheme}+{kind}{rest}"))
}

fn usage(message: &str) -> Failure {
    Failure::new(Code::Usage, message)
}

/// Host and process, by which an operator finds who holds a lock.
fn process_name() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let is_plain =
        |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    let host: String = host.chars().filter(is_plain).take(HOST_MAX).collect();
    format!("{host}:{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str, sentinel: Option<&str>, cluster: bool) -> Address {
        Address::new(url, sentinel, cluster).unwrap()
    }

    #[test]
    fn a_password_is_not_shown() {
        for (url, words) in [
            (
                "redis://ann:secret@db.example:7000/3",
                "the server at db.example:7000/3",
            ),
            (
                "redis+sentinel://ann:se@cret@a:1,[::1]/my%20locks/2?sentinel_password=secret",
                "the master my locks of the Sentinels at a:1,[::1]",
            ),
            ("rediss+cluster://ann:secret@a,b:7", "the cluster at a,b:7"),
        ] {
            assert_eq!(address(url, None, false).words(), words);
        }
        for url in ["redis://ann:secret@", "http://ann:secret@host/", "secret"] {
            let words = address(url, None, false).words();
            assert!(!words.contains("secret"), "{words}");
        }
    }

    #[test]
    fn options_say_of_what_kind_the_address_is() {
        let sentinels = "redis://ann:secret@a,b:7/2?sentinel_user=eve";
        assert_eq!(
            address(sentinels, Some("my/locks"), false).url,
            "redis+sentinel://ann:secret@a,b:7/my%2Flocks/2?sentinel_user=eve"
        );
        assert_eq!(
            address("rediss://a,b:7", None, true).url,
            "rediss+cluster://a,b:7"
        );
        for (url, sentinel, cluster) in [
            ("redis://a", Some("locks"), true),
            ("redis+unix:///a", None, true),
            ("redis+sentinel://a/b", Some("locks"), false),
        ] {
            let failure = Address::new(url, sentinel, cluster).unwrap_err();
            assert_eq!(failure.code, Code::Usage);
        }
    }
}
