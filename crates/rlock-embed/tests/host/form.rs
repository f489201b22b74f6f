//! Events, outputs and the configuration in the format of `docs/embedding.md`, as a host writes and reads them.

use rlock_embed::VERSION;
use serde_json::{Value, json};

/// Instead of a time: no limit.
pub(crate) const NONE: u64 = u64::MAX;

/// An event, as bytes and by the names of its fields.
#[derive(Default)]
pub(crate) struct Event {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fields: Vec<Value>,
}

impl Event {
    pub(crate) fn of(kind: u8) -> Self {
        Self::default().u8("kind", kind)
    }

    fn with(mut self, name: &str, form: &str, bytes: &[u8], value: Value) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.fields.push(json!([name, form, value]));
        self
    }

    pub(crate) fn u8(self, name: &str, number: u8) -> Self {
        self.with(name, "u8", &[number], json!(number))
    }

    pub(crate) fn u16(self, name: &str, number: u16) -> Self {
        self.with(name, "u16", &number.to_le_bytes(), json!(number))
    }

    pub(crate) fn u32(self, name: &str, number: u32) -> Self {
        self.with(name, "u32", &number.to_le_bytes(), json!(number))
    }

    /// A time without a limit is left out of the record.
    pub(crate) fn u64(self, name: &str, number: u64) -> Self {
        let value = (number != NONE).then_some(number);
        self.with(name, "u64", &number.to_le_bytes(), json!(value))
    }

    pub(crate) fn bytes(self, name: &str, bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).expect("what is recorded is text");
        self.with(name, "bytes", &counted(bytes), json!(text))
    }

    pub(crate) fn list(self, name: &str, items: &[&str]) -> Self {
        let mut bytes = u32::try_from(items.len()).unwrap().to_le_bytes().to_vec();
        for item in items {
            bytes.extend(counted(item.as_bytes()));
        }
        self.with(name, "list", &bytes, json!(items))
    }
}

fn counted(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap();
    [&length.to_le_bytes(), bytes].concat()
}

/// The output, as a host reads it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Connect {
        connection: u64,
        how: u8,
        host: String,
        port: u16,
    },
    Write {
        connection: u64,
        bytes: Vec<u8>,
    },
    Close {
        connection: u64,
    },
    Granted {
        call: u64,
        guard: u64,
        owner: String,
        fences: Vec<(String, u64)>,
    },
    Refused {
        call: u64,
    },
    Done {
        call: u64,
    },
    Failed {
        call: u64,
        code: String,
        text: String,
        is_transient: bool,
    },
    Answered {
        call: u64,
        answers: Vec<Value>,
    },
    Over {
        guard: u64,
        why: u8,
    },
    Note {
        level: u8,
        text: String,
    },
    Leader {
        call: u64,
        /// The fence, the value, the owner and the milliseconds left.
        leader: Option<(u64, String, String, u64)>,
        missed: bool,
    },
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().expect("an action ends early");
        self.0 = rest;
        *taken
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.u32() as usize;
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken.to_vec()
    }

    fn text(&mut self) -> String {
        String::from_utf8(self.bytes()).expect("text")
    }

    fn value(&mut self) -> Value {
        match self.u8() {
            0 => Value::Null,
            1 => json!(self.u64().cast_signed()),
            2 => json!(self.text()),
            3 => (0..self.u32()).map(|_| self.value()).collect(),
            4 => {
                let pairs = (0..self.u32()).map(|_| {
                    let (key, value) = (self.value(), self.value());
                    (key.as_str().expect("a name").to_owned(), value)
                });
                Value::Object(pairs.collect())
            }
            5 => json!({ "error": self.text() }),
            other => panic!("there is no value {other}"),
        }
    }

    fn action(&mut self) -> Action {
        match self.u8() {
            1 => Action::Connect {
                connection: self.u64(),
                how: self.u8(),
                host: self.text(),
                port: self.u16(),
            },
            2 => Action::Write {
                connection: self.u64(),
                bytes: self.bytes(),
            },
            3 => Action::Close {
                connection: self.u64(),
            },
            4 => Action::Granted {
                call: self.u64(),
                guard: self.u64(),
                owner: self.text(),
                fences: (0..self.u32()).map(|_| (self.text(), self.u64())).collect(),
            },
            5 => Action::Refused { call: self.u64() },
            6 => Action::Done { call: self.u64() },
            7 => Action::Failed {
                call: self.u64(),
                code: self.text(),
                text: self.text(),
                is_transient: self.u8() == 1,
            },
            8 => {
                let call = self.u64();
                assert_eq!(self.u8(), 3, "answers are a list");
                let answers = (0..self.u32()).map(|_| self.value()).collect();
                Action::Answered { call, answers }
            }
            9 => Action::Over {
                guard: self.u64(),
                why: self.u8(),
            },
            10 => Action::Note {
                level: self.u8(),
                text: self.text(),
            },
            11 => {
                let (call, leads) = (self.u64(), self.u8() == 1);
                let leader = (self.u64(), self.text(), self.text(), self.u64());
                Action::Leader {
                    call,
                    leader: leads.then_some(leader),
                    missed: self.u8() == 1,
                }
            }
            other => panic!("there is no action {other}"),
        }
    }
}

/// The deadline and the actions of an output.
pub(crate) fn read(output: &[u8]) -> (u64, Vec<Action>) {
    let mut reader = Reader(output);
    let deadline = reader.u64();
    let mut actions = Vec::new();
    while !reader.0.is_empty() {
        actions.push(reader.action());
    }
    (deadline, actions)
}

/// The configuration of a machine.
pub(crate) fn configuration(url: &str, name: &str) -> Event {
    let begun = Event::default().u32("version", VERSION);
    let begun = begun
        .bytes("url", url.as_bytes())
        .bytes("name", name.as_bytes());
    let begun = begun
        .bytes("library", b"host")
        .bytes("library version", b"1");
    let begun = begun
        .u64("response", NONE)
        .u64("retry", NONE)
        .u64("replication", NONE);
    // It becomes part of the client's channel, which must be unique.
    let first = name.bytes().next().unwrap_or(0);
    (0..32).fold(begun, |event, at| event.u8("seed", first + at))
}
