//! What there is to see on a stage, as text: locks and messages, with their
//! fences counted.

use rlock_core::{
    ChannelKind, Fence, Holder, Mode, Name,
    codec::{self, Field},
};

use crate::{
    driver::text,
    stage::{Shown, Stage},
    store::Stored,
    stored::Held,
    told::{Outcome, Told, Word},
};

impl Stage {
    pub(crate) fn info(&self, name: Name<'_>) -> String {
        let now = self.driver.now;
        let Ok(held) = self.held(name) else {
            return "error WRONGTYPE".to_owned();
        };
        let lives: Vec<_> = held.iter().flat_map(|held| held.lives(now)).collect();
        let mode = mode(held, lives.is_empty());
        let fence = self.fence_or_nil(lives.iter().filter_map(|it| it.1.fence).max());
        let holders = lives.iter().map(|(owner, it)| {
            let mut shown = format!("{owner} count={}", it.count);
            if it.permits != 1 {
                shown += &format!(" permits={}", it.permits);
            }
            let left = it.deadline.millis_from(now);
            let fence = self.fence_or_nil(it.fence);
            shown += &format!(" fence={fence} lease-left={left}");
            if self.driver.locks.is_bound(name, owner.as_bytes()) {
                shown += " bound=1";
            }
            shown
        });
        let holders = holders.collect::<Vec<_>>().join("; ");
        let waiters: Vec<_> = self.driver.locks.waiters(now, name).collect();
        let queued = self.driver.locks.queued(name);
        assert_eq!(queued as usize, waiters.len(), "all are shown");
        let waiters = waiters.iter().map(|it| {
            let (owner, waited) = (text(it.owner), it.waited.as_millis());
            let mode = match it.mode {
                Mode::Exclusive => "exclusive",
                Mode::Shared { .. } => "shared",
            };
            if let Some(left) = it.kept_left_ms {
                return format!("{owner} kept {mode} waited={waited} kept-left={left}");
            }
            let left = it.wait_left_ms.map(|left| left.to_string());
            let left = left.unwrap_or_else(|| "nil".to_owned());
            format!("{owner} {mode} waited={waited} wait-left={left}")
        });
        let waiters = waiters.collect::<Vec<_>>().join("; ");
        format!("mode={mode} fence={fence} holders=[{holders}] queued={queued} waiters=[{waiters}]")
    }

    pub(crate) fn list(&self, count: usize) -> String {
        let now = self.driver.now;
        let locks = self.driver.locks.most_contended(now, 0).take(count);
        let locks = locks.map(|it| {
            let name = Name { db: 0, key: it.key };
            let held = self.held(name).unwrap_or_default();
            let holders = held.iter().flat_map(|held| held.lives(now)).count();
            let mode = mode(held, holders == 0);
            let (key, waiters) = (text(it.key), it.waiters);
            let oldest = it.oldest_wait.as_millis();
            format!("{key} mode={mode} holders={holders} waiters={waiters} oldest-wait={oldest}")
        });
        let locks = locks.collect::<Vec<_>>().join("; ");
        if locks.is_empty() {
            "empty".to_owned()
        } else {
            locks
        }
    }

    /// Who holds a lock, if anybody does; `Err` if the key holds no lock.
    fn held(&self, name: Name<'_>) -> Result<Option<&Held>, ()> {
        let stored: Option<&Stored> = self.driver.store.get(self.driver.now, name);
        stored.map(|it| it.held().ok_or(())).transpose()
    }

    pub(crate) fn all_fields(&self, name: Name<'_>) -> String {
        let fields = self.driver.store.fields(self.driver.now, name);
        let fields = fields.iter().map(|(field, value)| {
            let shown = match Field::named(field.as_bytes()) {
                Field::Fence => {
                    codec::fence(value.as_bytes()).map(|it| self.number(it).to_string())
                }
                Field::Terms(_) => codec::holder(value.as_bytes()).map(|it| self.terms(&it)),
                Field::Count(_) | Field::Reserved => None,
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

    /// What is kept of a shared holder beside its count.
    fn terms(&self, it: &Holder) -> String {
        let left = it.deadline.millis_from(self.driver.now);
        let fence = it.fence.map_or(0, |fence| self.number(fence));
        format!("( lease-left={left} fence={fence} permits={} )", it.permits)
    }

    pub(crate) fn show(&mut self, told: Told<Fence>) -> String {
        match told {
            Told::Answer {
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
            Told::Message {
                key,
                channel,
                word,
                owner,
                fence,
            } => {
                let word = match word {
                    Word::Grant => "grant",
                    Word::WaitOver => "timeout",
                    Word::Withdrawn => "withdrawn",
                    Word::Lost => "lost",
                };
                let fence = fence.map_or(0, |fence| self.number(fence));
                let (kind, channel) = match channel {
                    (ChannelKind::Plain, channel) => ("channel", channel),
                    (ChannelKind::Sharded, channel) => ("schannel", channel),
                };
                format!("{kind} {channel}: {word} {fence} {owner} {key}")
            }
            Told::Unlock { key } => format!("unlock {key}"),
        }
    }

    /// Numbers the fences that appear for the first time in this step.
    pub(crate) fn number_fences(&mut self, reply: Option<&Shown>, told: &[Told<Fence>]) {
        let told = told.iter().filter_map(|told| match told {
            Told::Message { fence, .. } => *fence,
            other => other.granted().copied(),
        });
        let reply = reply.and_then(|reply| match reply {
            Shown::Fence(fence) => Some(*fence),
            Shown::Text(_) => None,
        });
        let mut new: Vec<_> = told.chain(reply).collect();
        new.retain(|fence| !self.fences.contains(fence));
        new.sort();
        new.dedup();
        self.fences.extend(new);
    }

    pub(crate) fn number(&self, fence: Fence) -> usize {
        let at = self.fences.iter().position(|it| *it == fence);
        at.expect("a fence that is shown was given") + 1
    }

    fn fence_or_nil(&self, fence: Option<Fence>) -> String {
        let number = fence.map(|fence| self.number(fence).to_string());
        number.unwrap_or_else(|| "nil".to_owned())
    }
}

fn mode(held: Option<&Held>, free: bool) -> &'static str {
    match held {
        Some(held) if held.shared && !free => "shared",
        Some(_) if !free => "exclusive",
        _ => "free",
    }
}
