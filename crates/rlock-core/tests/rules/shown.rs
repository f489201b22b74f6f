//! The visible state of a stage, as text: locks and messages, with numbered
//! fences.

use rlock_core::{
    ChannelKind, Fence, Holder, Holding, Name, ViewFields, ViewValue,
    codec::{self, Field},
};

use rlock_testkit::script;

use crate::stage::{Shown, Stage};
use rlock_testkit::core::{
    driver::text,
    messages::{MessageKind, Outcome, Sent},
};

impl Stage {
    pub(crate) fn info(&self, name: Name<'_>) -> String {
        let Ok(holding) = self.holding(name) else {
            return "error WRONGTYPE".to_owned();
        };
        let locks = &self.driver.locks;
        let waiters = locks.waiters(self.driver.now, name).count();
        assert_eq!(locks.queued(name) as usize, waiters, "all are shown");
        self.fields(holding.fields(self.driver.now, name, Some(locks)))
    }

    pub(crate) fn list(&self, count: usize) -> String {
        let locks = self.driver.locks.most_contended(self.driver.now, 0);
        let locks = locks.take(count).map(|it| {
            let name = Name { db: 0, key: it.key };
            let holding = self.holding(name).unwrap_or_default();
            self.fields(it.fields(holding.is_shared, holding.holders.len()))
        });
        let locks = locks.collect::<Vec<_>>().join("; ");
        if locks.is_empty() {
            "empty".to_owned()
        } else {
            locks
        }
    }

    fn fields(&self, fields: ViewFields<'_>) -> String {
        let fields = fields.into_iter().map(|(name, value)| {
            let value = match value {
                ViewValue::Nil => "nil".to_owned(),
                ViewValue::Number(number) => match Fence::new(number) {
                    Some(fence) if name == "fence" => self.number(fence).to_string(),
                    _ => number.to_string(),
                },
                ViewValue::Text(it) => text(it),
                ViewValue::List(entries) => {
                    let entries = entries.map(|it| self.fields(it));
                    format!("[{}]", entries.collect::<Vec<_>>().join("; "))
                }
            };
            (name, value)
        });
        script::shown(fields)
    }

    /// The holders of a lock; `Err` if the key is not a lock.
    fn holding(&self, name: Name<'_>) -> Result<Holding, ()> {
        let now = self.driver.now;
        let Some(stored) = self.driver.store.get(now, name) else {
            return Ok(Holding::default());
        };
        let held = stored.held().ok_or(())?;
        let holders = held
            .live_holders(now)
            .map(|it| (it.0.as_bytes().into(), it.1));
        Ok(Holding {
            is_shared: held.shared,
            holders: holders.collect(),
            extras: held.extras.clone(),
        })
    }

    pub(crate) fn all_fields(&self, name: Name<'_>) -> String {
        let fields = self.driver.store.fields(self.driver.now, name);
        let fields = fields.iter().map(|(field, value)| {
            let shown = match Field::named(field.as_bytes()) {
                Field::Fence => {
                    codec::fence(value.as_bytes()).map(|it| self.number(it).to_string())
                }
                Field::Terms(_) => codec::holder(value.as_bytes()).map(|it| self.terms(&it)),
                Field::Count(_) | Field::Extra(_) | Field::Reserved => None,
            };
            format!("{field}={}", shown.as_ref().unwrap_or(value))
        });
        let shown = fields.collect::<Vec<_>>().join(" ");
        if shown.is_empty() {
            "empty".to_owned()
        } else {
            shown
        }
    }

    /// The terms of a shared holder.
    fn terms(&self, it: &Holder) -> String {
        let left = it.deadline.millis_from(self.driver.now);
        let fence = it.fence.map_or(0, |fence| self.number(fence));
        format!("( lease-left={left} fence={fence} permits={} )", it.permits)
    }

    pub(crate) fn show(&mut self, sent: Sent<Fence>) -> String {
        match sent {
            Sent::Answer {
                handle, outcome, ..
            } => {
                let (client, _) = self.calls.remove(&handle).expect("a call is answered once");
                match outcome {
                    Outcome::Granted(fence) => format!("{client}: fence {}", self.number(fence)),
                    Outcome::WaitOver | Outcome::Superseded | Outcome::Cancelled => {
                        format!("{client}: nil")
                    }
                }
            }
            Sent::Message {
                key,
                channel,
                word,
                owner,
                fence,
            } => {
                let word = match word {
                    MessageKind::Grant => "grant",
                    MessageKind::WaitOver => "timeout",
                    MessageKind::Withdrawn => "withdrawn",
                    MessageKind::Lost => "lost",
                };
                let fence = fence.map_or(0, |fence| self.number(fence));
                let (kind, channel) = match channel {
                    (ChannelKind::Plain, channel) => ("channel", channel),
                    (ChannelKind::Sharded, channel) => ("schannel", channel),
                };
                format!("{kind} {channel}: {word} {fence} {owner} {key}")
            }
            Sent::Unlock { key } => format!("unlock {key}"),
            Sent::Value { key, fence, value } => {
                let fence = self.number(fence).to_string();
                script::value_line(&key, &fence, value.as_deref())
            }
        }
    }

    /// Numbers the fences that are new in this step.
    pub(crate) fn number_fences(&mut self, reply: Option<&Shown>, sent: &[Sent<Fence>]) {
        let sent = sent.iter().filter_map(|sent| match sent {
            Sent::Message { fence, .. } => *fence,
            other => other.granted().copied(),
        });
        let reply = reply.and_then(|reply| match reply {
            Shown::Fence(fence) => Some(*fence),
            Shown::Text(_) => None,
        });
        let mut new: Vec<_> = sent.chain(reply).collect();
        new.retain(|fence| !self.fences.contains(fence));
        new.sort();
        new.dedup();
        self.fences.extend(new);
    }

    pub(crate) fn number(&self, fence: Fence) -> usize {
        let at = self.fences.iter().position(|it| *it == fence);
        at.expect("a fence that is shown was given") + 1
    }
}
