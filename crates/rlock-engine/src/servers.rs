//! The addresses of the servers and the login to them, as parsed from a URL.
//!
//! A URL may contain a password. So errors repeat no part of a URL except the
//! scheme, and a displayed URL has neither user nor password.
//!
//! The parser and the display share this file, because a displayed URL must lead
//! to the same servers. A third of the file is tests.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::Error;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const SCHEMES: &str = "redis://, rediss://, redis+unix://, redis+sentinel://, \
     rediss+sentinel://, redis+cluster:// or rediss+cluster://";
const OF_SERVER: &str = "redis://[user:password@]host[:port][/database]";
const OF_SENTINELS: &str = "redis+sentinel://[user:password@]host[:port][,…]/master[/database]\
     [?sentinel_user=user&sentinel_password=password]";
const OF_CLUSTER: &str = "redis+cluster://[user:password@]host[:port][,…]";
const OF_SOCKET: &str = "redis+unix:///path[?db=database&user=user&pass=password]";
const OF_USER: &str = "user:password@host, user:@host if the user has none, or \
     :password@host for a password alone";
const OF_SOCKET_USER: &str = "?user=user&pass=password, or ?pass=password for a password alone";
const OF_SENTINEL_USER: &str = "sentinel_user and sentinel_password, or sentinel_password alone";
const HOSTS: &str = "host[:port][,host[:port]…] after the last @, with / ? and # \
     in a password written as %2F, %3F and %23";

/// The characters that need no escape in a path or in the name of a master.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');
const ESCAPED_IN_PATH: &AsciiSet = &ESCAPED.remove(b'/');

/// The address of one server.
///
/// Displayed as `host:port`, or as the path of a socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A port of a host.
    Tcp {
        /// A name or an IP address, without brackets.
        host: String,
        /// The port.
        port: u16,
        /// The encryption; `None` for none.
        tls: Option<Tls>,
    },
    /// A Unix socket.
    Unix {
        /// The path of the socket.
        path: PathBuf,
    },
}

/// The encryption of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tls {
    /// Whether any certificate of the server is accepted, so that the server's
    /// identity is unknown: `#insecure` in a URL.
    pub insecure: bool,
}

/// The client's user and password at a server, and its database there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The user; `None` for the default user.
    pub user: Option<String>,
    /// The password; without one the client does not authenticate. A user needs
    /// one, which is empty if the server accepts any (`nopass`).
    pub password: Option<Password>,
    /// The number of the database.
    pub database: u32,
}

impl Login {
    /// Without a password the client would log in as another user.
    fn check(&self, argument: &'static str) -> Result<(), Error> {
        if self.user.is_none() || self.password.is_some() {
            return Ok(());
        }
        let limit = "with one, which is empty if the user has none";
        Err(out_of_range(
            argument,
            "of a user without a password",
            limit,
        ))
    }

    /// The login of a URL, which must have this form.
    fn read(
        user: Option<String>,
        password: Option<String>,
        form: &'static str,
    ) -> Result<Self, Error> {
        if user.is_some() && password.is_none() {
            return Err(out_of_range("url", "of a user without a password", form));
        }
        Ok(Self {
            user,
            password: password.map(Password),
            database: 0,
        })
    }
}

/// A password; it is never displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Makes a password of this text.
    pub fn new(password: impl Into<String>) -> Self {
        Self(password.into())
    }

    /// The password itself, for the server only.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// The kind and the addresses of the servers, and the login to them.
///
/// Displayed as a URL without user and password. The URL leads to the same
/// servers if all of them use TLS, or none.
///
/// # Examples
///
/// ```
/// use rlock_engine::servers::Servers;
///
/// let servers: Servers = "rediss+sentinel://ann:secret@a,b:7/locks/2".parse()?;
/// assert_eq!(servers.to_string(), "rediss+sentinel://a:26379,b:7/locks/2");
/// # Ok::<_, rlock_engine::error::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    One {
        /// Its address.
        address: Address,
        /// The login to it.
        login: Login,
    },
    /// A master that Sentinels know.
    Sentinels {
        /// The addresses of the Sentinels.
        sentinels: Vec<Address>,
        /// The login to the Sentinels.
        sentinel_login: Login,
        /// The Sentinels' name for the master.
        master: String,
        /// The encryption of connections to the master.
        tls: Option<Tls>,
        /// The login to the master.
        login: Login,
    },
    /// A cluster.
    Cluster {
        /// The nodes to ask for the other nodes. All connections use the TLS of
        /// the first one.
        nodes: Vec<Address>,
        /// The login to all nodes.
        login: Login,
    },
}

impl Address {
    /// The host; `None` for a Unix socket.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Tcp { host, .. } => Some(host),
            Self::Unix { .. } => None,
        }
    }

    /// The encryption of connections to it.
    #[must_use]
    pub fn tls(&self) -> Option<Tls> {
        match self {
            Self::Tcp { tls, .. } => *tls,
            Self::Unix { .. } => None,
        }
    }

    /// Parses a host and an optional port.
    fn read(text: &str, default: u16, tls: Option<Tls>) -> Option<Self> {
        let is_out_of_place =
            |letter: char| letter.is_control() || " #/:<>?@[\\]^|".contains(letter);
        let (host, port) = match text.strip_prefix('[') {
            Some(text) => {
                let (host, port) = text.split_once(']')?;
                let host: Ipv6Addr = host.parse().ok()?;
                (host.to_string(), port)
            }
            None => {
                let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                if host.is_empty() || host.contains(is_out_of_place) {
                    return None;
                }
                (host.to_owned(), port)
            }
        };
        let port = match port.strip_prefix(':') {
            None if !port.is_empty() => return None,
            None | Some("") => default,
            Some(port) if port.bytes().all(|digit| digit.is_ascii_digit()) => port.parse().ok()?,
            Some(_) => return None,
        };
        Some(Self::Tcp { host, port, tls })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix { path } => path.display().fmt(f),
        }
    }
}

impl Servers {
    /// The master that the Sentinels at `url` call `master`.
    ///
    /// `url` has the scheme of a single server:
    /// `redis://host[:port][,…][/database]`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a `url` that is invalid or has another scheme.
    pub fn of_sentinels(url: &str, master: &str) -> Result<Self, Error> {
        let url = Url::of_plain_scheme(url)?;
        url.sentinels(master, url.path)
    }

    /// The cluster with nodes at `url`.
    ///
    /// `url` has the scheme of a single server: `redis://host[:port][,…]`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a `url` that is invalid or has another scheme.
    pub fn of_cluster(url: &str) -> Result<Self, Error> {
        Url::of_plain_scheme(url)?.cluster()
    }

    /// The configured addresses of the server, the Sentinels, or some nodes of
    /// the cluster.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        match self {
            Self::One { address, .. } => std::slice::from_ref(address),
            Self::Sentinels { sentinels, .. } => sentinels,
            Self::Cluster { nodes, .. } => nodes,
        }
    }

    /// The login to the servers that have the locks.
    #[must_use]
    pub fn login(&self) -> &Login {
        match self {
            Self::One { login, .. }
            | Self::Sentinels { login, .. }
            | Self::Cluster { login, .. } => login,
        }
    }

    /// The encryption of connections to the servers that have the locks.
    #[must_use]
    pub fn tls(&self) -> Option<Tls> {
        match self {
            Self::One { address, .. } => address.tls(),
            Self::Sentinels { tls, .. } => *tls,
            Self::Cluster { nodes, .. } => nodes.first().and_then(Address::tls),
        }
    }

    /// The address of a server that Sentinels or nodes have named.
    #[must_use]
    pub fn at(&self, host: impl Into<String>, port: u16) -> Address {
        Address::Tcp {
            host: host.into(),
            port,
            tls: self.tls(),
        }
    }

    /// The same servers with another login. The login to Sentinels stays the
    /// same.
    #[must_use]
    pub fn with_login(mut self, new: Login) -> Self {
        match &mut self {
            Self::One { login, .. }
            | Self::Sentinels { login, .. }
            | Self::Cluster { login, .. } => {
                *login = new;
            }
        }
        self
    }

    /// The same servers, all with this encryption, including Sentinels. A Unix
    /// socket has none.
    #[must_use]
    pub fn with_tls(mut self, new: Option<Tls>) -> Self {
        let addresses = match &mut self {
            Self::One { address, .. } => std::slice::from_mut(address),
            Self::Sentinels { sentinels, tls, .. } => {
                *tls = new;
                sentinels
            }
            Self::Cluster { nodes, .. } => nodes,
        };
        for address in addresses {
            if let Address::Tcp { tls, .. } = address {
                *tls = new;
            }
        }
        self
    }

    /// Checks that a client can connect to them. Servers from a URL always pass.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for an empty list of addresses, for a master without
    /// a name, for a user without a password, and for a cluster with a Unix socket
    /// or a database other than 0.
    pub fn check(&self) -> Result<(), Error> {
        self.login().check("login")?;
        if let Self::Sentinels { sentinel_login, .. } = self {
            sentinel_login.check("sentinel_login")?;
        }
        match self {
            Self::Sentinels { sentinels, .. } if sentinels.is_empty() => {
                Err(out_of_range("sentinels", "empty", "at least one"))
            }
            Self::Sentinels { master, .. } if master.is_empty() => Err(out_of_range(
                "master",
                "empty",
                "what the Sentinels call it",
            )),
            Self::Cluster { nodes, .. } if nodes.is_empty() => {
                Err(out_of_range("nodes", "empty", "at least one"))
            }
            Self::Cluster { nodes, .. } if nodes.iter().any(|node| node.host().is_none()) => {
                Err(out_of_range("nodes", "a Unix socket", "addresses over TCP"))
            }
            Self::Cluster { login, .. } if login.database != 0 => {
                let value = format!("database {}", login.database);
                Err(out_of_range("nodes", &value, "database 0 of a cluster"))
            }
            Self::One { .. } | Self::Sentinels { .. } | Self::Cluster { .. } => Ok(()),
        }
    }
}

impl FromStr for Servers {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let url = Url::new(url)?;
        match url.kind {
            Kind::Server => url.server(),
            Kind::Socket => url.socket(),
            Kind::Sentinels => url.sentinels_and_master(),
            Kind::Cluster => url.cluster(),
        }
    }
}

impl TryFrom<&str> for Servers {
    type Error = Error;

    fn try_from(url: &str) -> Result<Self, Error> {
        url.parse()
    }
}

impl TryFrom<&String> for Servers {
    type Error = Error;

    fn try_from(url: &String) -> Result<Self, Error> {
        url.parse()
    }
}

impl TryFrom<String> for Servers {
    type Error = Error;

    fn try_from(url: String) -> Result<Self, Error> {
        url.parse()
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.login().database;
        if let Self::One {
            address: Address::Unix { path },
            ..
        } = self
        {
            let path = path.to_string_lossy();
            write!(
                f,
                "redis+unix://{}",
                utf8_percent_encode(&path, ESCAPED_IN_PATH)
            )?;
            return if database == 0 {
                Ok(())
            } else {
                write!(f, "?db={database}")
            };
        }
        f.write_str(if self.tls().is_some() {
            "rediss"
        } else {
            "redis"
        })?;
        f.write_str(match self {
            Self::One { .. } => "://",
            Self::Sentinels { .. } => "+sentinel://",
            Self::Cluster { .. } => "+cluster://",
        })?;
        for (address, number) in self.addresses().iter().zip(0..) {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{address}")?;
        }
        if let Self::Sentinels { master, .. } = self {
            write!(f, "/{}", utf8_percent_encode(master, ESCAPED))?;
        }
        if database != 0 {
            write!(f, "/{database}")?;
        }
        f.write_str(if self.tls().is_some_and(|tls| tls.insecure) {
            "#insecure"
        } else {
            ""
        })
    }
}

/// The kind of servers in a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Server,
    /// A server at a Unix socket.
    Socket,
    Sentinels,
    Cluster,
}

/// The parts of a URL, not decoded.
struct Url<'a> {
    scheme: String,
    kind: Kind,
    tls: Option<Tls>,
    /// The part before the `@`.
    user: &'a str,
    hosts: &'a str,
    /// With its leading `/`.
    path: &'a str,
    query: &'a str,
}

impl<'a> Url<'a> {
    fn new(url: &'a str) -> Result<Self, Error> {
        let (scheme, rest) = url.trim().split_once(':').unwrap_or_default();
        let scheme = scheme.to_ascii_lowercase();
        let (transport, suffix) = scheme.split_once('+').unwrap_or((&scheme, ""));
        let Some(kind) = kind(transport, suffix) else {
            return Err(unknown(&scheme, rest.starts_with("//")));
        };
        let (rest, fragment) = split(rest, '#');
        let (rest, query) = split(rest, '?');
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let tls = match (transport, fragment) {
            ("rediss" | "valkeys", None) => Some(Tls { insecure: false }),
            ("rediss" | "valkeys", Some("insecure")) => Some(Tls { insecure: true }),
            ("rediss" | "valkeys", Some(_)) => {
                let limit = "without one or with #insecure; # in a password is written as %23";
                return Err(out_of_range(
                    "url",
                    "with another fragment than #insecure",
                    limit,
                ));
            }
            (_, None) => None,
            (_, Some(_)) => {
                let limit =
                    "without one, as #insecure is for TLS; # in a password is written as %23";
                return Err(out_of_range("url", "with a fragment", limit));
            }
        };
        Ok(Self {
            kind,
            tls,
            user,
            hosts,
            path,
            query: query.unwrap_or_default(),
            scheme,
        })
    }

    /// Parses a URL with the scheme of a single server.
    fn of_plain_scheme(url: &'a str) -> Result<Self, Error> {
        let url = Self::new(url)?;
        if url.kind == Kind::Server {
            return Ok(url);
        }
        let value = format!("of the scheme {}://", url.scheme);
        Err(out_of_range("url", &value, "redis:// or rediss://"))
    }

    fn server(&self) -> Result<Servers, Error> {
        let [] = self.parameters([], OF_SERVER)?;
        let mut addresses = self.addresses(PORT)?;
        match (addresses.pop(), addresses.is_empty()) {
            (Some(address), true) => Ok(Servers::One {
                address,
                login: self.login(self.path)?,
            }),
            _ => Err(out_of_range(
                "url",
                "of several hosts",
                "redis+sentinel:// or redis+cluster:// then",
            )),
        }
    }

    fn socket(&self) -> Result<Servers, Error> {
        let is_here = self.user.is_empty() && matches!(self.hosts, "" | "localhost");
        if !is_here || !self.path.starts_with('/') {
            return Err(out_of_range(
                "url",
                "without the path of a socket",
                OF_SOCKET,
            ));
        }
        let path = PathBuf::from(decoded(self.path)?);
        let names = ["db", "user", "pass"];
        let [database, user, password] = self.parameters(names, OF_SOCKET)?;
        // A query is a form, where a plus stands for a space.
        let field = |text: Option<&str>| text.map(|text| decoded(&text.replace('+', " ")));
        let (user, password) = (field(user).transpose()?, field(password).transpose()?);
        let login = Login {
            database: database.map_or(Ok(0), number)?,
            ..Login::read(user, password, OF_SOCKET_USER)?
        };
        let address = Address::Unix { path };
        Ok(Servers::One { address, login })
    }

    fn sentinels_and_master(&self) -> Result<Servers, Error> {
        let path = self.path.strip_prefix('/').unwrap_or_default();
        let (master, database) = path.split_once('/').unwrap_or((path, ""));
        if master.is_empty() {
            return Err(out_of_range("url", "without a master", OF_SENTINELS));
        }
        self.sentinels(&decoded(master)?, database)
    }

    fn sentinels(&self, master: &str, database: &str) -> Result<Servers, Error> {
        let names = ["sentinel_user", "sentinel_password"];
        let [user, password] = self.parameters(names, OF_SENTINELS)?;
        let decoded = |text: Option<&str>| text.map(decoded).transpose();
        let (user, password) = (decoded(user)?, decoded(password)?);
        let servers = Servers::Sentinels {
            sentinels: self.addresses(SENTINEL_PORT)?,
            sentinel_login: Login::read(user, password, OF_SENTINEL_USER)?,
            master: master.to_owned(),
            tls: self.tls,
            login: self.login(database)?,
        };
        servers.check()?;
        Ok(servers)
    }

    fn cluster(&self) -> Result<Servers, Error> {
        let [] = self.parameters([], OF_CLUSTER)?;
        let servers = Servers::Cluster {
            nodes: self.addresses(PORT)?,
            login: self.login(self.path)?,
        };
        servers.check()?;
        Ok(servers)
    }

    fn addresses(&self, port: u16) -> Result<Vec<Address>, Error> {
        let hosts = self.hosts.split(',').map(str::trim).zip(1..);
        let addresses = hosts.map(|(host, number)| {
            if host.is_empty() || host.starts_with(':') {
                let value = format!("empty where host {number} should be");
                return Err(out_of_range("url", &value, HOSTS));
            }
            let Some(address) = Address::read(host, port, self.tls) else {
                let value = format!("malformed at host {number}");
                return Err(out_of_range("url", &value, HOSTS));
            };
            if matches!(address.host(), Some("0.0.0.0" | "::")) {
                let value = format!("a wildcard at host {number}");
                return Err(out_of_range("url", &value, "the address of one machine"));
            }
            Ok(address)
        });
        addresses.collect()
    }

    /// The user and password before the hosts, and the database in the path.
    fn login(&self, path: &str) -> Result<Login, Error> {
        let (user, password) = split(self.user, ':');
        let user = Some(user).filter(|user| !user.is_empty());
        let password = password.filter(|password| user.is_some() || !password.is_empty());
        let user = user.map(decoded).transpose()?;
        let password = password.map(decoded).transpose()?;
        Ok(Login {
            database: database(path.trim_matches('/'))?,
            ..Login::read(user, password, OF_USER)?
        })
    }

    /// The values of the parameters `names` of a URL of this form, each at most
    /// once. The protocol is always RESP3, and may be named.
    fn parameters<const N: usize>(
        &self,
        names: [&str; N],
        form: &'static str,
    ) -> Result<[Option<&'a str>; N], Error> {
        let mut values = [None; N];
        let mut names_protocol = false;
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if name == "protocol" {
                if !matches!(value, "3" | "resp3") {
                    return Err(out_of_range("url", "of another protocol", "protocol=3"));
                }
                if std::mem::replace(&mut names_protocol, true) {
                    return Err(out_of_range("url", "with a parameter twice", form));
                }
                continue;
            }
            let place = names.iter().position(|known| *known == name);
            match place.and_then(|place| values.get_mut(place)) {
                Some(unset @ None) => *unset = Some(value),
                Some(Some(_)) => return Err(out_of_range("url", "with a parameter twice", form)),
                None => return Err(out_of_range("url", "with an unknown parameter", form)),
            }
        }
        Ok(values)
    }
}

fn kind(transport: &str, suffix: &str) -> Option<Kind> {
    match (transport, suffix) {
        ("redis" | "valkey", "unix") | ("unix", "") => Some(Kind::Socket),
        ("redis" | "rediss" | "valkey" | "valkeys", suffix) => match suffix {
            "" => Some(Kind::Server),
            "sentinel" => Some(Kind::Sentinels),
            "cluster" => Some(Kind::Cluster),
            _ => None,
        },
        _ => None,
    }
}

/// Repeats the scheme only if it is well-formed: otherwise it may be a
/// password.
fn unknown(scheme: &str, has_authority: bool) -> Error {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    if !has_authority || scheme.is_empty() || !scheme.chars().all(is_plain) {
        return out_of_range("url", "without a scheme", SCHEMES);
    }
    let value = format!("of the unknown scheme {scheme}://");
    out_of_range("url", &value, SCHEMES)
}

/// The parts before and after the first `mark`.
fn split(text: &str, mark: char) -> (&str, Option<&str>) {
    match text.split_once(mark) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn decoded(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| out_of_range("url", "not UTF-8 when decoded", "UTF-8"));
    decoded.map(|decoded| decoded.into_owned())
}

/// The database in a path; 0 if the path names none.
fn database(path: &str) -> Result<u32, Error> {
    match path {
        "" => Ok(0),
        path => number(path),
    }
}

/// The number of a database.
fn number(text: &str) -> Result<u32, Error> {
    let limit = "of a database by its number";
    let unknown = |_| out_of_range("url", "of an unknown database", limit);
    text.parse().map_err(unknown)
}

fn out_of_range(argument: &'static str, value: &str, limit: &'static str) -> Error {
    Error::OutOfRange {
        argument,
        value: value.to_owned(),
        limit: limit.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use proptest::prelude::*;
    use redis::ConnectionAddr;

    use super::*;

    fn read(url: &str) -> Servers {
        let read = url.parse();
        read.unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    /// The servers that the `redis` crate reads from a URL of a single server.
    fn as_redis_reads(url: &str) -> Option<Servers> {
        let redis = redis::Client::open(url).ok()?;
        let info = redis.get_connection_info();
        let address = match info.addr().clone() {
            ConnectionAddr::Tcp(host, port) => Address::Tcp {
                host,
                port,
                tls: None,
            },
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                ..
            } => Address::Tcp {
                host,
                port,
                tls: Some(Tls { insecure }),
            },
            ConnectionAddr::Unix(path) => Address::Unix { path },
            other => panic!("{other:?}"),
        };
        let settings = info.redis_settings();
        let login = Login {
            user: settings.username().map(str::to_owned),
            password: settings.password().map(Password::new),
            database: settings.db().try_into().ok()?,
        };
        Some(Servers::One { address, login })
    }

    #[test]
    fn one_server_is_read_as_the_redis_crate_reads_it() {
        for url in [
            "redis://a",
            "redis://a/",
            "redis://a:7",
            "redis://a:/",
            "redis://A.example:7/2",
            "redis://a/2/",
            "redis://a//2",
            "redis://127.0.0.1:7",
            "redis://127.1",
            "redis://[::1]",
            "redis://[::1]:7/2",
            "redis://[0:0::ABCD]:7",
            "redis://ann:secret@a:7/2",
            "redis://ann:secret@[::1]:7/2",
            "redis://:secret@a",
            "redis://:@a",
            "redis://@a",
            "redis://ann:p%40ss%3Aw%2Frd%3F@a",
            "redis://a%6en:p@ss:w,rd+&=%C3%A9@a",
            "redis://ann:pässword@a",
            "redis://a?protocol=resp3",
            "redis://a/2?&protocol=3",
            "rediss://a",
            "rediss://ann:secret@a:7/2",
            "rediss://a/#insecure",
            "rediss://[::1]:7/2?protocol=resp3#insecure",
            "valkey://ann:secret@a:7/2",
            "valkeys://a",
            "valkeys://a#insecure",
            "REDIS://a",
            "RedisS://a",
            " redis://a ",
            "redis+unix:///a/b",
            "redis+unix:///a%20b%2Fc?db=2",
            "valkey+unix:///a?db=2&user=ann&pass=se%26cret",
            "unix:///a",
            "unix:/a",
            "unix:////a//b",
            "unix://localhost/a",
            "unix:///a/?user=a+b&pass=a%2Bb&protocol=resp3",
            "Redis+Unix:///a",
        ] {
            assert_eq!(as_redis_reads(url), Some(read(url)), "{url}");
        }
    }

    #[test]
    fn nothing_in_a_url_is_ignored() {
        for (url, words) in [
            ("redis://a?db=2", "host[:port][/database]"),
            ("redis://a/2?timeout=3", "unknown parameter"),
            ("rediss://a?db", "unknown parameter"),
            ("redis://a?protocol=2", "another protocol"),
            ("redis://a?protocol", "another protocol"),
            ("redis://a#insecure", "without one, as #insecure is for TLS"),
            ("redis://a/2#", "with a fragment"),
            ("redis+cluster://a#x", "with a fragment"),
            ("redis+cluster://a/0?db=0", "unknown parameter"),
            ("redis+sentinel://a/locks#x", "with a fragment"),
            ("redis+sentinel://a/locks?db=2", "unknown parameter"),
            ("unix:///a#x", "with a fragment"),
            ("unix:///a?database=2", "unknown parameter"),
            ("unix:///a?db=1&db=2", "a parameter twice"),
            ("redis://a?protocol=3&protocol=3", "a parameter twice"),
            ("unix:///a?db=", "of an unknown database"),
            ("redis://ann@a", "a user without a password"),
            ("redis+cluster://ann@a", "a user without a password"),
            ("redis+sentinel://ann@a/b", "a user without a password"),
            ("unix:///a?user=ann", "a user without a password"),
        ] {
            let error = url.parse::<Servers>().unwrap_err().to_string();
            assert!(error.contains(words), "{url}: {error}");
        }
    }

    #[test]
    fn a_user_may_have_an_empty_password() {
        for url in [
            "redis://ann:@a",
            "redis+cluster://ann:@a",
            "redis+sentinel://ann:@a/b",
            "unix:///a?user=ann&pass=",
        ] {
            assert_eq!(read(url).login(), &login("ann", "", 0), "{url}");
        }
        let Servers::Sentinels { sentinel_login, .. } =
            read("redis+sentinel://a/b?sentinel_user=ann&sentinel_password=")
        else {
            panic!("no Sentinels");
        };
        assert_eq!(sentinel_login, login("ann", "", 0));
    }

    #[test]
    fn url_refused_by_the_redis_crate_is_refused() {
        for url in [
            "",
            "redis",
            "redis://",
            "redis:///2",
            "redis://:7",
            "redis://ann@",
            "redis://a b",
            "redis://a:x",
            "redis://a:+7",
            "redis://a:65536",
            "redis://[::1",
            "redis://[]",
            "redis://[::1]7",
            "redis://[a]",
            "redis://::1",
            "redis://a^b",
            "redis://0.0.0.0",
            "redis://[::]:7",
            "redis://a/x",
            "redis://a/2/3",
            "redis://a/%32",
            "redis://%ff@a",
            "redis://:%ff@a",
            "rediss://a#",
            "rediss://a#other",
            "unix:a",
            "unix://a/b",
            "unix://ann@/a",
            "unix:///a?db=x",
            "http://a",
            "rediss+unix:///a",
        ] {
            assert_eq!(as_redis_reads(url), None, "{url}");
            assert!(url.parse::<Servers>().is_err(), "{url}");
        }
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp {
            host: host.to_owned(),
            port,
            tls: None,
        }
    }

    fn login(user: &str, password: &str, database: u32) -> Login {
        Login {
            user: Some(user.to_owned()),
            password: Some(Password::new(password)),
            database,
        }
    }

    #[test]
    fn one_url_leads_to_all_servers() {
        let nodes = vec![tcp("a", 6379)];
        let login_of_none = Login::default();
        let cluster = Servers::Cluster {
            nodes,
            login: login_of_none.clone(),
        };
        assert_eq!(read("redis+cluster://a"), cluster);
        assert_eq!(read("valkey+cluster://a/0/?protocol=3"), cluster);
        assert_eq!(Servers::of_cluster(" Redis://a ").unwrap(), cluster);
        assert_eq!(
            read(" REDIS+Cluster://ann:p%40ss,w@rd@a:7, [::1]:8,b/0"),
            Servers::Cluster {
                nodes: vec![tcp("a", 7), tcp("::1", 8), tcp("b", 6379)],
                login: login("ann", "p@ss,w@rd", 0),
            }
        );
        let sentinels = |sentinel_login, master: &str| Servers::Sentinels {
            sentinels: vec![tcp("a", 26379), tcp("::1", 26379), tcp("b", 7)],
            sentinel_login,
            master: master.to_owned(),
            tls: None,
            login: login("ann", "secret", 2),
        };
        assert_eq!(
            read("redis+sentinel://ann:secret@a,[::1],b:7/locks/2?protocol=resp3"),
            sentinels(login_of_none, "locks")
        );
        let query = "sentinel_user=ev%65&sentinel_password=s+%20&protocol=3";
        let url = format!("valkey+sentinel://ann:secret@a,[::1],b:7/my%2Flocks/2?{query}");
        let of_eve = sentinels(login("eve", "s+ ", 0), "my/locks");
        assert_eq!(read(&url), of_eve);
        let url = format!("valkey://ann:secret@a,[::1],b:7/2?{query}");
        assert_eq!(Servers::of_sentinels(&url, "my/locks").unwrap(), of_eve);
    }

    #[test]
    fn with_tls_all_servers_have_it() {
        for (url, insecure) in [
            ("rediss+sentinel://a/locks#insecure", true),
            ("valkeys+sentinel://a,b/locks", false),
            ("valkeys+cluster://a,[::1]:7", false),
            ("Rediss+Cluster://a,b#insecure", true),
        ] {
            let (servers, tls) = (read(url), Some(Tls { insecure }));
            assert!(servers.addresses().iter().all(|it| it.tls() == tls));
            assert_eq!((servers.tls(), servers.at("c", 7).tls()), (tls, tls));
            let plain = servers.clone().with_tls(None);
            assert!(plain.addresses().iter().all(|it| it.tls().is_none()));
            assert_eq!(plain.at("c", 7), tcp("c", 7));
            assert_eq!(plain.with_tls(tls), servers);
        }
    }

    #[test]
    fn error_does_not_contain_the_password() {
        for (url, words) in [
            ("secret", "without a scheme"),
            ("secret:secret@a", "without a scheme"),
            ("://ann:secret@a", "without a scheme"),
            ("http://ann:secret@a", "unknown scheme http://"),
            ("redis+clusters://ann:secret@a", "redis+clusters://"),
            ("redis://ann:secret@", "empty where host 1 should be"),
            ("redis://ann:secret@a,b", "of several hosts"),
            ("redis://ann:secret/t@a", "malformed at host 1"),
            ("redis://ann:%ffsecret@a", "UTF-8"),
            ("redis://a/secret", "database"),
            ("redis://ann:secret@0.0.0.0", "wildcard at host 1"),
            ("rediss://ann:se#secret@a", "another fragment"),
            ("unix://ann:secret@/a", "without the path of a socket"),
            ("unix:///a?pass=secret&db=secret", "database"),
            ("redis+cluster://ann:secret@a,:7", "empty where host 2"),
            ("redis+cluster://ann:secret@a,[::]", "wildcard at host 2"),
            ("redis+cluster://ann:secret@a/3", "database 3"),
            ("redis+cluster://ann:secret@a:x", "malformed at host 1"),
            ("redis+cluster://ann:secret/t@a", "malformed at host 1"),
            ("redis+cluster://a?secret=1", "parameter"),
            (
                "redis+sentinel://ann:secret@a,,b/locks",
                "empty where host 2",
            ),
            ("redis+sentinel://ann:secret@a", "without a master"),
            ("redis+sentinel://ann:secret@a//2", "without a master"),
            ("redis+sentinel://ann:secret@a/locks/x", "database"),
            (
                "redis+sentinel://a/locks?sentinel_user=secret",
                "sentinel_password",
            ),
            (
                "redis+sentinel://a/locks?sentinel_pasword=secret",
                "parameter",
            ),
            ("redis+sentinel://a/%ff", "UTF-8"),
        ] {
            let error = url.parse::<Servers>().unwrap_err().to_string();
            assert!(error.contains(words), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
        for url in ["unix:///secret", "redis+sentinel://a/secret", "secret"] {
            for refused in [Servers::of_cluster(url), Servers::of_sentinels(url, "x")] {
                let error = refused.unwrap_err().to_string();
                assert!(!error.contains("secret"), "{error}");
            }
        }
        assert!(Servers::of_sentinels("redis://a", "").is_err());
    }

    #[test]
    fn neither_user_nor_password_is_displayed() {
        for (url, displayed) in [
            (
                "valkey://:secret@db.example:7000/3",
                "redis://db.example:7000/3",
            ),
            (
                "rediss://:secret@[::1]#insecure",
                "rediss://[::1]:6379#insecure",
            ),
            (
                "unix:///a%20b%2F%3F?db=2&user=secret&pass=secret",
                "redis+unix:///a%20b/%3F?db=2",
            ),
            (
                "redis+sentinel://ann:se@cret@a:1,[::1]/my%20locks/2?sentinel_password=secret",
                "redis+sentinel://a:1,[::1]:26379/my%20locks/2",
            ),
            (
                "rediss+cluster://ann:secret@a,b:7",
                "rediss+cluster://a:6379,b:7",
            ),
        ] {
            let servers = read(url);
            assert_eq!(servers.to_string(), displayed);
            let anybody = Login {
                database: servers.login().database,
                ..Login::default()
            };
            assert_eq!(read(displayed).login(), &anybody);
            let of_it = servers.clone().with_login(login("ann", "secret", 9));
            let (debug, again) = (format!("{of_it:?}"), of_it.with_login(anybody));
            assert!(debug.contains("Some(Password(…))"), "{debug}");
            assert!(!debug.contains("secret"), "{debug}");
            assert_eq!(again.to_string(), displayed);
            assert_eq!(read(displayed).addresses(), servers.addresses());
        }
    }

    #[test]
    fn servers_built_by_hand_are_checked() {
        let nobody = Login::default;
        let sentinels = |sentinels: &[Address], master: &str| Servers::Sentinels {
            sentinels: sentinels.to_vec(),
            sentinel_login: nobody(),
            master: master.to_owned(),
            tls: None,
            login: nobody(),
        };
        let cluster = |nodes: &[Address], login| Servers::Cluster {
            nodes: nodes.to_vec(),
            login,
        };
        let (a, path) = (tcp("a", 7), PathBuf::from("/a"));
        let socket = Address::Unix { path };
        let mut unnamed = login("ann", "", 0);
        unnamed.password = None;
        for (servers, words) in [
            (sentinels(&[], "locks"), "sentinels is empty"),
            (sentinels(from_ref(&a), ""), "master is empty"),
            (cluster(&[], nobody()), "nodes is empty"),
            (
                cluster(&[a.clone(), socket.clone()], nobody()),
                "Unix socket",
            ),
            (cluster(from_ref(&a), login("a", "b", 1)), "database 1"),
            (
                cluster(from_ref(&a), unnamed),
                "login is of a user without a password",
            ),
        ] {
            let error = servers.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        sentinels(from_ref(&socket), "locks").check().unwrap();
        let login = nobody();
        let one = Servers::One {
            address: socket.clone(),
            login,
        };
        one.check().unwrap();
        assert_eq!(one.clone().with_tls(Some(Tls::default())), one);
        assert_eq!((socket.host(), socket.to_string()), (None, "/a".to_owned()));
    }

    proptest! {
        /// With every character that has a meaning in a URL.
        #[test]
        fn any_url_of_one_server_is_read_as_the_redis_crate_reads_it(
            scheme in "(redis|rediss|valkey|valkeys)",
            user in "(|[a%:@,+]{0,6}@)",
            host in "([ab.%-]{1,4}|\\[[0:1]{2,9}\\]|[0-9.]{7})",
            port in "(|:[0-9]{0,6})",
            rest in "(|/[0-9/]{0,4})(|[?][a=&%]{0,6})(|#insecure|#[ab/?]{0,3})",
        ) {
            let url = format!("{scheme}://{user}{host}{port}{rest}");
            let has_parameter = rest.contains(['=', '%']) || rest.contains("?a") || rest.contains("&a");
            let has_fragment = matches!(&*scheme, "redis" | "valkey") && rest.contains('#');
            let read = as_redis_reads(&url).filter(|_| !has_parameter && !has_fragment);
            let expected = read.and_then(|servers| {
                let mut login = servers.login().clone();
                // It ignores a user without a password, and an empty password.
                if login.user.is_some() && login.password.is_none() {
                    login.password = user.contains(':').then(|| Password::new(""));
                    login.password.as_ref()?;
                }
                Some(servers.with_login(login))
            });
            prop_assert_eq!(expected, url.parse().ok(), "{}", url);
        }

        #[test]
        fn displayed_url_leads_to_the_same_servers(
            kind in "(redis|rediss)(|[+](sentinel|cluster))",
            hosts in "([ab]{1,3}|\\[::1\\])(|:[1-9])(|,[ab]{1,3}:7)",
            path in "(|/|/[a-c/ %?#é]{1,6}(|/[0-9]))",
            fragment in "(|#insecure)",
        ) {
            if let Ok(servers) = format!("{kind}://{hosts}{path}{fragment}").parse::<Servers>() {
                prop_assert_eq!(read(&servers.to_string()), servers);
            }
        }
    }
}
