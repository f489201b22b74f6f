//! The arguments of the commands, read as the contract says.

use rlock_core::Wait;

use crate::{store::decimal, told::Mode};

const MILLIS_MAX: u64 = 86_400_000;
const OWNER_MAX: usize = 256;
const CHANNEL_MAX: usize = 512;
const PERMITS_MAX: u64 = 1_000_000;
const KEYS_MAX: u64 = 1024;

/// What is asked for by `ACQUIRE` and `MACQUIRE`.
#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) owner: String,
    pub(crate) lease_ms: u32,
    pub(crate) mode: Mode,
    pub(crate) once: bool,
    pub(crate) wait: Wait,
    pub(crate) channel: Option<String>,
    pub(crate) grace_ms: Option<u32>,
}

/// A syntax error, or a number out of range.
#[derive(Debug)]
pub(crate) struct BadArgument;

/// Options in the order in which they stand, each with its value if it has one.
#[derive(Default)]
struct Options<'a> {
    shared: bool,
    once: bool,
    values: Vec<(&'static str, &'a str)>,
}

const WITH_VALUE: [&str; 5] = ["LIMIT", "PERMITS", "WAIT", "NOTIFY", "BIND"];

/// The arguments of `ACQUIRE` after the key.
pub(crate) fn acquire(arguments: &[&str]) -> Result<Acquire, BadArgument> {
    let [owner_, lease, options @ ..] = arguments else {
        return Err(BadArgument);
    };
    asked(owner_, lease, &Options::read(options)?)
}

/// The arguments of `MACQUIRE`: the keys, and what is asked for.
pub(crate) fn acquire_all<'a>(
    arguments: &[&'a str],
) -> Result<(Vec<&'a str>, Acquire), BadArgument> {
    let [owner_, lease, rest @ ..] = arguments else {
        return Err(BadArgument);
    };
    let (keys, options) = keys(rest)?;
    let options = Options::read(options)?;
    if options.shared
        || ["LIMIT", "PERMITS", "BIND"]
            .iter()
            .any(|it| options.value(it).is_some())
    {
        return Err(BadArgument);
    }
    Ok((keys, asked(owner_, lease, &options)?))
}

/// A number of keys, the keys, each once, and what follows.
pub(crate) fn keys<'a, 'b>(
    arguments: &'b [&'a str],
) -> Result<(Vec<&'a str>, &'b [&'a str]), BadArgument> {
    let [number, rest @ ..] = arguments else {
        return Err(BadArgument);
    };
    let number = from_to(number, 1, KEYS_MAX)?;
    let number = usize::try_from(number).map_err(|_| BadArgument)?;
    let (keys, rest) = rest.split_at_checked(number).ok_or(BadArgument)?;
    let twice = keys.iter().enumerate();
    let mut twice = twice.filter(|(at, key)| keys[..*at].contains(key));
    match twice.next() {
        None => Ok((keys.to_vec(), rest)),
        Some(_) => Err(BadArgument),
    }
}

fn asked(name: &str, lease: &str, options: &Options<'_>) -> Result<Acquire, BadArgument> {
    let wait = options.value("WAIT").map(|it| from_to(it, 0, MILLIS_MAX));
    let grace = options.value("BIND").map(|it| from_to(it, 0, MILLIS_MAX));
    let channel = options.value("NOTIFY");
    if channel.is_some_and(|it| !(1..=CHANNEL_MAX).contains(&it.len())) {
        return Err(BadArgument);
    }
    Ok(Acquire {
        owner: owner(name)?,
        lease_ms: lease_ms(lease)?,
        mode: options.mode()?,
        once: options.once,
        wait: match wait.transpose()? {
            None => Wait::No,
            Some(0) => Wait::Forever,
            Some(millis) => Wait::Millis(millis),
        },
        channel: channel.map(str::to_owned),
        grace_ms: grace.transpose()?.map(narrow).transpose()?,
    })
}

impl<'a> Options<'a> {
    fn read(words: &[&'a str]) -> Result<Self, BadArgument> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word.to_ascii_uppercase();
            let known = WITH_VALUE.iter().find(|it| **it == name);
            match (name.as_str(), known) {
                ("SHARED", _) if !options.shared => options.shared = true,
                ("ONCE", _) if !options.once => options.once = true,
                (_, Some(known)) if options.value(known).is_none() => {
                    let value = words.next().ok_or(BadArgument)?;
                    options.values.push((*known, *value));
                }
                _ => return Err(BadArgument),
            }
        }
        Ok(options)
    }

    fn value(&self, name: &str) -> Option<&'a str> {
        let found = self.values.iter().find(|it| it.0 == name);
        found.map(|it| it.1)
    }

    fn mode(&self) -> Result<Mode, BadArgument> {
        let limit = self.value("LIMIT").map(|it| from_to(it, 1, PERMITS_MAX));
        let limit = limit.transpose()?;
        let permits = self.value("PERMITS");
        let permits = permits.map(|it| from_to(it, 1, limit.unwrap_or(0)));
        let permits = narrow(permits.transpose()?.unwrap_or(1))?;
        let limit = limit.map(narrow).transpose()?;
        match (self.shared, limit) {
            (true, limit) => Ok(Mode::Shared { permits, limit }),
            (false, None) => Ok(Mode::Exclusive),
            (false, Some(_)) => Err(BadArgument),
        }
    }
}

/// An owner, and whether `ALL` follows.
pub(crate) fn release(arguments: &[&str]) -> Result<(String, bool), BadArgument> {
    match arguments {
        [it, rest @ ..] => Ok((owner(it)?, all(rest)?)),
        [] => Err(BadArgument),
    }
}

/// Whether there is `ALL`, and nothing else.
pub(crate) fn all(arguments: &[&str]) -> Result<bool, BadArgument> {
    match arguments {
        [] => Ok(false),
        [all] if all.eq_ignore_ascii_case("ALL") => Ok(true),
        _ => Err(BadArgument),
    }
}

/// The arguments of `LIST`: how many locks.
pub(crate) fn list(arguments: &[&str]) -> Result<usize, BadArgument> {
    let count = match arguments {
        [] => 10,
        [count, number] if count.eq_ignore_ascii_case("COUNT") => from_to(number, 1, 1000)?,
        _ => return Err(BadArgument),
    };
    usize::try_from(count).map_err(|_| BadArgument)
}

pub(crate) fn owner(text: &str) -> Result<String, BadArgument> {
    let length = (1..=OWNER_MAX).contains(&text.len());
    let plain = text.bytes().all(|byte| byte > 0x20 && byte != 0x7f);
    if length && plain && !text.starts_with("rlock:") {
        Ok(text.to_owned())
    } else {
        Err(BadArgument)
    }
}

pub(crate) fn lease_ms(text: &str) -> Result<u32, BadArgument> {
    narrow(from_to(text, 1, MILLIS_MAX)?)
}

fn from_to(text: &str, from: u64, to: u64) -> Result<u64, BadArgument> {
    let number = decimal(text).ok_or(BadArgument)?;
    let fits = (from..=to).contains(&number);
    fits.then_some(number).ok_or(BadArgument)
}

fn narrow(number: u64) -> Result<u32, BadArgument> {
    u32::try_from(number).map_err(|_| BadArgument)
}
