//! Any words as a command: what is accepted is what a second, naive reading of
//! the contract accepts, and what is refused is refused in one printable line.
#![no_main]
// The commands use more of these files than is used here.
#![allow(dead_code)]

#[path = "../../../../src/args.rs"]
mod args;
#[path = "../../../../src/syntax.rs"]
mod syntax;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rlock_core::Wait;

use crate::args::{ArgError, Argument};

const MILLIS_MAX: u64 = 86_400_000;

/// Words that mean something, which chance alone would hardly find.
const KNOWN: [&[u8]; 16] = [
    b"once",
    b"ONCE",
    b"WAIT",
    b"wait",
    b"NOTIFY",
    b"Notify",
    b"ALL",
    b"aLL",
    b"0",
    b"1",
    b"01",
    b"-1",
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

    let got = accepted(syntax::acquire(&words, MILLIS_MAX));
    let got = got.map(|it| Acquire {
        lease_ms: it.lease_ms,
        once: it.once,
        wait: Some(it.wait).filter(|wait| *wait != Wait::No),
        channel: it.channel.map(Argument::bytes),
    });
    assert_eq!(got, acquire(&naive));

    let got = accepted(syntax::renew(&words, MILLIS_MAX)).map(|it| it.lease_ms);
    let expected = match naive[..] {
        [_, _, owner, lease] if is_owner(owner) => millis(lease, 1),
        _ => None,
    };
    assert_eq!(got, expected);

    let got = accepted(syntax::release(&words)).map(|it| it.all);
    let expected = match naive[..] {
        [_, _, owner] if is_owner(owner) => Some(false),
        [_, _, owner, all] if is_owner(owner) && is(all, "ALL") => Some(true),
        _ => None,
    };
    assert_eq!(got, expected);

    let got = accepted(syntax::cancel(&words)).map(|it| it.owner.bytes());
    let expected = match naive[..] {
        [_, _, owner] if is_owner(owner) => Some(owner),
        _ => None,
    };
    assert_eq!(got, expected);
});

#[derive(Debug, Default, PartialEq)]
struct Acquire<'a> {
    lease_ms: u64,
    once: bool,
    wait: Option<Wait>,
    channel: Option<&'a [u8]>,
}

fn acquire<'a>(words: &[&'a [u8]]) -> Option<Acquire<'a>> {
    let [_, _, owner, lease, options @ ..] = words else {
        return None;
    };
    let acquire = Acquire {
        lease_ms: millis(lease, 1)?,
        ..Acquire::default()
    };
    is_owner(owner).then(|| with_options(acquire, options))?
}

fn with_options<'a>(mut so_far: Acquire<'a>, options: &[&'a [u8]]) -> Option<Acquire<'a>> {
    let rest = match options {
        [] => return Some(so_far),
        [once, rest @ ..] if is(once, "ONCE") && !so_far.once => {
            so_far.once = true;
            rest
        }
        [wait, number, rest @ ..] if is(wait, "WAIT") && so_far.wait.is_none() => {
            so_far.wait = Some(match millis(number, 0)? {
                0 => Wait::Forever,
                millis => Wait::Millis(millis),
            });
            rest
        }
        [notify, channel, rest @ ..] if is(notify, "NOTIFY") && so_far.channel.is_none() => {
            so_far.channel = Some(*channel).filter(|it| (1..=512).contains(&it.len()));
            so_far.channel?;
            rest
        }
        _ => return None,
    };
    with_options(so_far, rest)
}

fn is(word: &[u8], name: &str) -> bool {
    word.to_ascii_uppercase() == name.as_bytes()
}

fn is_owner(word: &[u8]) -> bool {
    let plain = word.iter().all(|byte| !matches!(byte, 0..=32 | 127));
    (1..=256).contains(&word.len()) && plain && !word.starts_with(b"rlock:")
}

/// A number is accepted as it would be written, and in no other way.
fn millis(word: &[u8], from: u64) -> Option<u64> {
    let text = std::str::from_utf8(word).ok()?;
    let number: u64 = text.parse().ok()?;
    let fits = (from..=MILLIS_MAX).contains(&number);
    (fits && number.to_string() == text).then_some(number)
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
