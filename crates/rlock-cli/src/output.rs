//! Where output goes: results go to stdout, everything else to stderr.
//!
//! A reader that has gone away ends a command quietly, as it has seen what it
//! wanted; and nothing that is said on stderr can fail.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;
use serde_json::json;

use crate::failure::{Code, Failure};

/// How to speak: in JSON, or in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// A result: one line of JSON, or the lines of `words`.
    pub(crate) fn result(
        self,
        result: &impl Serialize,
        words: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if !self.json {
            return self.bytes(format!("{}\n", words().trim_end()).as_bytes());
        }
        let line = serde_json::to_string(result)
            .map_err(|error| Failure::new(Code::Internal, format!("cannot write JSON: {error}")))?;
        self.bytes(format!("{line}\n").as_bytes())
    }

    /// A result as it is.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
        written.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Failure::new(Code::Done, ""),
            _ => Failure::internal("cannot write to stdout", &error),
        })
    }

    /// Something to be said that is no result.
    pub(crate) fn say(self, words: &str) {
        // A closed stderr means that nobody wants to know.
        let _ = writeln!(io::stderr(), "{words}");
    }

    /// An event of `exec`: a line of JSON; without JSON, `words` if any.
    pub(crate) fn event(self, event: &serde_json::Value, words: Option<&str>) {
        match words {
            _ if self.json => self.say(&event.to_string()),
            Some(words) => self.say(words),
            None => {}
        }
    }

    /// Why the command ends.
    pub(crate) fn failure(self, failure: &Failure) {
        if failure.message.is_empty() {
            return;
        }
        if self.json {
            let (code, message) = (failure.code.number(), &failure.message);
            let error = json!({"code": code, "message": message, "hint": failure.hint});
            return self.say(&json!({ "error": error }).to_string());
        }
        self.say(&format!("rlock: {}", failure.message));
        if let Some(hint) = &failure.hint {
            self.say(&format!("rlock: {hint}"));
        }
    }
}
