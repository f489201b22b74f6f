//! A connection to a server that can be left waiting for a reply.
//!
//! A thread per connection parses the replies, so a test can check a blocked call for its reply, and wait further.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Parser, Value};

/// The limit for anything that should happen at once; only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds.
///
/// # Panics
///
/// When it does not hold for [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The words of a command line; `""` is the empty one.
pub fn words(line: &str) -> Vec<&str> {
    line.split_whitespace()
        .map(|word| if word == "\"\"" { "" } else { word })
        .collect()
}

/// The bytes of a command.
pub fn request<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    for argument in arguments {
        command.arg(argument.as_ref());
    }
    command.get_packed_command()
}

/// A connection to a server.
pub struct Client {
    stream: TcpStream,
    replies: Mutex<Receiver<Value>>,
    id: i64,
}

impl Client {
    /// Connects, with RESP2.
    pub fn connect(port: u16) -> Self {
        Self::try_connect(port).expect("the server takes connections")
    }

    /// Connects, with RESP2, to a server that may be unreachable.
    pub fn try_connect(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut reader = stream.try_clone()?;
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            let mut parser = Parser::new();
            while let Ok(value) = parser.parse_value(&mut reader) {
                if sender.send(value).is_err() {
                    break;
                }
            }
        });
        let mut client = Self {
            stream,
            replies: Mutex::new(replies),
            id: 0,
        };
        if let Value::Int(id) = client.try_call("CLIENT ID")? {
            client.id = id;
        }
        Ok(client)
    }

    /// The reply to a command, from a server that may end meanwhile.
    pub fn try_call(&self, line: &str) -> std::io::Result<Value> {
        (&self.stream).write_all(&request(&words(line)))?;
        let reply = self.reply_within(PATIENCE);
        reply.ok_or_else(|| std::io::ErrorKind::ConnectionReset.into())
    }

    /// Connects, with RESP3.
    pub fn connect_resp3(port: u16) -> Self {
        let client = Self::connect(port);
        assert!(
            matches!(client.call(&["HELLO", "3"]), Value::Map(_)),
            "HELLO 3 is understood"
        );
        client
    }

    /// The connection's id on its server.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Sends raw bytes.
    pub fn send_bytes(&self, bytes: &[u8]) {
        (&self.stream).write_all(bytes).expect("the server reads");
    }

    /// Sends a command, given as words in a line, and does not wait for its reply.
    pub fn send(&self, line: &str) {
        self.send_bytes(&request(&words(line)));
    }

    fn received(&self) -> MutexGuard<'_, Receiver<Value>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next reply, if it arrives within `bound`.
    pub fn reply_within(&self, bound: Duration) -> Option<Value> {
        self.received().recv_timeout(bound).ok()
    }

    /// The next reply, if it has arrived.
    pub fn reply_by_now(&self) -> Option<Value> {
        self.received().try_recv().ok()
    }

    /// The next reply.
    #[track_caller]
    pub fn reply(&self) -> Value {
        self.reply_within(PATIENCE).expect("the server replies")
    }

    /// The next reply, as text.
    #[track_caller]
    pub fn answer(&self) -> String {
        text(&self.reply())
    }

    /// The reply to a command, given by its arguments.
    #[track_caller]
    pub fn call<A: AsRef<[u8]>>(&self, arguments: &[A]) -> Value {
        self.send_bytes(&request(arguments));
        self.reply()
    }

    /// The reply to a command, given as words in a line, as text.
    #[track_caller]
    pub fn ask(&self, line: &str) -> String {
        text(&self.call(&words(line)))
    }

    /// The reply to a command that answers with a positive number, such as a fence.
    #[track_caller]
    pub fn number(&self, line: &str) -> i64 {
        match self.call(&words(line)) {
            Value::Int(number) => number,
            other => panic!("{line} was answered by {}", text(&other)),
        }
    }

    /// The fence in the reply to a blocked call.
    #[track_caller]
    pub fn fence(&self) -> i64 {
        match self.reply() {
            Value::Int(fence) => fence,
            other => panic!("no fence, but {}", text(&other)),
        }
    }

    /// Closes the connection without a command.
    pub fn close(self) {}
}

impl Drop for Client {
    fn drop(&mut self) {
        // This also ends the reading thread.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A reply as text: `nil`, `5`, `OK`, `[a 1 [b 2]]`, `ERR it went wrong`.
pub fn text(value: &Value) -> String {
    let list = |values: &[Value]| values.iter().map(text).collect::<Vec<_>>().join(" ");
    match value {
        Value::Nil => "nil".into(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(status) => status.clone(),
        Value::VerbatimString { text, .. } => text.clone(),
        Value::Okay => "OK".into(),
        Value::Array(values) | Value::Set(values) => format!("[{}]", list(values)),
        Value::Push { kind, data } => format!("push {kind:?} [{}]", list(data)),
        Value::Map(pairs) => {
            let pairs = pairs
                .iter()
                .map(|(name, value)| format!("{} {}", text(name), text(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(" "))
        }
        Value::ServerError(error) => format!("{} {}", error.code(), error.details().unwrap_or("")),
        other => format!("{other:?}"),
    }
}

/// A connection that listens to channels.
pub struct Subscriber {
    client: Client,
    early: std::collections::VecDeque<(String, String)>,
}

impl Subscriber {
    /// Subscribes by `SUBSCRIBE`, `PSUBSCRIBE` or `SSUBSCRIBE`.
    pub fn listen(port: u16, how: &str, channels: &[&str]) -> Self {
        let mut subscriber = Self {
            client: Client::connect(port),
            early: std::collections::VecDeque::new(),
        };
        for channel in channels {
            subscriber.change(how, channel);
        }
        subscriber
    }

    /// Subscribes to one more channel, or unsubscribes, and waits for the confirmation.
    pub fn change(&mut self, how: &str, channel: &str) {
        self.client.send_bytes(&request(&[how, channel]));
        let confirmed = how.to_lowercase();
        self.until(|first| first == confirmed);
    }

    /// Waits until all messages that were published before have arrived.
    pub fn catch_up(&mut self) {
        self.client.send("PING");
        self.until(|first| first == "pong");
    }

    /// The channel and text of the next message, if it arrives within `bound`.
    pub fn message_within(&mut self, bound: Duration) -> Option<(String, String)> {
        let early = self.early.pop_front();
        early.or_else(|| {
            self.client
                .reply_within(bound)
                .map(|reply| Self::message_of(&reply))
        })
    }

    /// The text of the next message.
    #[track_caller]
    pub fn message(&mut self) -> String {
        self.message_within(PATIENCE)
            .expect("a message is published")
            .1
    }

    /// All messages so far that the test has not read, each as `channel: text`.
    pub fn messages(&mut self) -> Vec<String> {
        self.catch_up();
        self.early
            .drain(..)
            .map(|(channel, text)| format!("{channel}: {text}"))
            .collect()
    }

    fn until(&mut self, is_it: impl Fn(&str) -> bool) {
        loop {
            let reply = self.client.reply();
            match &reply {
                Value::Array(parts) if parts.first().is_some_and(|first| is_it(&text(first))) => {
                    return;
                }
                _ => self.early.push_back(Self::message_of(&reply)),
            }
        }
    }

    /// The channel of a message, a sharded one as `s:<channel>`, and its text.
    fn message_of(reply: &Value) -> (String, String) {
        match reply {
            Value::Array(parts) => match parts.as_slice() {
                // Unlock messages have one channel name, for both kinds of channels.
                [kind, channel, message]
                    if text(kind) == "smessage" && !text(channel).starts_with("redisson") =>
                {
                    (format!("s:{}", text(channel)), text(message))
                }
                [.., channel, message] => (text(channel), text(message)),
                _ => panic!("no message: {}", text(reply)),
            },
            other => panic!("no message: {}", text(other)),
        }
    }
}
