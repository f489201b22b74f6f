//! The servers that a command uses: their names without passwords, and what
//! their errors mean for the user.

use std::time::Duration;

use rlock_client::probe::{self, Master};
use rlock_client::{Client, ClientBuilder, Error, Quorum, ServerError, Servers};

use crate::failure::{Code, Failure};
use crate::readable::{printable, sentence_duration};

/// How much of the host's name is shown, in characters.
const HOST_MAX: usize = 40;
/// How long a command retries until a server answers.
const RETRY_TIMEOUT: Duration = Duration::from_secs(5);

/// The code of the error if a server needs a password and got none.
const MISSING: &str = "NOAUTH";

const IS_IT_RUNNING: &str = "is it running there, and is the address right? Name another one with \
     --url or RLOCK_URL";
const DO_THEY_KNOW: &str = "do Sentinels run there, and do they know a master of this name that \
     runs? `redis-cli -p 26379 SENTINEL MASTERS` shows their masters";
const DO_NODES_RUN: &str = "do its nodes run there, and does `redis-cli -c CLUSTER INFO` say \
     cluster_state:ok? Name other nodes with --url or RLOCK_URL";
const DO_MEMBERS_RUN: &str = "does a majority of the servers in --quorum run, and can it be \
     reached from here?";
const LOAD_THE_MODULE: &str = "start the server with `redis-server --loadmodule \
     /path/to/librlock.so`, or put `loadmodule /path/to/librlock.so` into its configuration";
const CHECK_CREDENTIALS: &str =
    "put them into the address, as redis://user:password@host:port/, best by RLOCK_URL";
const CHECK_CREDENTIALS_OF_ALL: &str = "put those of the master into the address, as \
     redis+sentinel://user:password@host:port/master, and those of the Sentinels at its end, as \
     ?sentinel_user=user&sentinel_password=password, best by RLOCK_URL";
const CHECK_CREDENTIALS_OF_NODES: &str = "put those of all nodes into the address, as \
     redis+cluster://user:password@host:port, best by RLOCK_URL";
const CHECK_CERTIFICATES: &str = "name the authority that has signed the server's certificate with \
     --cacert FILE, and your own certificate with --cert FILE --key FILE";
const IS_NO_CLUSTER: &str = "it is a server of its own: name it without --cluster, as \
     redis://host:port/";
const IS_A_CLUSTER: &str = "it belongs to a cluster: add --cluster, or name it as \
     redis+cluster://host:port";
const CHECK_REPLICAS: &str = "`INFO replication` of the master shows its replicas; ask for fewer \
     with --replicas";

/// The servers at an address.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Servers(Servers),
    /// The members of a quorum.
    Quorum(Vec<Servers>),
}

/// The servers that a command uses.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) place: Place,
    builder: ClientBuilder,
}

impl Address {
    /// The address `url`: with `sentinel` the addresses of Sentinels and the
    /// name of their master, with `cluster` the addresses of nodes.
    pub(crate) fn new(url: &str, sentinel: Option<&str>, cluster: bool) -> Result<Self, Failure> {
        let servers = match (sentinel, cluster) {
            (Some(_), true) => {
                return Err(Failure::usage(
                    "--sentinel and --cluster exclude each other",
                ));
            }
            (Some(master), false) => Servers::of_sentinels(url, master),
            (None, true) => Servers::of_cluster(url),
            (None, false) => url.parse(),
        };
        let servers = servers.map_err(|error| Failure::unusable(&error))?;
        Ok(Self::at(Place::Servers(servers)))
    }

    /// The members of a quorum.
    pub(crate) fn quorum(urls: &[String]) -> Result<Self, Failure> {
        let members = urls.iter().zip(1..).map(|(url, number)| {
            let unusable =
                |error: Error| Failure::usage(format!("--quorum: server {number}: {error}"));
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

    /// Connects a client for a few questions.
    pub(crate) async fn questioner(&self) -> Result<Client, Failure> {
        self.connect(self.builder.clone().retry_timeout(RETRY_TIMEOUT))
            .await
    }

    /// The same, with this limit for retries.
    pub(crate) async fn questioner_with(&self, retry_timeout: Duration) -> Result<Client, Failure> {
        self.connect(self.builder.clone().retry_timeout(retry_timeout))
            .await
    }

    /// The masters, for questions that are not about locks.
    pub(crate) async fn masters(&self) -> Result<Vec<Master>, Failure> {
        let masters = probe::masters(
            self.builder.clone().retry_timeout(RETRY_TIMEOUT),
            self.servers()?,
        );
        masters.await.map_err(|error| self.failure(&error))
    }

    /// A single server with the same login, such as a replica, for questions
    /// that are not about locks.
    pub(crate) async fn single(&self, host: &str, port: u16) -> Result<Master, Failure> {
        let servers = self.servers()?;
        let one = Servers::One {
            address: servers.at(host, port),
            login: servers.login().clone(),
        };
        let settings = self.builder.clone().retry_timeout(RETRY_TIMEOUT);
        let found = probe::masters(settings, one).await;
        let found = found.map_err(|error| self.failure(&error))?;
        let missing = || Failure::new(Code::Internal, "no server at its own address");
        found.into_iter().next().ok_or_else(missing)
    }

    /// Whether Sentinels or a cluster replace an unreachable master.
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
            Place::Quorum(_) => Err(Failure::usage("--quorum is for exec")),
        }
    }

    /// An error of the lock client, for the user.
    pub(crate) fn failure(&self, error: &Error) -> Failure {
        match error {
            Error::Connect(failure)
            | Error::Unavailable {
                source: Some(failure),
                ..
            } => self.connection(failure),
            Error::Refused(answer) => self.server(answer, answer),
            Error::ModuleMissing => self.module_missing(),
            Error::Unavailable { waited, .. } => self.no_answer(*waited),
            Error::OutOfRange { .. } => Failure::unusable(error),
            Error::Lost(_) => Failure::new(Code::Lost, error.to_string()),
            Error::Closed => Failure::new(Code::Internal, error.to_string()),
            Error::Denied(_) => self.refused(error).with_hint(self.add_rule()),
            Error::NotReplicated { .. } => self.refused(error).with_hint(CHECK_REPLICAS),
            _ => self.refused(error),
        }
    }

    /// What to do about a missing right. The error itself names the rule.
    fn add_rule(&self) -> String {
        let user = printable(self.user());
        format!(
            "the user is {user}: `ACL SETUSER {user} RULE` adds the rule, and so does the user's \
             line in the server's configuration"
        )
    }

    /// The user that logs in, by its name at the server.
    fn user(&self) -> &str {
        let servers = match &self.place {
            Place::Servers(servers) => Some(servers),
            Place::Quorum(members) => members.first(),
        };
        let login = servers.map(|servers| match servers {
            Servers::One { login, .. }
            | Servers::Sentinels { login, .. }
            | Servers::Cluster { login, .. } => login,
        });
        let user = login.and_then(|login| login.user.as_deref());
        user.unwrap_or("default")
    }

    fn unreachable(&self, message: String) -> Failure {
        Failure::new(Code::Unreachable, message).with_hint(self.is_it_running())
    }

    fn refused(&self, error: &Error) -> Failure {
        Failure::new(Code::Refused, format!("{}: {error}", self.words()))
    }

    fn module_missing(&self) -> Failure {
        let message = format!(
            "{} does not have the rlock module, or has one that is too old",
            self.words()
        );
        Failure::new(Code::Unreachable, message).with_hint(LOAD_THE_MODULE)
    }

    /// An error of a connection.
    fn connection(&self, failure: &rlock_client::Failure) -> Failure {
        let reasons = reasons(failure);
        let answers = reasons.iter().filter_map(|reason| match reason {
            rlock_client::Failure::Server(error) => Some(error),
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        let why = match &self.place {
            // The message already has this address.
            Place::Servers(Servers::One { address, .. }) => failure.reason(&address.to_string()),
            Place::Servers(_) | Place::Quorum(_) => failure.to_string(),
        };
        if answers.iter().any(|error| is_about_credentials(error)) {
            let is_missing = answers.iter().any(|error| error.code == MISSING);
            return self.credentials(is_missing, &why);
        }
        if let Some(error) = answers.first().filter(|_| answers.len() == reasons.len()) {
            return self.server(error, &why);
        }
        let message = format!("cannot reach {}: {why}", self.words());
        let is_certificate = |it: &&_| matches!(it, rlock_client::Failure::Certificate(_));
        let hint = match reasons.iter().any(is_certificate) {
            true => CHECK_CERTIFICATES,
            false => self.is_it_running(),
        };
        Failure::new(Code::Unreachable, message).with_hint(hint)
    }

    /// The error reply of a server. `all` names the replies of all servers that
    /// were asked.
    fn server(&self, error: &ServerError, all: &dyn std::fmt::Display) -> Failure {
        if is_about_credentials(error) {
            return self.credentials(error.code == MISSING, all);
        }
        let refused = Failure::new(Code::Refused, format!("{} refused: {all}", self.words()));
        match (&*error.code, &self.place) {
            ("MOVED", _) => refused.with_hint(IS_A_CLUSTER),
            ("NOPERM", _) => refused.with_hint(self.add_rule()),
            ("ERR", Place::Servers(Servers::Cluster { .. })) => refused.with_hint(IS_NO_CLUSTER),
            ("ERR", Place::Servers(Servers::Sentinels { .. })) => refused.with_hint(DO_THEY_KNOW),
            _ => refused,
        }
    }

    fn credentials(&self, is_missing: bool, error: &dyn std::fmt::Display) -> Failure {
        let words = self.words();
        let verb = match is_missing {
            true => "asks for a user and password",
            false => "does not accept the user and password",
        };
        let message = format!("{words} {verb}: {error}");
        Failure::new(Code::Refused, message).with_hint(match &self.place {
            Place::Servers(Servers::One { .. }) => CHECK_CREDENTIALS,
            Place::Servers(Servers::Sentinels { .. }) => CHECK_CREDENTIALS_OF_ALL,
            Place::Servers(Servers::Cluster { .. }) | Place::Quorum(_) => {
                CHECK_CREDENTIALS_OF_NODES
            }
        })
    }

    fn is_it_running(&self) -> &'static str {
        match &self.place {
            Place::Servers(Servers::One { .. }) => IS_IT_RUNNING,
            Place::Servers(Servers::Sentinels { .. }) => DO_THEY_KNOW,
            Place::Servers(Servers::Cluster { .. }) => DO_NODES_RUN,
            Place::Quorum(_) => DO_MEMBERS_RUN,
        }
    }

    /// The servers did not answer within `limit`.
    pub(crate) fn no_answer(&self, limit: Duration) -> Failure {
        let limit = sentence_duration(limit);
        let message = format!("no answer from {} within {limit}", self.words());
        self.unreachable(message)
    }

    /// The master's name in metrics before it was reached. The client uses the
    /// same name later, so that a server has one name.
    pub(crate) fn label(&self) -> String {
        match &self.place {
            Place::Servers(Servers::One { address, .. }) => address.to_string(),
            Place::Servers(Servers::Sentinels { master, .. }) => master.clone(),
            Place::Servers(Servers::Cluster { .. }) | Place::Quorum(_) => self.title(),
        }
    }

    /// The servers, for a title.
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

    /// The servers, for a sentence.
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

/// Why there is no connection: one reason for each server.
fn reasons(failure: &rlock_client::Failure) -> Vec<&rlock_client::Failure> {
    match failure {
        rlock_client::Failure::NoneOf { failures, .. } => {
            failures.iter().flat_map(|(_, it)| reasons(it)).collect()
        }
        rlock_client::Failure::At { failure, .. } => reasons(failure),
        failure => vec![failure],
    }
}

fn is_about_credentials(error: &ServerError) -> bool {
    matches!(&*error.code, MISSING | "WRONGPASS")
}

fn addresses(servers: &[Servers]) -> String {
    let addresses = servers.iter().flat_map(Servers::addresses);
    let addresses: Vec<_> = addresses.map(ToString::to_string).collect();
    addresses.join(",")
}

/// Host and process, so that an operator finds the holder of a lock.
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
    fn options_name_the_kind_of_the_address() {
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
