//! The contract's syntax, read as naively as can be.

use rlock_core::{Mode, Wait};

const MILLIS_MAX: u64 = 86_400_000;
const PERMITS_MAX: u64 = 1_000_000;
const KEYS_MAX: u64 = 1024;

/// What follows owner and lease of a request.
#[derive(Debug, PartialEq)]
pub(crate) struct Asked<'a> {
    pub(crate) lease_ms: u64,
    pub(crate) mode: Mode,
    pub(crate) once: bool,
    pub(crate) wait: Wait,
    pub(crate) channel: Option<&'a [u8]>,
    pub(crate) grace_ms: Option<u64>,
}

type Keys<'a> = Vec<&'a [u8]>;

pub(crate) fn acquire<'a>(words: &[&'a [u8]]) -> Option<Asked<'a>> {
    let [_, _, owner, lease, options @ ..] = words else {
        return None;
    };
    asked(owner, lease, options)
}

pub(crate) fn acquire_all<'a>(words: &[&'a [u8]]) -> Option<(Keys<'a>, Asked<'a>)> {
    let [_, owner, lease, rest @ ..] = words else {
        return None;
    };
    let (keys, options) = keys(rest)?;
    let alone = ["SHARED", "LIMIT", "PERMITS", "BIND"];
    let asked = asked(owner, lease, options)?;
    let named = with_values(options)?;
    let named = named
        .iter()
        .any(|(word, _)| alone.iter().any(|it| is(word, it)));
    (!named).then_some((keys, asked))
}

pub(crate) fn renew(words: &[&[u8]]) -> Option<u64> {
    match words {
        [_, _, owner, lease] if is_owner(owner) => number(lease, 1, MILLIS_MAX),
        _ => None,
    }
}

pub(crate) fn renew_all<'a>(words: &[&'a [u8]]) -> Option<(Keys<'a>, u64)> {
    match words {
        [_, owner, lease, rest @ ..] if is_owner(owner) => match keys(rest)? {
            (keys, []) => Some((keys, number(lease, 1, MILLIS_MAX)?)),
            _ => None,
        },
        _ => None,
    }
}

pub(crate) fn release(words: &[&[u8]]) -> Option<bool> {
    match words {
        [_, _, owner, rest @ ..] if is_owner(owner) => all(rest),
        _ => None,
    }
}

pub(crate) fn release_all<'a>(words: &[&'a [u8]]) -> Option<(Keys<'a>, bool)> {
    match words {
        [_, owner, rest @ ..] if is_owner(owner) => {
            let (keys, rest) = keys(rest)?;
            Some((keys, all(rest)?))
        }
        _ => None,
    }
}

pub(crate) fn key_and_owner<'a>(words: &[&'a [u8]]) -> Option<&'a [u8]> {
    match words {
        [_, _, owner] if is_owner(owner) => Some(owner),
        _ => None,
    }
}

pub(crate) fn list(words: &[&[u8]]) -> Option<u64> {
    match words {
        [_] => Some(10),
        [_, count, many] if is(count, "COUNT") => number(many, 1, 1000),
        _ => None,
    }
}

fn asked<'a>(owner: &[u8], lease: &[u8], options: &[&'a [u8]]) -> Option<Asked<'a>> {
    let options = with_values(options)?;
    let value = |name| {
        let mut found = options.iter().filter(|(word, _)| is(word, name));
        found.next().map(|(_, value)| *value)
    };
    let times = |name| options.iter().filter(|(word, _)| is(word, name)).count();
    let names = [
        "SHARED", "LIMIT", "PERMITS", "ONCE", "WAIT", "NOTIFY", "BIND",
    ];
    if names.iter().any(|name| times(name) > 1) || !is_owner(owner) {
        return None;
    }
    let shared = times("SHARED") == 1;
    let limit = match value("LIMIT") {
        Some(limit) if shared => Some(number(limit, 1, PERMITS_MAX)?),
        Some(_) => return None,
        None => None,
    };
    let permits = match (value("PERMITS"), limit) {
        (Some(permits), Some(limit)) => number(permits, 1, limit)?,
        (Some(_), None) => return None,
        (None, _) => 1,
    };
    let narrow = |number: u64| u32::try_from(number).ok();
    let mode = match shared {
        true => Mode::Shared {
            permits: narrow(permits)?,
            limit: match limit {
                None => None,
                Some(limit) => Some(narrow(limit)?),
            },
        },
        false => Mode::Exclusive,
    };
    let wait = match value("WAIT").map(|it| number(it, 0, MILLIS_MAX)) {
        None => Wait::No,
        Some(Some(0)) => Wait::Forever,
        Some(millis) => Wait::Millis(millis?),
    };
    let grace = value("BIND").map(|it| number(it, 0, MILLIS_MAX));
    let channel = value("NOTIFY");
    if channel.is_some_and(|it| !(1..=512).contains(&it.len())) {
        return None;
    }
    Some(Asked {
        lease_ms: number(lease, 1, MILLIS_MAX)?,
        mode,
        once: times("ONCE") == 1,
        wait,
        channel,
        grace_ms: match grace {
            None => None,
            Some(grace) => Some(grace?),
        },
    })
}

/// Each option with its value, or with an empty one if it has none.
fn with_values<'a>(words: &[&'a [u8]]) -> Option<Vec<(&'a [u8], &'a [u8])>> {
    let mut options: Vec<(&[u8], &[u8])> = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if is(word, "ONCE") || is(word, "SHARED") {
            options.push((word, b""));
        } else if ["LIMIT", "PERMITS", "WAIT", "NOTIFY", "BIND"]
            .iter()
            .any(|it| is(word, it))
        {
            options.push((word, words.next()?));
        } else {
            return None;
        }
    }
    Some(options)
}

/// As many keys as the first word says, each once, and what follows.
fn keys<'a, 'b>(words: &'b [&'a [u8]]) -> Option<(Keys<'a>, &'b [&'a [u8]])> {
    let [many, rest @ ..] = words else {
        return None;
    };
    let many = usize::try_from(number(many, 1, KEYS_MAX)?).ok()?;
    let (keys, rest) = rest.split_at_checked(many)?;
    let mut once = keys.to_vec();
    once.sort_unstable();
    once.dedup();
    (once.len() == keys.len()).then(|| (keys.to_vec(), rest))
}

fn all(words: &[&[u8]]) -> Option<bool> {
    match words {
        [] => Some(false),
        [word] if is(word, "ALL") => Some(true),
        _ => None,
    }
}

fn is(word: &[u8], name: &str) -> bool {
    word.to_ascii_uppercase() == name.as_bytes()
}

fn is_owner(word: &[u8]) -> bool {
    let plain = word.iter().all(|byte| !matches!(byte, 0..=32 | 127));
    (1..=256).contains(&word.len()) && plain && !word.starts_with(b"rlock:")
}

/// A number is accepted as it would be written, and in no other way.
fn number(word: &[u8], from: u64, to: u64) -> Option<u64> {
    let text = std::str::from_utf8(word).ok()?;
    let number: u64 = text.parse().ok()?;
    let fits = (from..=to).contains(&number);
    (fits && number.to_string() == text).then_some(number)
}
