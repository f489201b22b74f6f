//! Scenario files: steps, and the commands in them. What the format means is
//! said in tests/scenarios/README.md.

use rlock_core::Wait;

use crate::store::decimal;

const MILLIS_MAX: u64 = 86_400_000;
const OWNER_MAX: usize = 256;
const CHANNEL_MAX: usize = 512;

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) line: usize,
    pub(crate) at_ms: u64,
    pub(crate) client: String,
    /// Empty if only time passes.
    pub(crate) command: Vec<String>,
    pub(crate) expected: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) owner: String,
    pub(crate) lease_ms: u64,
    pub(crate) once: bool,
    pub(crate) wait: Wait,
    pub(crate) channel: Option<String>,
}

/// A syntax error, or a number out of range.
#[derive(Debug)]
pub(crate) struct BadArgument;

/// Reads a scenario; `Err` names the line that is none.
pub(crate) fn parse(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut at_ms = 0;
    while let Some((line, head)) = lines.next() {
        if head.is_empty() || head.starts_with('#') {
            continue;
        }
        if lines.next().is_none_or(|(_, rule)| rule != "----") {
            return Err(format!("{}: no ---- after {head:?}", line + 1));
        }
        let mut words = head.split(' ').peekable();
        if let Some(time) = words.next_if(|word| word.starts_with('@')) {
            let time = decimal(&time[1..]).filter(|time| *time >= at_ms);
            at_ms = time.ok_or_else(|| format!("{}: not a later time", line + 1))?;
        }
        let client = words.next_if(|word| word.ends_with(':'));
        let client = client.map_or("x", |word| word.trim_end_matches(':'));
        let command = words.map(|word| if word == "\"\"" { "" } else { word });
        let expected = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| !line.is_empty());
        steps.push(Step {
            line: line + 1,
            at_ms,
            client: client.to_owned(),
            command: command.map(ToOwned::to_owned).collect(),
            expected: expected.map(ToOwned::to_owned).collect(),
        });
    }
    Ok(steps)
}

/// The arguments of `ACQUIRE` after the key.
pub(crate) fn acquire(arguments: &[&str]) -> Result<Acquire, BadArgument> {
    let [owner_, lease, options @ ..] = arguments else {
        return Err(BadArgument);
    };
    let mut acquire = Acquire {
        owner: owner(owner_)?,
        lease_ms: millis(lease, 1)?,
        once: false,
        wait: Wait::No,
        channel: None,
    };
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match option.to_ascii_uppercase().as_str() {
            "ONCE" if !acquire.once => acquire.once = true,
            "WAIT" if acquire.wait == Wait::No => {
                acquire.wait = match millis(options.next().ok_or(BadArgument)?, 0)? {
                    0 => Wait::Forever,
                    millis => Wait::Millis(millis),
                };
            }
            "NOTIFY" if acquire.channel.is_none() => {
                let channel = options.next().ok_or(BadArgument)?;
                if !(1..=CHANNEL_MAX).contains(&channel.len()) {
                    return Err(BadArgument);
                }
                acquire.channel = Some((*channel).to_owned());
            }
            _ => return Err(BadArgument),
        }
    }
    Ok(acquire)
}

/// The arguments of `RELEASE` after the key: the owner, and whether `ALL`.
pub(crate) fn release(arguments: &[&str]) -> Result<(String, bool), BadArgument> {
    match arguments {
        [it] => Ok((owner(it)?, false)),
        [it, all] if all.eq_ignore_ascii_case("ALL") => Ok((owner(it)?, true)),
        _ => Err(BadArgument),
    }
}

/// The arguments of `RENEW` after the key.
pub(crate) fn renew(arguments: &[&str]) -> Result<(String, u64), BadArgument> {
    match arguments {
        [it, lease] => Ok((owner(it)?, millis(lease, 1)?)),
        _ => Err(BadArgument),
    }
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

fn millis(text: &str, from: u64) -> Result<u64, BadArgument> {
    let number = decimal(text).ok_or(BadArgument)?;
    (from..=MILLIS_MAX)
        .contains(&number)
        .then_some(number)
        .ok_or(BadArgument)
}
