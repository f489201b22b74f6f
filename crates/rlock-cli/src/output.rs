//! Where output goes: results go to stdout, everything else to stderr.
//!
//! If the reader closes stdout, the command ends quietly: the reader has seen
//! what it wanted. Errors of stderr are ignored.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;
use serde_json::json;

use crate::failure::{Code, Failure};

/// The form of the output: JSON or text.
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

    /// Writes a result: one line of JSON, or the lines of `words`.
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

    /// Writes a result unchanged.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
        written.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Failure::new(Code::Done, ""),
            _ => Failure::internal("cannot write to stdout", &error),
        })
    }

    /// Writes a line to stderr.
    pub(crate) fn say(self, words: &str) {
        // If stderr is closed, nobody reads it.
        let _ = writeln!(io::stderr(), "{words}");
    }

    /// Writes an event of `exec`: a line of JSON, or `words` without JSON.
    pub(crate) fn event(self, event: &serde_json::Value, words: Option<&str>) {
        match words {
            _ if self.json => self.say(&event.to_string()),
            Some(words) => self.say(words),
            None => {}
        }
    }

    /// Writes why the command ends.
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
