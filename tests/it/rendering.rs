//! Replies and messages in the words of a scenario file, and their comparison with it.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::Value;

use crate::client::text;

/// How far the times in a reply may be from the scenario's.
const TOLERANCE_MS: u64 = 40;

/// Renders what a server says, with its fences counted in the order of their first appearance.
#[derive(Default)]
pub(crate) struct Rendering(Vec<i64>);

impl Rendering {
    fn fence(&mut self, real: i64) -> String {
        if let Some(index) = self.0.iter().position(|known| *known == real) {
            return (index + 1).to_string();
        }
        self.0.push(real);
        if 0 < real && real < 1 << 53 {
            self.0.len().to_string()
        } else {
            format!("{real} can be none")
        }
    }

    /// An argument, in which `fence:2` stands for a fence that was met, and `fence:2+5` for a larger number.
    pub(crate) fn argument(&self, word: &str) -> Option<String> {
        let (fence, more) = word
            .strip_prefix("fence:")
            .map(|it| it.split_once('+').unwrap_or((it, "0")))?;
        let fence = self.0.get(fence.parse::<usize>().ok()?.checked_sub(1)?)?;
        Some((fence + more.parse::<i64>().ok()?).to_string())
    }

    /// A reply to this command.
    pub(crate) fn reply(&mut self, command: &str, reply: &Value) -> String {
        match (command, reply) {
            // Its sentence names the owners of the cycle, which are a part of what it says.
            (_, Value::ServerError(error)) if error.code() == "DEADLOCK" => {
                format!("error DEADLOCK {}", error.details().unwrap_or_default())
            }
            (_, Value::ServerError(error)) => format!("error {}", error.code()),
            (
                "RLOCK.ACQUIRE" | "RLOCK.MACQUIRE" | "RLOCK.RENEW" | "RLOCK.DOWNGRADE",
                Value::Int(real),
            ) => {
                format!("fence {}", self.fence(*real))
            }
            ("RLOCK.INFO", Value::Array(fields)) => self.info(fields),
            ("RLOCK.LIST", list) => locks(list),
            ("HGETALL", Value::Array(fields)) => self.hash(fields),
            ("PTTL", Value::Int(-1)) => "no ttl".into(),
            ("PTTL", Value::Int(-2)) => "no key".into(),
            ("PTTL", Value::Int(left)) => format!("ttl {left}"),
            (_, other) => text(other),
        }
    }

    fn hash(&mut self, fields: &[Value]) -> String {
        let mut pairs = fields
            .chunks_exact(2)
            .map(|pair| (text(&pair[0]), text(&pair[1])))
            .collect::<Vec<_>>();
        pairs.sort();
        for (name, value) in &mut pairs {
            if name == "rlock:fence" {
                *value = value
                    .parse()
                    .map_or("no number".into(), |real| self.fence(real));
            } else if name.starts_with("rlock:holder:") {
                *value = self.terms(value);
            }
        }
        let pairs = pairs
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>();
        if pairs.is_empty() {
            "empty".into()
        } else {
            pairs.join(" ")
        }
    }

    /// What is kept of a shared holder beside its count: the end of its lease, its fence and its permits.
    fn terms(&mut self, value: &str) -> String {
        let words = value.split(' ').map(|word| word.parse::<i64>().ok());
        let words = words.collect::<Vec<_>>();
        let [Some(end), Some(fence), Some(permits)] = words[..] else {
            return value.to_owned();
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX));
        let fence = if fence == 0 {
            "0".to_owned()
        } else {
            self.fence(fence)
        };
        let left = end.saturating_sub(now).max(0);
        format!("( lease-left={left} fence={fence} permits={permits} )")
    }

    fn info(&mut self, fields: &[Value]) -> String {
        let mut holders = maps(field(fields, "holders"));
        holders.sort_by_key(|holder| text(field(holder, "owner")));
        let holders = holders.iter().map(|holder| {
            let shown = |name| text(field(holder, name));
            let fence = self.fence_or_nil(field(holder, "fence"));
            let (owner, count, left) = (shown("owner"), shown("count"), shown("lease-left-ms"));
            // What is as it mostly is goes without saying.
            let permits = match shown("permits").as_str() {
                "1" => String::new(),
                permits => format!(" permits={permits}"),
            };
            let bound = match shown("bound").as_str() {
                "0" => String::new(),
                bound => format!(" bound={bound}"),
            };
            format!("{owner} count={count}{permits} fence={fence} lease-left={left}{bound}")
        });
        let holders = holders.collect::<Vec<_>>().join("; ");
        let waiters = each(field(fields, "waiters"), waiter);
        let mode = text(field(fields, "mode"));
        let queued = text(field(fields, "queued"));
        let fence = self.fence_or_nil(field(fields, "fence"));
        format!("mode={mode} fence={fence} holders=[{holders}] queued={queued} waiters=[{waiters}]")
    }

    fn fence_or_nil(&mut self, value: &Value) -> String {
        if let Value::Int(real) = value {
            self.fence(*real)
        } else {
            text(value)
        }
    }

    /// A message: `redisson_lock__channel:{k}: 0` and `c: grant 1700000000000000 owner k`.
    pub(crate) fn message(&mut self, message: &str) -> String {
        let (channel, message) = message.split_once(": ").unwrap_or((message, ""));
        if let Some(key) = channel.strip_prefix("redisson_lock__channel:") {
            let key = key
                .strip_prefix('{')
                .and_then(|key| key.strip_suffix('}'))
                .unwrap_or(key);
            return if message == "0" {
                format!("unlock {key}")
            } else {
                format!("unlock {key} by {message}")
            };
        }
        let mut words = message.split(' ').map(str::to_owned).collect::<Vec<_>>();
        if let Some(Ok(real)) = words.get(1).map(|fence| fence.parse::<i64>())
            && real != 0
        {
            words[1] = self.fence(real);
        }
        let kind = if channel.starts_with("s:") { "s" } else { "" };
        let channel = channel.trim_start_matches("s:");
        format!("{kind}channel {channel}: {}", words.join(" "))
    }
}

/// The value of a field of a map that RESP2 has flattened.
fn field<'a>(map: &'a [Value], name: &str) -> &'a Value {
    let pair = map.chunks_exact(2).find(|pair| text(&pair[0]) == name);
    pair.map_or(&Value::Okay, |pair| &pair[1])
}

/// The maps of a list, each flattened.
fn maps(list: &Value) -> Vec<&[Value]> {
    let Value::Array(list) = list else {
        return Vec::new();
    };
    let maps = list.iter().filter_map(|map| match map {
        Value::Array(map) => Some(map.as_slice()),
        _ => None,
    });
    maps.collect()
}

fn each(list: &Value, render: impl Fn(&[Value]) -> String) -> String {
    let shown = maps(list).into_iter().map(render);
    shown.collect::<Vec<_>>().join("; ")
}

/// A place in a queue: of one who waits, or kept for one who may come back.
fn waiter(waiter: &[Value]) -> String {
    let shown = |name| text(field(waiter, name));
    let (owner, mode, waited) = (shown("owner"), shown("mode"), shown("waited-ms"));
    let (wait_left, kept_left) = (shown("wait-left-ms"), shown("kept-left-ms"));
    if kept_left == "nil" {
        return format!("{owner} {mode} waited={waited} wait-left={wait_left}");
    }
    format!("{owner} kept {mode} waited={waited} kept-left={kept_left}")
}

/// A list of contended locks.
fn locks(list: &Value) -> String {
    let shown = each(list, |lock| {
        let shown = |name| text(field(lock, name));
        let (key, mode, holders) = (shown("key"), shown("mode"), shown("holders"));
        let (waiters, oldest) = (shown("waiters"), shown("oldest-wait-ms"));
        format!("{key} mode={mode} holders={holders} waiters={waiters} oldest-wait={oldest}")
    });
    if shown.is_empty() {
        "empty".into()
    } else {
        shown
    }
}

/// Whether the reply, the messages on channels in their order, and all else in any order are as expected: between
/// connections a client can see no order.
pub(crate) fn agree(expected: &[String], seen: &[String], has_reply: usize) -> bool {
    let parts = |lines: &[String]| {
        let (reply, outcomes) = lines.split_at(has_reply.min(lines.len()));
        let (messages, mut others): (Vec<_>, Vec<_>) = outcomes
            .iter()
            .cloned()
            .partition(|line| line.starts_with("channel ") || line.starts_with("schannel "));
        others.sort();
        [reply.to_vec(), messages, others].concat()
    };
    let (expected, seen) = (parts(expected), parts(seen));
    expected.len() == seen.len()
        && expected
            .iter()
            .zip(&seen)
            .all(|(expected, seen)| is_alike(expected, seen))
}

/// Equal, but for the tolerance of times.
fn is_alike(expected: &str, seen: &str) -> bool {
    let (expected, seen) = (
        expected.replace("ttl ", "ttl="),
        seen.replace("ttl ", "ttl="),
    );
    let time = |word: &str| {
        let (name, time) = word.split_once('=')?;
        let is_time = matches!(
            name,
            "lease-left" | "waited" | "wait-left" | "kept-left" | "oldest-wait" | "ttl"
        );
        time.trim_end_matches([']', ';'])
            .parse::<u64>()
            .ok()
            .filter(|_| is_time)
    };
    let (expected, seen) = (
        expected.split(' ').collect::<Vec<_>>(),
        seen.split(' ').collect::<Vec<_>>(),
    );
    expected.len() == seen.len()
        && expected.iter().zip(&seen).all(|(expected, seen)| {
            expected == seen
                || matches!((time(expected), time(seen)), (Some(a), Some(b)) if a.abs_diff(b) <= TOLERANCE_MS)
        })
}
