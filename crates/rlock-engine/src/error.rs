//! What can go wrong, and what the caller should do about it.
//!
//! Contention is not an error: a lock that another owner holds is `None`. This
//! module maps server replies to variants, and decides which of them are
//! transient ([`Fault`]).

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::Duration;
use std::{fmt, io};

use crate::engine::claims::Owner;
#[cfg(doc)]
use crate::engine::terms::Terms;
use crate::rights;

/// Why a hold ended before its guard was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ran out by this machine's own clock.
    ///
    /// It was not renewed in time: there was no contact with the server, the
    /// process was stopped, the runtime was starved, the lease was fixed, or
    /// `max_hold` ended. Or the hold was bound to a connection that ended, and no
    /// new connection replaced it within the grace. The server may already have
    /// granted the lock to another owner.
    LeaseEnded,
    /// The server reports that this owner no longer holds the lock.
    ///
    /// Somebody forced its release, deleted the key, or flushed the database.
    EndedByServer,
    /// Nothing was lost: its guards have released it.
    ///
    /// Only a `LossSignal` that outlives its guard reports this, and
    /// `Client::loss` when the client ends.
    Released,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseEnded => "its lease ended",
            Self::EndedByServer => "the server ended it",
            Self::Released => "it was released",
        })
    }
}

/// The errors of this crate.
///
/// `Debug` shows the message and its causes, so that a program whose `main`
/// returns an error prints them.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is outside its range; nothing was sent.
    ///
    /// This is a mistake in the calling code: correct the argument.
    #[error("{argument} is {value}, it must be {limit}")]
    OutOfRange {
        /// The argument's name.
        argument: &'static str,
        /// The given value.
        value: String,
        /// What is allowed.
        limit: Cow<'static, str>,
    },

    /// The first connection failed.
    ///
    /// Check the URL, the credentials, and whether the server runs. A client that
    /// has connected once reconnects by itself.
    #[error("cannot connect to the server: {0}")]
    Connect(#[source] Failure),

    /// A server cannot be a member of a `Quorum`.
    ///
    /// Choose other servers, or fix the problem that the reason names.
    #[error("{address} cannot be a member of the quorum: {reason}")]
    Member {
        /// The server.
        address: String,
        /// What is wrong.
        reason: String,
    },

    /// The server does not know the lock commands.
    ///
    /// Load the module, with the line in the message or with `loadmodule` in
    /// `redis.conf`, then connect again.
    #[error(
        "the server does not have the rlock module; start it with \
         `redis-server --loadmodule /path/to/librlock.so`"
    )]
    ModuleMissing,

    /// No usable answer arrived within the time limit of the call.
    ///
    /// Nothing stays on the server: the client withdraws anything that the call
    /// has queued or acquired, in the background. Try again later, or give up.
    #[error("no usable answer from the server within {:?}", rounded(*.waited))]
    Unavailable {
        /// How long the call tried.
        waited: Duration,
        /// The last failure, if one was seen.
        #[source]
        source: Option<Failure>,
    },

    /// Too few replicas acknowledged the grant in time.
    ///
    /// Only with [`Terms::replicas`]. The client releases what the call had
    /// taken; an earlier hold of the lock does not change. A replica is
    /// unreachable, slow, or missing: check `INFO replication`, then try again.
    #[error("only {acknowledged} of {wanted} replicas acknowledged it in time")]
    NotReplicated {
        /// The required number.
        wanted: u16,
        /// The number that acknowledged.
        acknowledged: u16,
    },

    /// The lock was already lost when the call wanted to release, extend, upgrade
    /// or downgrade it.
    ///
    /// Work under it may have overlapped with another holder's work: check it, or
    /// rely on the fence. Another release does not help.
    #[error("the lock was lost: {0}")]
    Lost(Loss),

    /// The server's limit of places in queues, of watches, or of shared holders is
    /// reached.
    ///
    /// Each requested key takes a place, and places that are kept for lost
    /// connections count too. Try again later, or raise `rlock.max-waiters`,
    /// `rlock.max-watches` or `rlock.max-shared-holders`.
    #[error("the server's queue is full: {0}")]
    QueueFull(String),

    /// Somebody else ended the wait with `RLOCK.CANCEL`.
    ///
    /// An operator uses this command to make the call give up. Nothing stays on
    /// the server. Continue without the lock, or ask again; the new request is
    /// last in the queue.
    #[error("the wait was cancelled by somebody else")]
    Cancelled,

    /// Waiting would close a cycle of owners that wait for each other.
    ///
    /// It also occurs for the second of two readers that both want to wait for an
    /// upgrade of the same lock. Nothing has changed on the server: release the
    /// holds of this owner, then start over.
    #[error("waiting would cause a deadlock: {text}")]
    Deadlock {
        /// The owners of the cycle, as in [`Owner::as_str`]: the first is the
        /// owner that asked, each waits for the next, and the last waits for the
        /// first.
        ///
        /// At most the first 16 owners; empty if the server's text has an unknown
        /// form. Bytes that are not UTF-8 are replaced.
        owners: Vec<String>,
        /// The server's text.
        text: String,
    },

    /// This owner holds some of these keys with a guard of other keys.
    ///
    /// Only a call for the same keys can enter a hold of several keys again.
    /// Release that guard first, or use another owner.
    #[error("{owner} holds {keys} by another guard, and can enter exactly these keys again")]
    HeldOtherwise {
        /// The owner of that guard.
        owner: Owner,
        /// The keys of that guard.
        keys: String,
    },

    /// The server's user lacks a permission.
    ///
    /// The text is the server's own, followed by the ACL rule that the user
    /// lacks. A program that locks needs the commands `RLOCK.*`, the keys, and
    /// the channel pattern `rlock:client:*`.
    #[error("not permitted: {0}")]
    Denied(String),

    /// The key holds something that is not a lock.
    ///
    /// Use another key: the module never deletes other data.
    #[error("the key holds no lock: {0}")]
    NotALock(String),

    /// The server is out of memory, and refuses new locks.
    ///
    /// Renewals and releases still work. Try again later.
    #[error("the server is out of memory: {0}")]
    OutOfMemory(String),

    /// The server refused the request for another reason.
    ///
    /// Its text names the argument, its value and the limit. `MOVED` means that
    /// the server is a node of a cluster and another node has the key: connect
    /// with a cluster URL.
    #[error("the server refused: {0}")]
    Refused(#[source] ServerError),

    /// Locks that a flush or the end of the client waited for were not released:
    /// those of dropped guards, and what was held when the client was closed.
    ///
    /// They become free when their leases end, or by `rlock force`. Usually the
    /// user lacks a right, which the source names. With [`Closed`](Self::Closed) as
    /// the source, the client ended before their release was answered.
    #[error("{} not released: {source}", and_more(key, *count))]
    NotReleased {
        /// The first of them.
        key: String,
        /// The number of locks.
        count: usize,
        /// Why the first of them was not released.
        source: Box<Self>,
    },

    /// A reply has an unexpected form.
    ///
    /// Client and module do not match: update the older one.
    #[error("unexpected reply: {0}")]
    Protocol(String),

    /// The client has ended: by `Client::close`, or together with its runtime.
    ///
    /// Connect again, on a live runtime. Holds still end with their leases.
    #[error("the client has been closed, or its runtime shut down")]
    Closed,
}

impl Error {
    /// The name of the error in every language, such as `Lost`: the variant's
    /// name.
    #[doc(hidden)]
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::OutOfRange { .. } => "OutOfRange",
            Self::Connect(_) => "Connect",
            Self::Member { .. } => "Member",
            Self::ModuleMissing => "ModuleMissing",
            Self::Unavailable { .. } => "Unavailable",
            Self::NotReplicated { .. } => "NotReplicated",
            Self::Lost(_) => "Lost",
            Self::QueueFull(_) => "QueueFull",
            Self::Cancelled => "Cancelled",
            Self::Deadlock { .. } => "Deadlock",
            Self::HeldOtherwise { .. } => "HeldOtherwise",
            Self::Denied(_) => "Denied",
            Self::NotALock(_) => "NotALock",
            Self::OutOfMemory(_) => "OutOfMemory",
            Self::Refused(_) => "Refused",
            Self::NotReleased { .. } => "NotReleased",
            Self::Protocol(_) => "Protocol",
            Self::Closed => "Closed",
        }
    }

    /// The message, with the causes that it does not contain.
    #[doc(hidden)]
    #[must_use]
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        text
    }

    /// Whether the same call may succeed later without a change: the server was
    /// unreachable, full, or out of memory. An invalid address, a wrong password
    /// or an untrusted certificate is not transient.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mutex: rlock_client::Mutex) -> Result<(), rlock_client::Error> {
    /// match mutex.try_lock().await {
    ///     Err(error) if error.is_transient() => eprintln!("trying again later: {error}"),
    ///     outcome => drop(outcome?),
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(failure) => failure.is_transient(),
            Self::Unavailable { .. }
            | Self::NotReplicated { .. }
            | Self::QueueFull(_)
            | Self::OutOfMemory(_) => true,
            _ => false,
        }
    }
}

/// `k was`, or `k and 2 more were`.
fn and_more(key: &str, count: usize) -> String {
    match count {
        0 | 1 => format!("{key} was"),
        _ => format!("{key} and {} more were", count - 1),
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_causes())
    }
}

/// Server arguments that are not URLs cannot be invalid.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// An error reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// Its first word, such as `ERR` or `MOVED`.
    pub code: String,
    /// The rest of the line; empty if there is none.
    pub message: String,
}

impl ServerError {
    /// The text of the error.
    fn sentence(&self) -> &str {
        match self.message.is_empty() {
            true => &self.code,
            false => &self.message,
        }
    }

    fn is_channel_gone(&self) -> bool {
        self.code == "ERR" && self.message.starts_with("SNOTIFY channel is ")
    }

    fn refusal(self, keys: &[&[u8]]) -> Error {
        let sentence = self.sentence().to_owned();
        match &*self.code {
            "QUEUEFULL" => Error::QueueFull(sentence),
            "DEADLOCK" => Error::Deadlock {
                owners: owners_in(&sentence),
                text: sentence,
            },
            "NOPERM" => Error::Denied(rights::explained(&sentence, keys)),
            "WRONGTYPE" => Error::NotALock(sentence),
            "OOM" => Error::OutOfMemory(sentence),
            "ERR" if sentence.starts_with("unknown command") => Error::ModuleMissing,
            _ => Error::Refused(self),
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.code {
            code if self.message.is_empty() => f.write_str(code),
            "NOPERM" => write!(f, "NOPERM {}", rights::explained(&self.message, &[])),
            code => write!(f, "{code} {}", self.message),
        }
    }
}

impl std::error::Error for ServerError {}

/// Why there is no expected answer from a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The connection broke, or there is none.
    #[error("{0}")]
    Io(String),
    /// No answer arrived in time.
    #[error("{0}")]
    TimedOut(String),
    /// The server answered with an error.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A reply has an unexpected form.
    #[error("{0}")]
    Protocol(String),
    /// These settings allow no connection: an address that cannot be used, a
    /// socket without permission.
    #[error("{0}")]
    Setup(String),
    /// One side rejects the other's certificate, or lacks one of its own.
    #[error("{0}")]
    Certificate(String),
    /// A failure at the server of this address.
    #[error("{address}: {failure}")]
    At {
        /// The address of the server.
        address: String,
        /// Its failure.
        failure: Box<Self>,
    },
    /// None of several servers gave the expected answer.
    #[error("{what}: {}", each(.failures))]
    NoneOf {
        /// The expected answer.
        what: &'static str,
        /// The address of each server, and its failure.
        failures: Vec<(String, Self)>,
    },
}

impl Failure {
    /// Whether a connection may succeed later without a change.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Io(_) | Self::TimedOut(_) => true,
            Self::Server(error) => matches!(
                Fault::from(error.clone()),
                Fault::Transient(_) | Fault::Moved(_)
            ),
            Self::Protocol(_) | Self::Setup(_) | Self::Certificate(_) => false,
            Self::At { failure, .. } => failure.is_transient(),
            Self::NoneOf { failures, .. } => failures.iter().all(|(_, it)| it.is_transient()),
        }
    }

    /// The same with the address in its text, which some failures have already.
    pub(crate) fn at(self, address: &str) -> Self {
        let has_address = self.reason(address) != self.to_string();
        match self {
            Self::At { .. } | Self::NoneOf { .. } => self,
            failure if has_address => failure,
            failure => Self::At {
                address: address.to_owned(),
                failure: Box::new(failure),
            },
        }
    }

    /// The reason alone. The text of a broken connection begins with its address.
    #[must_use]
    pub fn reason(&self, address: &str) -> String {
        let text = self.to_string();
        let reason = text.strip_prefix(address);
        let reason = reason.and_then(|rest| rest.strip_prefix(": "));
        reason.map_or(text.clone(), str::to_owned)
    }
}

/// A measured time for people: `303ms`, `10s`, `12.3s`.
fn rounded(time: Duration) -> Duration {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(match ms {
        0..1_000 => ms,
        _ => ms.saturating_add(50) / 100 * 100,
    })
}

fn each(failures: &[(String, Failure)]) -> String {
    let each = failures.iter();
    let each = each.map(|(address, failure)| format!("{address}: {}", failure.reason(address)));
    each.collect::<Vec<_>>().join("; ")
}

impl From<&io::Error> for Failure {
    fn from(error: &io::Error) -> Self {
        use io::ErrorKind::{InvalidData, InvalidInput, PermissionDenied, TimedOut, WouldBlock};
        let text = error.to_string();
        match error.kind() {
            InvalidData | InvalidInput | PermissionDenied => Self::Setup(text),
            TimedOut | WouldBlock => Self::TimedOut(text),
            _ => Self::Io(text),
        }
    }
}

/// Why a request on a connection has no answer.
#[derive(Debug)]
pub enum Fault {
    /// The connection can no longer be used; whether the request was carried out
    /// is unknown.
    Broken(Failure),
    /// The same for a connection other than the main one of a server: the next
    /// main connection is not known to come after this request.
    Stray(Failure),
    /// The server cannot do it now, but a retry may succeed.
    Transient(Failure),
    /// Another server of the cluster has this key, or a part of its data.
    Moved(ServerError),
    /// The server refuses it.
    Refused(Error),
}

impl Fault {
    /// Whether the connection can no longer be used although it is open. The
    /// server has become a replica, and the address may already lead to another
    /// server; or the slot of the connection's channel has moved.
    pub fn ends_connection(&self) -> bool {
        let is_over = |error: &ServerError| error.code == "READONLY" || error.is_channel_gone();
        matches!(self, Self::Transient(Failure::Server(error)) if is_over(error))
    }
}

impl Fault {
    /// The meaning of the error reply to a request for `keys`.
    pub(crate) fn of(error: ServerError, keys: &[&[u8]]) -> Self {
        match &*error.code {
            "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "UNBLOCKED"
            | "BUSY" | "NOREPLICAS" | "MISCONF" => Self::Transient(error.into()),
            "MOVED" | "ASK" => Self::Moved(error),
            "ERR" if error.is_channel_gone() => Self::Transient(error.into()),
            _ => Self::Refused(error.refusal(keys)),
        }
    }
}

impl From<ServerError> for Fault {
    fn from(error: ServerError) -> Self {
        Self::of(error, &[])
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Server(error) => error.into(),
            failure => Self::Broken(failure),
        }
    }
}

/// The text before the owners. A key may contain this text too, but the key
/// comes earlier. Owners have no spaces, so they cannot contain it.
const BEFORE_OWNERS: &str = " owners: ";

/// The owners in `sentence`, in order; none if it has another form.
fn owners_in(sentence: &str) -> Vec<String> {
    let Some(start) = sentence.rfind(BEFORE_OWNERS) else {
        return Vec::new();
    };
    let named = sentence.get(start + BEFORE_OWNERS.len()..).unwrap_or("");
    let words = named.split(' ').filter(|word| *word != "...");
    words.map(quoted).collect::<Option<_>>().unwrap_or_default()
}

/// The text inside `'text'`.
fn quoted(word: &str) -> Option<String> {
    let escaped = word.strip_prefix('\'')?.strip_suffix('\'')?;
    let bytes = unescaped(escaped.as_bytes())?;
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Undoes `<[u8]>::escape_ascii`.
fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                b'x' => hex(rest.next()?)? << 4 | hex(rest.next()?)?,
                mark @ (b'\\' | b'\'' | b'"') => mark,
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(line: &str) -> Fault {
        let (code, message) = line.split_once(' ').unwrap_or((line, ""));
        let (code, message) = (code.to_owned(), message.to_owned());
        ServerError { code, message }.into()
    }

    #[test]
    fn transient_errors_are_not_refusals() {
        for line in [
            "LOADING x",
            "READONLY",
            "ERR SNOTIFY channel is in no slot of this server",
        ] {
            assert!(matches!(fault(line), Fault::Transient(_)), "{line}");
        }
        for line in ["MOVED 1 a:1", "ASK 1 a:1"] {
            assert!(matches!(fault(line), Fault::Moved(_)), "{line}");
        }
        let refused = |line| match fault(line) {
            Fault::Refused(error) => error.to_string(),
            fault => panic!("{line} is {fault:?}"),
        };
        assert_eq!(refused("NOPERM of `k`"), "not permitted: of `k`");
        assert_eq!(refused("OOM"), "the server is out of memory: OOM");
        assert_eq!(refused("ERR syntax"), "the server refused: ERR syntax");
        let unknown = fault("ERR unknown command 'RLOCK.HELP'");
        assert!(matches!(unknown, Fault::Refused(Error::ModuleMissing)));
    }

    #[test]
    fn debug_shows_the_message_and_its_causes() {
        let failure = Failure::Io("h:1: connection refused".to_owned());
        let error = Error::Connect(failure.clone());
        let expected = "cannot connect to the server: h:1: connection refused";
        assert_eq!(format!("{error:?}"), expected);
        let error = Error::Unavailable {
            waited: Duration::from_micros(2_000_984),
            source: Some(failure),
        };
        let expected = "no usable answer from the server within 2s: h:1: connection refused";
        assert_eq!(format!("{error:?}"), expected);
    }

    #[test]
    fn a_measured_time_is_rounded() {
        for (us, text) in [
            (1_999, "1ms"),
            (303_984, "303ms"),
            (999_999, "999ms"),
            (10_000_984, "10s"),
            (12_349_999, "12.3s"),
            (61_950_000, "62s"),
        ] {
            let rounded = rounded(Duration::from_micros(us));
            assert_eq!(format!("{rounded:?}"), text);
        }
    }

    #[test]
    fn a_failure_names_its_address_once() {
        let refused = |text: &str| Failure::Io(text.to_owned()).at("h:1").to_string();
        assert_eq!(
            refused("h:1: connection refused"),
            "h:1: connection refused"
        );
        assert_eq!(
            refused("the server is loading"),
            "h:1: the server is loading"
        );
        let loading = ServerError {
            code: "LOADING".to_owned(),
            message: String::new(),
        };
        let failure = Failure::from(loading).at("h:1").at("h:1");
        assert_eq!(failure.to_string(), "h:1: LOADING");
        assert_eq!(failure.reason("h:1"), "LOADING");
        assert!(failure.is_transient());
    }

    #[test]
    fn a_connection_ends_when_its_server_loses_its_role() {
        assert!(fault("READONLY You can't write").ends_connection());
        assert!(fault("ERR SNOTIFY channel is gone").ends_connection());
        assert!(!fault("LOADING x").ends_connection());
    }

    #[test]
    fn errors_of_the_settings_are_not_transient() {
        let of = |kind: io::ErrorKind| Error::Connect(Failure::from(&io::Error::from(kind)));
        assert!(of(io::ErrorKind::ConnectionRefused).is_transient());
        let slow = Failure::from(&io::Error::from(io::ErrorKind::TimedOut));
        assert!(matches!(slow, Failure::TimedOut(_)) && slow.is_transient());
        assert!(!of(io::ErrorKind::InvalidData).is_transient());
        assert!(!of(io::ErrorKind::PermissionDenied).is_transient());
    }

    #[test]
    fn what_the_server_refuses_has_a_name_and_may_pass() {
        for (line, code, passes) in [
            ("QUEUEFULL x", "QueueFull", true),
            ("OOM x", "OutOfMemory", true),
            ("DEADLOCK owners: 'a' 'b'", "Deadlock", false),
            ("NOPERM x", "Denied", false),
            ("WRONGTYPE x", "NotALock", false),
            ("ERR x", "Refused", false),
        ] {
            let Fault::Refused(error) = fault(line) else {
                panic!("{line}");
            };
            assert_eq!((error.code(), error.is_transient()), (code, passes));
        }
    }

    #[test]
    fn owners_are_read_in_their_order() {
        let waiting = "waiting for key 'k' would close a cycle of owners: 'a' 'b:1' 'c'";
        assert_eq!(owners_in(waiting), ["a", "b:1", "c"]);
        let upgrading = "upgrading key 'k' would close a cycle of owners: 'me' 'other'";
        assert_eq!(owners_in(upgrading), ["me", "other"]);
    }

    #[test]
    fn a_key_cannot_pass_for_owners() {
        let text = r"waiting for key 'x owners: \'z\'' would close a cycle of owners: 'a' 'b'";
        assert_eq!(owners_in(text), ["a", "b"]);
    }

    #[test]
    fn escaped_owners_are_as_they_were_given() {
        for name in [
            "ümlaut",
            "it's",
            "back\\slash",
            "\"",
            "\t\r\n",
            "x\u{e9}:\u{1F512}",
        ] {
            let escaped = name.as_bytes().escape_ascii();
            let text = format!("waiting for key 'k' would close a cycle of owners: '{escaped}'");
            assert_eq!(owners_in(&text), [name]);
        }
    }

    #[test]
    fn omitted_owners_are_not_an_owner() {
        assert_eq!(owners_in("x cycle of owners: 'a' 'b' ..."), ["a", "b"]);
    }

    #[test]
    fn another_form_names_nobody() {
        for text in [
            "",
            "a cycle",
            "a cycle of owners: ",
            "a cycle of owners: a b",
            "a cycle of owners: 'a' b'",
            "a cycle of owners: '",
            "a cycle of owners: ''",
            r"a cycle of owners: '\'",
            r"a cycle of owners: '\x4'",
            r"a cycle of owners: '\q'",
        ] {
            assert!(owners_in(text).is_empty(), "{text}");
        }
    }
}
