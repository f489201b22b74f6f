//! Any words as a command: what is accepted is what a second, naive reading of
//! the contract accepts, and what is refused is refused in one printable line.
#![no_main]
// The commands use more of these files than is used here.
#![allow(dead_code)]

#[path = "../../../../src/args.rs"]
mod args;
mod reading;
#[path = "../../../../src/syntax.rs"]
mod syntax;
#[path = "../../../../src/syntax_all.rs"]
mod syntax_all;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

use crate::{
    args::{ArgError, Argument},
    reading::Asked,
};

const MILLIS_MAX: u64 = 86_400_000;

/// Words that mean something, which chance alone would hardly find.
const KNOWN: [&[u8]; 32] = [
    b"once",
    b"ONCE",
    b"WAIT",
    b"wait",
    b"NOTIFY",
    b"Notify",
    b"ALL",
    b"aLL",
    b"SHARED",
    b"shared",
    b"LIMIT",
    b"limit",
    b"PERMITS",
    b"Permits",
    b"BIND",
    b"bind",
    b"COUNT",
    b"count",
    b"0",
    b"1",
    b"2",
    b"3",
    b"01",
    b"-1",
    b"1000",
    b"1024",
    b"1000000",
    b"1000001",
    b"86400000",
    b"86400001",
    b"owner",
    b"rlock:a",
];

#[derive(Arbitrary, Debug)]
enum Word {
    Known(u8),
    Any(Vec<u8>),
    /// One byte many times, for the limits of lengths.
    Long(u8, u16),
}

#[derive(Debug)]
struct Bytes(Vec<u8>);

impl Argument for Bytes {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<Word> for Bytes {
    fn from(word: Word) -> Self {
        Self(match word {
            Word::Known(at) => KNOWN[usize::from(at) % KNOWN.len()].to_vec(),
            Word::Any(bytes) => bytes,
            Word::Long(byte, length) => vec![byte; usize::from(length) % 1024],
        })
    }
}

fuzz_target!(|words: Vec<Word>| {
    let words: Vec<Bytes> = words.into_iter().map(Bytes::from).collect();
    let naive: Vec<&[u8]> = words.iter().map(Argument::bytes).collect();
    one_key(&words, &naive);
    several_keys(&words, &naive);
    let got = accepted(syntax::list(&words)).map(|it| it as u64);
    assert_eq!(got, reading::list(&naive));
});

fn one_key(words: &[Bytes], naive: &[&[u8]]) {
    let got = accepted(syntax::acquire(words, MILLIS_MAX));
    let got = got.map(|it| Asked {
        mode: it.mode,
        ..asked(it.lease_ms, &it.options)
    });
    assert_eq!(got, reading::acquire(naive));

    let got = accepted(syntax::renew(words, MILLIS_MAX)).map(|it| it.lease_ms.into());
    assert_eq!(got, reading::renew(naive));

    let got = accepted(syntax::release(words)).map(|it| it.all);
    assert_eq!(got, reading::release(naive));

    let got = accepted(syntax::key_and_owner(words)).map(|it| it.owner.bytes());
    assert_eq!(got, reading::key_and_owner(naive));
}

fn several_keys(words: &[Bytes], naive: &[&[u8]]) {
    let got = accepted(syntax_all::acquire(words, MILLIS_MAX));
    let got = got.map(|it| (keys(it.keys), asked(it.lease_ms, &it.options)));
    assert_eq!(got, reading::acquire_all(naive));

    let got = accepted(syntax_all::renew(words, MILLIS_MAX));
    let got = got.map(|it| (keys(it.keys), it.lease_ms.into()));
    assert_eq!(got, reading::renew_all(naive));

    let got = accepted(syntax_all::release(words));
    let got = got.map(|it| (keys(it.keys), it.all));
    assert_eq!(got, reading::release_all(naive));
}

fn keys(keys: &[Bytes]) -> Vec<&[u8]> {
    keys.iter().map(Argument::bytes).collect()
}

fn asked<'a>(lease_ms: u32, options: &syntax::Options<'a, Bytes>) -> Asked<'a> {
    Asked {
        lease_ms: lease_ms.into(),
        mode: rlock_core::Mode::Exclusive,
        once: options.once,
        wait: options.wait,
        channel: options.channel.map(Argument::bytes),
        grace_ms: options.grace_ms.map(u64::from),
    }
}

fn accepted<T>(parsed: Option<Result<T, ArgError>>) -> Option<T> {
    match parsed? {
        Ok(it) => Some(it),
        Err(error) => {
            let text = error.to_string();
            assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            assert!(text.len() < 512, "{text}");
            None
        }
    }
}
