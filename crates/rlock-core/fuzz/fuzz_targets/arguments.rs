//! Any words as a command: accepted values are within their limits, and a refusal
//! is one printable line.
#![no_main]

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rlock_core::{
    Mode, Wait,
    syntax::{
        self, Acquire, ArgError, CHANNEL_LEN_MAX, Max, NamedChannel, OWNER_LEN_MAX, Opt,
        RESERVED_PREFIX, Value,
    },
};

const MILLIS_MAX: u64 = 86_400_000;

/// Meaningful words, which chance alone would hardly find: the options in upper
/// and lower case, numbers at and beyond their limits, and a few more.
static KNOWN: LazyLock<Vec<String>> = LazyLock::new(|| {
    let others = ["2", "3", "01", "-1", "1000", "1024", "owner", "rlock:a"];
    let mut known: Vec<_> = others.map(str::to_owned).into();
    for option in Opt::ALL {
        let spec = option.spec();
        known.extend([spec.token.to_owned(), spec.token.to_lowercase()]);
        if let Value::Number { min, max, .. } = &spec.value {
            let max = match *max {
                Max::Of(max) => max,
                Max::LeaseMs => MILLIS_MAX,
                Max::Given(_) => continue,
            };
            known.extend([*min, max, max + 1].map(|it| it.to_string()));
        }
    }
    known.sort();
    known.dedup();
    known
});

#[derive(Arbitrary, Debug)]
enum Word {
    Known(u8),
    Any(Vec<u8>),
    /// One byte repeated, for the limits of lengths.
    Long(u8, u16),
}

impl From<Word> for Vec<u8> {
    fn from(word: Word) -> Self {
        match word {
            Word::Known(at) => KNOWN[usize::from(at) % KNOWN.len()].clone().into(),
            Word::Any(bytes) => bytes,
            Word::Long(byte, length) => vec![byte; usize::from(length) % 1024],
        }
    }
}

fuzz_target!(|words: Vec<Word>| {
    let words: Vec<Vec<u8>> = words.into_iter().map(Vec::from).collect();
    if let Some(it) = accepted(syntax::acquire(&words, MILLIS_MAX)) {
        check_request(&it);
        assert_eq!(it.keys.len(), 1);
    }
    if let Some(it) = accepted(syntax::acquire_all(&words, MILLIS_MAX)) {
        check_request(&it);
        check_keys(it.keys);
        assert_eq!(
            (it.request.options.mode, it.request.options.bind),
            (Mode::Exclusive, None)
        );
    }
    if let Some(it) = accepted(syntax::renew(&words, MILLIS_MAX)) {
        check_owner(it.owner);
        check_millis(it.lease_ms, 1);
        check_channel(it.channel);
        if let Some(grace) = it.bind {
            check_millis(grace.millis(), 0);
        }
    }
    if let Some(it) = accepted(syntax::renew_all(&words, MILLIS_MAX)) {
        check_owner(it.owner);
        check_millis(it.lease_ms, 1);
        check_channel(it.channel);
        check_keys(it.keys);
    }
    if let Some(it) = accepted(syntax::release(&words)) {
        check_owner(it.owner);
    }
    if let Some(it) = accepted(syntax::release_all(&words)) {
        check_owner(it.owner);
        check_keys(it.keys);
    }
    if let Some(it) = accepted(syntax::key_and_owner(&words)) {
        check_owner(it.owner);
    }
    if let Some(count) = accepted(syntax::list(&words)) {
        assert!((1..=1000).contains(&count));
    }
});

fn check_request(it: &Acquire<'_, Vec<u8>>) {
    let request = &it.request;
    check_owner(it.owner);
    assert_eq!(request.owner, it.owner);
    check_millis(request.options.lease_ms, 1);
    if let Some(grace) = request.options.bind {
        check_millis(grace.millis(), 0);
    }
    if let Wait::Millis(wait) = request.wait {
        assert!((1..=MILLIS_MAX).contains(&wait));
    }
    if let Some(keep) = request.options.keep {
        assert!((1..=600_000).contains(&keep.millis()) && request.wait != Wait::No);
    }
    if let Mode::Shared { permits, limit } = request.options.mode {
        assert!((1..=limit.unwrap_or(1)).contains(&permits));
        assert!(limit.is_none_or(|limit| limit <= 1_000_000));
    }
    assert_eq!(request.channel, it.channel.map(|it| it.channel()));
    check_channel(it.channel);
}

fn check_channel(channel: Option<NamedChannel<'_, Vec<u8>>>) {
    if let Some(channel) = channel {
        assert!((1..=CHANNEL_LEN_MAX).contains(&channel.word.len()));
    }
}

fn check_owner(owner: &[u8]) {
    assert!((1..=OWNER_LEN_MAX).contains(&owner.len()));
    assert!(!owner.starts_with(RESERVED_PREFIX));
    assert!(!owner.iter().any(|byte| matches!(byte, 0..=32 | 127)));
}

fn check_millis(millis: u32, least: u32) {
    assert!(millis >= least && u64::from(millis) <= MILLIS_MAX);
}

fn check_keys(keys: &[Vec<u8>]) {
    let mut once = keys.to_vec();
    once.sort_unstable();
    once.dedup();
    assert!((1..=1024).contains(&keys.len()) && once.len() == keys.len());
}

fn accepted<T>(parsed: Result<T, ArgError>) -> Option<T> {
    match parsed {
        Ok(it) => Some(it),
        Err(error) => {
            let text = error.to_string();
            assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            assert!(text.len() < 512, "{text}");
            None
        }
    }
}
