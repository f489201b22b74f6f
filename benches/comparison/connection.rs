//! A connection that is used by one thread, which waits where it must.
//!
//! The tests' client has a thread that reads; the time until that has told
//! another one is more than what is measured here.

use std::io::Write;
use std::net::TcpStream;

use redis::{Parser, Value};

use rlock_testkit::client::{PATIENCE, request, words};

/// The request for a round trip.
pub(crate) const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// Few enough that the server is not busy for long with what it gets at once.
const LINES_AT_ONCE: usize = 100;

pub(crate) struct Connection {
    stream: TcpStream,
    parser: Parser,
}

impl Connection {
    /// Connects, with RESP2.
    pub(crate) fn new(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server takes connections");
        stream.set_nodelay(true).expect("it is a TCP stream");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a bound can be set");
        let mut connection = Self {
            stream,
            parser: Parser::new(),
        };
        connection.ping();
        connection
    }

    /// Connects, and listens to a channel.
    pub(crate) fn listening(port: u16, channel: &str) -> Self {
        let mut connection = Self::new(port);
        connection.call(&format!("SUBSCRIBE {channel}"));
        connection
    }

    /// Sends requests as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Waits until something has arrived, and takes nothing of it.
    ///
    /// Here a time is taken: what it costs to understand the reply is no
    /// matter of the server.
    pub(crate) fn await_arrival(&self) {
        let arrived = self.stream.peek(&mut [0]);
        assert!(matches!(arrived, Ok(1)), "the server replies: {arrived:?}");
    }

    /// The next reply.
    pub(crate) fn reply(&mut self) -> Value {
        let reply = self.parser.parse_value(&mut self.stream);
        reply.expect("the server replies")
    }

    /// The reply to a command, given as words in a line.
    pub(crate) fn call(&mut self, line: &str) -> Value {
        self.send(&request(&words(line)));
        self.reply()
    }

    /// Sends requests, and waits for all of their replies.
    pub(crate) fn call_all(&mut self, requests: &[Vec<u8>], expected: &Value) {
        self.send(&requests.concat());
        for _ in requests {
            let reply = self.reply();
            assert_eq!(reply, *expected, "the reply is as expected");
        }
    }

    /// Sends many commands, given as lines, a batch at a time. None may be
    /// refused.
    pub(crate) fn call_lines(&mut self, lines: impl IntoIterator<Item = String>) {
        let mut lines = lines.into_iter();
        loop {
            let batch: Vec<_> = lines
                .by_ref()
                .take(LINES_AT_ONCE)
                .map(|line| request(&words(&line)))
                .collect();
            if batch.is_empty() {
                return;
            }
            self.send(&batch.concat());
            for _ in batch {
                let reply = self.reply();
                let is_refused = matches!(reply, Value::ServerError(_) | Value::Nil);
                assert!(!is_refused, "refused: {reply:?}");
            }
        }
    }

    /// The round trip of a command that does nothing.
    pub(crate) fn ping(&mut self) {
        self.send(PING);
        self.await_arrival();
        self.reply();
    }
}

/// The text of a message to a channel.
pub(crate) fn message(reply: &Value) -> String {
    match reply {
        Value::Array(parts) => rlock_testkit::client::text(parts.last().unwrap_or(&Value::Nil)),
        other => panic!("no message: {other:?}"),
    }
}
