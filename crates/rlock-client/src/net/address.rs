//! Reads the one address that says where the servers are and of what kind: a
//! server, a master that Sentinels name, or a cluster.
//!
//! What is read may carry a password, so that no error repeats any of it but
//! the scheme.

use percent_encoding::percent_decode_str;
use rlock_engine::error::Error;

use crate::net::source::{Source, out_of_range};
use crate::wire::failure::failure;

const SENTINEL_PORT: u16 = 26379;

const SCHEMES: &str = "redis://, rediss://, redis+unix://, redis+sentinel://, \
     rediss+sentinel://, redis+cluster:// or rediss+cluster://";
const OF_SENTINELS: &str = "redis+sentinel://[user:password@]host[:port][,…]/master[/database]";
const OF_CLUSTER: &str = "redis+cluster://[user:password@]host[:port][,…]";
/// User and password of the Sentinels themselves.
const OWN: [&str; 2] = ["sentinel_user", "sentinel_password"];
const HOSTS: &str = "host[:port][,host[:port]…] after the last @, with / ? and # \
     in a password written as %2F, %3F and %23";

/// What a URL leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Server,
    /// A server, by a Unix socket.
    Socket,
    Sentinels,
    Cluster,
}

/// Where `url` leads. Each address in it is opened by `open`.
pub(crate) fn read(
    url: &str,
    open: impl Fn(&str) -> Result<redis::Client, Error>,
) -> Result<Source, Error> {
    let url = url.trim();
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    let authority = rest.strip_prefix("//");
    let scheme = scheme.to_ascii_lowercase();
    let (transport, suffix) = scheme.split_once('+').unwrap_or((&scheme, ""));
    let Some(kind) = kind(transport, suffix) else {
        return Err(unknown(&scheme, authority.is_some()));
    };
    if kind == Kind::Socket {
        return Source::server(&open(url)?);
    }
    let parts = Parts::new(transport, authority.unwrap_or_default())?;
    match kind {
        Kind::Sentinels => sentinels(&parts, open),
        Kind::Cluster => Source::cluster(&parts.nodes(open)?),
        _ if parts.hosts.len() > 1 => Err(out_of_range(
            "url",
            "of several hosts",
            "redis+sentinel:// or redis+cluster:// then",
        )),
        _ => Source::server(&open(url)?),
    }
}

/// Whether `url` is the address of one server, and not of Sentinels or a cluster.
pub(crate) fn is_of_one(url: &str) -> bool {
    let scheme = url.trim().split(':').next().unwrap_or_default();
    let scheme = scheme.to_ascii_lowercase();
    !scheme.ends_with("+sentinel") && !scheme.ends_with("+cluster")
}

/// Whether all that `url` leads to is connected to with TLS.
#[cfg(feature = "tls-rustls")]
pub(crate) fn has_tls(url: &str) -> bool {
    let transport = url.trim().split([':', '+']).next().unwrap_or_default();
    matches!(&*transport.to_ascii_lowercase(), "rediss" | "valkeys")
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

/// A scheme is repeated only if it is one: it may be a whole password.
fn unknown(scheme: &str, has_authority: bool) -> Error {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    if !has_authority || scheme.is_empty() || !scheme.chars().all(is_plain) {
        return out_of_range("url", "without a scheme", SCHEMES);
    }
    let value = format!("of the unknown scheme {scheme}://");
    out_of_range("url", &value, SCHEMES)
}

/// What follows the scheme.
struct Parts<'a> {
    transport: &'a str,
    /// With the `@`, if there is one.
    user: &'a str,
    hosts: Vec<&'a str>,
    /// Without the `/` at its start.
    path: &'a str,
    query: &'a str,
    /// With the `#`, if there is one.
    fragment: &'a str,
}

impl<'a> Parts<'a> {
    fn new(transport: &'a str, rest: &'a str) -> Result<Self, Error> {
        let (rest, fragment) = rest.split_at(rest.find('#').unwrap_or(rest.len()));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = authority.rfind('@').map_or(0, |at| at + 1);
        let (user, hosts) = authority.split_at(hosts);
        let hosts: Vec<_> = hosts.split(',').map(str::trim).collect();
        if let Some(empty) = hosts.iter().position(|host| name_of(host).is_empty()) {
            let value = format!("empty where host {} should be", empty + 1);
            return Err(out_of_range("url", &value, HOSTS));
        }
        Ok(Self {
            transport,
            user,
            hosts,
            path,
            query,
            fragment,
        })
    }

    /// The servers, all of the same user.
    fn nodes(
        &self,
        open: impl Fn(&str) -> Result<redis::Client, Error>,
    ) -> Result<Vec<redis::Client>, Error> {
        credentials(self.query, OF_CLUSTER, [])?;
        let nodes = self.hosts.iter().zip(1..);
        let nodes = nodes.map(|(host, number)| {
            check(host, number)?;
            open(&self.url(self.user, host, self.path))
        });
        nodes.collect()
    }

    fn url(&self, user: &str, host: &str, path: &str) -> String {
        let (transport, fragment) = (self.transport, self.fragment);
        format!("{transport}://{user}{host}/{path}{fragment}")
    }
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.find(']') {
        Some(end) => host.get(..=end).unwrap_or(host),
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// Whether a port is named.
fn check(host: &str, number: usize) -> Result<bool, Error> {
    // As the URL of one server, by which the port of that is told.
    let read = redis::parse_redis_url(&format!("redis://{host}"));
    let unreadable = || {
        let value = format!("not to be understood at host {number}");
        out_of_range("url", &value, HOSTS)
    };
    read.map(|url| url.port().is_some()).ok_or_else(unreadable)
}

fn sentinels(
    parts: &Parts<'_>,
    open: impl Fn(&str) -> Result<redis::Client, Error>,
) -> Result<Source, Error> {
    let [user, password] = credentials(parts.query, OF_SENTINELS, OWN)?;
    if user.is_some() && password.is_none() {
        let value = "with sentinel_user and without sentinel_password";
        return Err(out_of_range(
            "url",
            value,
            "with both or the password alone",
        ));
    }
    let (master, database) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    if master.is_empty() {
        return Err(out_of_range("url", "without a master", OF_SENTINELS));
    }
    let mut sentinels = Vec::new();
    for (host, number) in parts.hosts.iter().zip(1..) {
        let has_port = check(host, number)?;
        let port = if has_port {
            String::new()
        } else {
            format!(":{SENTINEL_PORT}")
        };
        let sentinel = open(&parts.url("", &format!("{host}{port}"), ""))?;
        sentinels.push(as_user(&sentinel, user.as_deref(), password.as_deref())?);
    }
    // Its host is what the Sentinels say.
    let server = open(&parts.url(parts.user, "_", database))?;
    Source::sentinels(sentinels, &decoded(master)?, &server)
}

fn as_user(
    redis: &redis::Client,
    user: Option<&str>,
    password: Option<&str>,
) -> Result<redis::Client, Error> {
    let info = redis.get_connection_info().clone();
    let mut settings = info.redis_settings().clone();
    if let Some(user) = user {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    redis::Client::open(info.set_redis_settings(settings))
        .map_err(|error| Error::Connect(failure(error)))
}

/// What a query says of each of `names`.
fn credentials<const N: usize>(
    query: &str,
    form: &'static str,
    names: [&str; N],
) -> Result<[Option<String>; N], Error> {
    let mut values = [const { None }; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = names.iter().position(|known| *known == name);
        match place.and_then(|place| values.get_mut(place)) {
            Some(known) => *known = Some(decoded(value)?),
            // It is RESP3, whatever is said.
            None if name == "protocol" => {}
            None => {
                let value = "with a parameter that is not known here";
                return Err(out_of_range("url", value, form));
            }
        }
    }
    Ok(values)
}

fn decoded(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| out_of_range("url", "not UTF-8 when decoded", "UTF-8"));
    decoded.map(|decoded| decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// The addresses that `url` leads to, each as the URL of one server.
    fn opened(url: &str) -> Result<Vec<String>, String> {
        let all = RefCell::new(Vec::new());
        let open = |url: &str| {
            all.borrow_mut().push(url.to_owned());
            redis::Client::open(url).map_err(|error| Error::Connect(failure(error)))
        };
        match read(url, open) {
            Ok(_) => Ok(all.into_inner()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn one_address_leads_to_all_servers() {
        for (url, expected) in [
            (
                "redis://ann:secret@a:7/2",
                &["redis://ann:secret@a:7/2"][..],
            ),
            ("redis+unix:///a%20b?db=2", &["redis+unix:///a%20b?db=2"]),
            ("redis+cluster://a", &["redis://a/"]),
            (
                " REDIS+Cluster://ann:p%40ss,w@rd@a:7,[::1]:8,b/0",
                &[
                    "redis://ann:p%40ss,w@rd@a:7/0",
                    "redis://ann:p%40ss,w@rd@[::1]:8/0",
                    "redis://ann:p%40ss,w@rd@b/0",
                ],
            ),
            (
                "redis+sentinel://ann:secret@a,[::1],b:7/locks/2?protocol=resp3",
                &[
                    "redis://a:26379/",
                    "redis://[::1]:26379/",
                    "redis://b:7/",
                    "redis://ann:secret@_/2",
                ],
            ),
        ] {
            assert_eq!(opened(url).unwrap(), expected, "{url}");
        }
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn with_tls_all_addresses_have_it() {
        let sentinels = opened("rediss+sentinel://a/locks#insecure").unwrap();
        let expected = ["rediss://a:26379/#insecure", "rediss://_/#insecure"];
        assert_eq!(sentinels, expected);
        assert_eq!(opened("valkeys+cluster://a").unwrap(), ["valkeys://a/"]);
        assert!(has_tls("rediss+cluster://a") && !has_tls("redis+cluster://a"));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for (url, words) in [
            ("secret", "without a scheme"),
            ("secret:secret@a", "without a scheme"),
            ("http://ann:secret@a", "unknown scheme http://"),
            ("redis+clusters://ann:secret@a", "redis+clusters://"),
            ("redis://ann:secret@", "empty where host 1 should be"),
            ("redis://ann:secret@a,b", "of several hosts"),
            ("redis+cluster://ann:secret@a,:7", "empty where host 2"),
            ("redis+cluster://ann:secret@a/3", "database 3"),
            ("redis+cluster://ann:secret@a:x", "understood at host 1"),
            ("redis+cluster://ann:secret/t@a", "understood at host 1"),
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
            let said = opened(url).unwrap_err();
            assert!(said.contains(words), "{url}: {said}");
            assert!(!said.contains("secret"), "{url}: {said}");
        }
    }
}
