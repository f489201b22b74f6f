//! Which servers a command is about, and how they are called without a password.

use std::time::Duration;

use rlock_client::probe::{self, Master};
use rlock_client::{Client, ClientBuilder, Error, Quorum, Servers};

use crate::failure::{Code, Failure};
use crate::readable::printable;

/// How much of the name of the host is shown.
const HOST_MAX: usize = 40;
/// For how long it is tried again to get an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is at the address.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Servers(Servers),
    /// The members of a quorum.
    Quorum(Vec<Servers>),
}

/// The servers that all commands are about.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) place: Place,
    builder: ClientBuilder,
}

impl Address {
    /// The address `url`, which is that of Sentinels or of a cluster if they
    /// are asked for.
    pub(crate) fn new(url: &str, sentinel: Option<&str>, cluster: bool) -> Result<Self, Failure> {
        let servers = match (sentinel, cluster) {
            (Some(_), true) => return Err(usage("--sentinel and --cluster exclude each other")),
            (Some(master), false) => Servers::of_sentinels(url, master),
            (None, true) => Servers::of_cluster(url),
            (None, false) => url.parse(),
        };
        let servers = servers.map_err(|error| Failure::usage(&error))?;
        Ok(Self::at(Place::Servers(servers)))
    }

    /// The members of a quorum.
    pub(crate) fn quorum(urls: &[String]) -> Result<Self, Failure> {
        let members = urls.iter().zip(1..).map(|(url, number)| {
            let unusable = |error: Error| usage(&format!("--quorum: server {number}: {error}"));
            url.parse().map_err(unusable)
        });
        Ok(Self::at(Place::Quorum(members.collect::<Result<_, _>>()?)))
    }

    fn at(place: Place) -> Self {
        let builder = Client::builder().name(process_name());
        Self { place, builder }
    }

    /// The same, with these certificates.
    #[cfg(feature = "tls-rustls")]
    pub(crate) fn certificates(mut self, certificates: rlock_client::Certificates) -> Self {
        self.builder = self.builder.certificates(certificates);
        self
    }

    /// Connects a client that locks.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        self.connect(self.builder.clone()).await
    }

    /// Connects to the members of a quorum.
    pub(crate) async fn members(&self, members: &[Servers]) -> Result<Quorum, Failure> {
        let quorum = Quorum::builder().members(self.builder.clone());
        let quorum = quorum.connect(members.iter().cloned()).await;
        quorum.map_err(|error| self.failure(&error))
    }

    /// Connects a client that asks, which takes the time of a few questions.
    pub(crate) async fn questioner(&self) -> Result<Client, Failure> {
        self.connect(self.builder.clone().retry_timeout(PATIENCE))
            .await
    }

    /// The same, which does not wait for long for a master that is away.
    pub(crate) async fn impatient(&self, patience: Duration) -> Result<Client, Failure> {
        self.connect(self.builder.clone().retry_timeout(patience))
            .await
    }

    /// The masters, for questions that are not about locks.
    pub(crate) async fn masters(&self) -> Result<Vec<Master>, Failure> {
        let masters = probe::masters(
            self.builder.clone().retry_timeout(PATIENCE),
            self.servers()?,
        );
        masters.await.map_err(|error| self.failure(&error))
    }

    /// Whether somebody replaces a master that is away.
    pub(crate) fn has_fail_over(&self) -> bool {
        !matches!(self.place, Place::Servers(Servers::One { .. }))
    }

    async fn connect(&self, builder: ClientBuilder) -> Result<Client, Failure> {
        let client = builder.connect(self.servers()?).await;
        client.map_err(|error| self.failure(&error))
    }

    fn servers(&self) -> Result<Servers, Failure> {
        match &self.place {
            Place::Servers(servers) => Ok(servers.clone()),
            Place::Quorum(_) => Err(usage("--quorum is for exec")),
        }
    }

    /// An error of the lock client, for the user.
    pub(crate) fn failure(&self, error: &Error) -> Failure {
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
            Place::Servers(Servers::One { address, .. }) => address.to_string(),
            Place::Servers(Servers::Sentinels { master, .. }) => master.clone(),
            Place::Servers(Servers::Cluster { .. }) | Place::Quorum(_) => self.title(),
        }
    }

    /// What is spoken to, for a title.
    pub(crate) fn title(&self) -> String {
        let shown = self.shown();
        match &self.place {
            Place::Servers(Servers::One { .. }) => shown,
            Place::Servers(Servers::Sentinels { master, .. }) => {
                format!("{} at {shown}", printable(master))
            }
            Place::Servers(Servers::Cluster { .. }) => format!("cluster at {shown}"),
            Place::Quorum(_) => format!("quorum of {shown}"),
        }
    }

    /// What is spoken to, in words.
    pub(crate) fn words(&self) -> String {
        let shown = self.shown();
        match &self.place {
            Place::Servers(Servers::One { .. }) => format!("the server at {shown}"),
            Place::Servers(Servers::Sentinels { master, .. }) => {
                let master = printable(master);
                format!("the master {master} of the Sentinels at {shown}")
            }
            Place::Servers(Servers::Cluster { .. }) => format!("the cluster at {shown}"),
            Place::Quorum(_) => format!("the quorum of {shown}"),
        }
    }

    /// Address and database of one server; or all addresses.
    fn shown(&self) -> String {
        match &self.place {
            Place::Servers(Servers::One { address, login }) => {
                format!("{address}/{}", login.database)
            }
            Place::Servers(servers) => addresses(std::slice::from_ref(servers)),
            Place::Quorum(members) => addresses(members),
        }
    }
}

fn addresses(servers: &[Servers]) -> String {
    let addresses = servers.iter().flat_map(Servers::addresses);
    let addresses: Vec<_> = addresses.map(ToString::to_string).collect();
    addresses.join(",")
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

    #[test]
    fn a_password_is_not_shown() {
        for (url, words) in [
            (
                "redis://ann:secret@db.example:7000/3",
                "the server at db.example:7000/3",
            ),
            (
                "redis+sentinel://ann:se@cret@a:1,[::1]/my%20locks/2?sentinel_password=secret",
                "the master my locks of the Sentinels at a:1,[::1]:26379",
            ),
            (
                "rediss+cluster://ann:secret@a,b:7",
                "the cluster at a:6379,b:7",
            ),
        ] {
            assert_eq!(Address::new(url, None, false).unwrap().words(), words);
        }
        for url in ["redis://ann:secret@", "http://ann:secret@host/", "secret"] {
            let failure = Address::new(url, None, false).unwrap_err();
            assert!(!failure.message.contains("secret"), "{failure:?}");
        }
    }

    #[test]
    fn options_say_of_what_kind_the_address_is() {
        let servers = |url, sentinel, cluster| {
            let address = Address::new(url, sentinel, cluster).unwrap();
            address.servers().unwrap().to_string()
        };
        assert_eq!(
            servers("redis://ann:secret@a,b:7/2", Some("my/locks"), false),
            "redis+sentinel://a:26379,b:7/my%2Flocks/2"
        );
        assert_eq!(
            servers("rediss://a,b:7", None, true),
            "rediss+cluster://a:6379,b:7"
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
