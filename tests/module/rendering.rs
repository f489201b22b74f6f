//! Renders replies and messages in the format of a scenario file, and compares them with it.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::Value;

use rlock_testkit::client::text;
use rlock_testkit::script::{shown, sorted_outcomes, value_line};

/// How far the times in a reply may differ from the scenario's.
const TOLERANCE_MS: u64 = 40;

/// Renders the server's output, with its fences numbered in the order of their first appearance.
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

    /// An argument, in which `fence:2` is a known fence, and `fence:2+5` a larger number.
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
            // The error's text names the owners of the cycle, which are part of the result.
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
            ("RLOCK.LIST", Value::Array(list)) if list.is_empty() => "empty".into(),
            ("RLOCK.INFO", shown) => self.fields(shown),
            ("RLOCK.LIST", list) => self.entries("locks", list),
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

    /// The data of a shared holder beside its count: the end of its lease, its fence and its permits.
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

    /// The fields of an item: a map that RESP2 has flattened.
    fn fields(&mut self, map: &Value) -> String {
        let fields = pairs(map).map(|(name, value)| {
            let value = match value {
                Value::Int(real) if name == "fence" => self.fence(*real),
                Value::Array(_) => format!("[{}]", self.entries(&name, value)),
                other => text(other),
            };
            (name, value)
        });
        let fields = fields.collect::<Vec<_>>();
        shown(
            fields
                .iter()
                .map(|(name, value)| (name.as_str(), value.clone())),
        )
    }

    /// The fields of each item of a list. Shared holders have no order.
    fn entries(&mut self, name: &str, list: &Value) -> String {
        let Value::Array(list) = list else {
            return text(list);
        };
        let mut list = list.iter().collect::<Vec<_>>();
        if name == "holders" {
            list.sort_by_key(|map| pairs(map).next().map(|(_, owner)| text(owner)));
        }
        let entries = list.into_iter().map(|map| self.fields(map));
        entries.collect::<Vec<_>>().join("; ")
    }

    /// A message: `redisson_lock__channel:{k}: 0` and `c: grant 1700000000000000 owner k`.
    pub(crate) fn message(&mut self, message: &str) -> String {
        let (channel, message) = message.split_once(": ").unwrap_or((message, ""));
        let key_after = |prefix: &str| {
            let key = channel.strip_prefix(prefix)?;
            let tagged = key.strip_prefix('{').and_then(|key| key.strip_suffix('}'));
            Some(tagged.unwrap_or(key))
        };
        if let Some(key) = key_after("rlock:value:") {
            let (fence, value) = match message.split_once(' ') {
                Some((fence, value)) => (fence, Some(value)),
                None => (message, None),
            };
            let fence = fence
                .parse()
                .map_or_else(|_| fence.to_owned(), |it| self.fence(it));
            return value_line(key, &fence, value);
        }
        if let Some(key) = key_after("redisson_lock__channel:") {
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

/// The pairs of a map that RESP2 has flattened.
fn pairs(map: &Value) -> impl Iterator<Item = (String, &Value)> {
    let flat = match map {
        Value::Array(flat) => flat.as_slice(),
        _ => &[],
    };
    flat.chunks_exact(2).map(|pair| (text(&pair[0]), &pair[1]))
}

/// Whether the reply and the effects on other clients are as expected.
pub(crate) fn agree(expected: &[String], seen: &[String], has_reply: usize) -> bool {
    let parts = |lines: &[String]| {
        let (reply, outcomes) = lines.split_at(has_reply.min(lines.len()));
        [reply.to_vec(), sorted_outcomes(outcomes)].concat()
    };
    let (expected, seen) = (parts(expected), parts(seen));
    expected.len() == seen.len()
        && expected
            .iter()
            .zip(&seen)
            .all(|(expected, seen)| is_equal(expected, seen))
}

/// Whether two texts are equal, with a tolerance for times.
fn is_equal(expected: &str, seen: &str) -> bool {
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
