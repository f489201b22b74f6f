//! Finds forbidden events in a history.
//!
//! Guards of two owners may appear valid at the same moment only where no guarantee applies: an operator ended the
//! first hold, a server lost its data, or a master that alone knew of the first grant died (or was paused). Then the
//! first owner must learn of the loss within its lease, and the second must have the larger fence. A failover is no
//! exception for a grant that replicas have acknowledged.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Call, Fault, History, Hold, Loses, Moment, Seen, seconds};

/// The delay that a loaded machine may add.
const SLACK: u64 = 1_500_000;
/// The longest time after a fault until one of the contenders gets the lock.
const SETTLED: u64 = 4_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Only one owner at a time sees an exclusive lock as held.
    Exclusion,
    /// The later grant has the larger fence.
    Fences,
    /// A guard that was once invalid stays invalid.
    Validity,
    /// Every call ends within its limit.
    Bound,
    /// An owner that lost a lock learns of it within its lease.
    Notified,
    /// Nothing is left at the end.
    Remains,
    /// Without faults, the server continues to grant each lock.
    Liveness,
    /// Observers see leaders in the order of their fences, and every leader that lasts.
    Observed,
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub key: &'static str,
    pub moment: Moment,
    pub text: String,
}

/// All violations, ordered by time.
pub fn check(history: &History) -> Vec<Violation> {
    let mut found: Vec<_> = overlaps(history)
        .into_iter()
        .filter(|(one, other)| !is_allowed(history, one, other))
        .map(|(one, other)| held_twice(one, other))
        .collect();
    for (key, holds) in history.holds_by_key() {
        let holds: Vec<_> = holds.iter().map(|hold| &history.holds[*hold]).collect();
        fences(&holds, &mut found);
        check_notified(history, &holds, &mut found);
        liveness(history, key, &holds, &mut found);
    }
    validity(history, &mut found);
    bounds(history, &mut found);
    observed(history, &mut found);
    let end = history.end();
    found.extend(history.remains.iter().map(|text| Violation {
        rule: Rule::Remains,
        key: "",
        moment: end,
        text: text.clone(),
    }));
    found.sort_by_key(|violation| violation.moment);
    found
}

fn describe(hold: &Hold) -> String {
    let (mode, copies) = (
        if hold.is_shared {
            "shared"
        } else {
            "exclusive"
        },
        if hold.is_replicated {
            ", replicated"
        } else {
            ""
        },
    );
    let believed = hold.believed.map_or_else(
        || "never believed valid".to_owned(),
        |(first, last)| format!("believed valid {} to {}", seconds(first), seconds(last)),
    );
    format!(
        "contender {} as {} ({mode}{copies}, lease {}): asked {}, granted {} under fence {}, {believed}, {} at {}",
        hold.contender,
        hold.owner,
        seconds(hold.lease),
        seconds(hold.asked),
        seconds(hold.granted),
        hold.fence,
        if hold.end.is_empty() {
            "not ended"
        } else {
            &hold.end
        },
        seconds(hold.ended.unwrap_or(0)),
    )
}

/// Holds of different owners that appeared valid at the same moment, unless both are shared.
pub fn overlaps(history: &History) -> Vec<(&Hold, &Hold)> {
    let mut found = Vec::new();
    for holds in history.holds_by_key().into_values() {
        let believed = |hold: usize| {
            let hold = &history.holds[hold];
            hold.believed.map(|(first, last)| (first, last, hold))
        };
        let mut valid: Vec<_> = holds.into_iter().filter_map(believed).collect();
        valid.sort_by_key(|(first, ..)| *first);
        let mut open: Vec<(Moment, &Hold)> = Vec::new();
        for (first, last, hold) in valid {
            open.retain(|(last, _)| *last >= first);
            let excludes =
                |other: &Hold| other.owner != hold.owner && !(other.is_shared && hold.is_shared);
            let others = open.iter().filter(|(_, other)| excludes(other));
            found.extend(others.map(|(_, other)| (*other, hold)));
            open.push((last, hold));
        }
    }
    found
}

fn held_twice(one: &Hold, other: &Hold) -> Violation {
    let both = format!("\n  {}\n  {}", describe(one), describe(other));
    Violation {
        rule: Rule::Exclusion,
        key: other.key,
        moment: other.believed.map_or(other.granted, |(first, _)| first),
        text: format!("`{}` was held twice:{both}", other.key),
    }
}

/// Whether a fault explains that two holds were valid at the same moment.
fn is_allowed(history: &History, one: &Hold, other: &Hold) -> bool {
    let (first, second) = if one.fence < other.fence {
        (one, other)
    } else {
        (other, one)
    };
    let is_explained = |fault: &&Fault| {
        let healed = fault.healed.unwrap_or(Moment::MAX);
        let last = first.believed.map_or(0, |(_, last)| last);
        loses(fault, first)
            && fault.begun <= second.granted
            && healed >= first.asked
            && last <= notified_by(history, fault, first)
    };
    first.fence < second.fence && history.faults.iter().any(|fault| is_explained(&fault))
}

fn loses(fault: &Fault, hold: &Hold) -> bool {
    match fault.loses {
        Loses::Nothing => false,
        Loses::Unreplicated => !hold.is_replicated,
        Loses::All => true,
        Loses::Key(key) => key == hold.key,
    }
}

/// When the holder must know of the loss at the latest.
fn notified_by(history: &History, fault: &Fault, hold: &Hold) -> Moment {
    let healed = fault.healed.unwrap_or_else(|| history.end());
    let stall = history.stalled(healed, healed + hold.lease + SLACK);
    healed + hold.lease + SLACK + stall
}

fn fences(holds: &[&Hold], found: &mut Vec<Violation>) {
    // A grant before the start of a call was granted by the server before that call's grant.
    let mut by_asking: Vec<&Hold> = holds.to_vec();
    by_asking.sort_by_key(|hold| hold.asked);
    let (mut granted, mut largest): (_, Option<&Hold>) = (holds.iter().peekable(), None);
    let mut owners: HashMap<u64, &Hold> = HashMap::new();
    for hold in by_asking {
        while let Some(before) = granted.next_if(|before| before.granted < hold.asked) {
            largest = largest
                .filter(|largest| largest.fence >= before.fence)
                .or(Some(before));
        }
        let smaller = largest.filter(|before| match before.owner == hold.owner {
            true => before.fence > hold.fence,
            false => before.fence >= hold.fence,
        });
        // Two owners never share a guard.
        let shared = owners
            .insert(hold.fence, hold)
            .filter(|other| other.owner != hold.owner);
        if let Some(before) = smaller.or(shared) {
            found.push(Violation {
                rule: Rule::Fences,
                key: hold.key,
                moment: hold.granted,
                text: format!(
                    "a later grant of `{}` has no larger fence:\n  {}\n  {}",
                    hold.key,
                    describe(before),
                    describe(hold)
                ),
            });
        }
    }
}

fn check_notified(history: &History, holds: &[&Hold], found: &mut Vec<Violation>) {
    let ending = |fault: &&Fault| matches!(fault.loses, Loses::All | Loses::Key(_));
    for fault in history.faults.iter().filter(ending) {
        let lost = |hold: &&&Hold| hold.granted < fault.begun && loses(fault, hold);
        for hold in holds.iter().filter(lost) {
            let Some((_, last)) = hold
                .believed
                .filter(|(_, last)| *last > notified_by(history, fault, hold))
            else {
                continue;
            };
            found.push(Violation {
                rule: Rule::Notified,
                key: hold.key,
                moment: last,
                text: format!(
                    "`{}` was ended by {} ({}) at {}, and its holder was not notified within its lease:\n  {}",
                    hold.key,
                    fault.kind,
                    fault.detail,
                    seconds(fault.begun),
                    describe(hold)
                ),
            });
        }
    }
}

fn validity(history: &History, found: &mut Vec<Violation>) {
    let is_back = |hold: &&Hold| {
        hold.doubted
            .zip(hold.believed)
            .is_some_and(|(no, (_, yes))| yes > no)
    };
    for hold in history.holds.iter().filter(is_back) {
        found.push(Violation {
            rule: Rule::Validity,
            key: hold.key,
            moment: hold.doubted.unwrap_or(0),
            text: format!(
                "a guard of `{}` was valid again after it was not:\n  {}",
                hold.key,
                describe(hold)
            ),
        });
    }
}

fn bounds(history: &History, found: &mut Vec<Violation>) {
    let end = history.end();
    let is_late = |call: &&Call| {
        let (Some(limit), until) = (call.limit, call.ended.unwrap_or(end)) else {
            return call.ended.is_none();
        };
        until.saturating_sub(call.asked) > limit + SLACK + history.stalled(call.asked, until)
    };
    for call in history.calls.iter().filter(is_late) {
        found.push(Violation {
            rule: Rule::Bound,
            key: call.key,
            moment: call.asked,
            text: format!(
                "contender {} asked for {} of `{}` at {}; limit {}; it ended {}, {}",
                call.contender,
                call.verb,
                call.key,
                seconds(call.asked),
                call.limit.map_or("none".into(), seconds),
                call.ended
                    .map_or("never".into(), |ended| format!("at {}", seconds(ended))),
                call.outcome
            ),
        });
    }
}

/// How long a leader must last so that every connected observer sees it.
const SEEN_AFTER: u64 = 1_000_000;

fn observed(history: &History, found: &mut Vec<Violation>) {
    let mut by_observer: BTreeMap<usize, Vec<&Seen>> = BTreeMap::new();
    for seen in &history.seen {
        by_observer.entry(seen.observer).or_default().push(seen);
    }
    let calm = calm_times(history);
    let lasted = history.holds.iter().filter(|hold| {
        let (from, to) = (hold.granted, hold.believed.map_or(0, |it| it.1));
        let is_calm = calm.iter().any(|it| it.0 <= from && to <= it.1);
        hold.leads && is_calm && to.saturating_sub(from) > SEEN_AFTER + history.stalled(from, to)
    });
    let lasted: Vec<_> = lasted.collect();
    for (observer, seen) in by_observer {
        let mut violation = |key, moment, text| {
            let rule = Rule::Observed;
            found.push(Violation {
                rule,
                key,
                moment,
                text,
            });
        };
        let mut last = 0;
        for seen in &seen {
            // After a reconnect the server may have lost the last one, and grant smaller fences.
            if seen.missed {
                last = 0;
            }
            let fence = seen.fence.unwrap_or(last);
            if fence < last {
                let text = format!("observer {observer} saw fence {fence} after {last}");
                violation("", seen.moment, text);
            }
            last = last.max(fence);
        }
        for hold in &lasted {
            let is_it = |it: &&Seen| it.fence == Some(hold.fence);
            let passed = |it: &&&Seen| it.fence.is_none_or(|fence| fence <= hold.fence);
            let after = seen.iter().skip_while(|it| it.moment < hold.granted);
            let excused = || {
                let until = after.clone().take_while(passed).count();
                after.clone().take(until + 1).any(|it| it.missed)
            };
            if !seen.iter().any(is_it) && !excused() {
                let text = format!("observer {observer} did not see {}", describe(hold));
                violation(hold.key, hold.granted, text);
            }
        }
    }
}

/// The intervals without any fault or its consequences.
pub fn calm_times(history: &History) -> Vec<(Moment, Moment)> {
    let (mut calm, mut since) = (Vec::new(), 0);
    for fault in &history.faults {
        calm.push((since, fault.begun));
        since = fault.healed.unwrap_or(Moment::MAX);
    }
    calm.push((since, history.stopped.unwrap_or(0)));
    calm.retain(|(from, to)| from < to);
    calm
}

fn liveness(history: &History, key: &'static str, holds: &[&Hold], found: &mut Vec<Violation>) {
    let grants: BTreeSet<Moment> = holds.iter().map(|hold| hold.granted).collect();
    // A holder may keep the lock as long as the longest hold, and a dead holder for a lease.
    let longest = holds.iter().map(|hold| hold.lease).max().unwrap_or(0);
    let held = |hold: &&Hold| hold.believed.map_or(0, |(first, last)| last - first);
    let limit = SETTLED + longest + holds.iter().map(held).max().unwrap_or(0);
    for (from, to) in calm_times(history) {
        let mut before = from;
        for moment in grants.range(from..to).copied().chain([to]) {
            if moment - before > limit + history.stalled(before, moment) {
                found.push(Violation {
                    rule: Rule::Liveness,
                    key,
                    moment: before,
                    text: format!(
                        "no grant of `{key}` from {} to {}, without any fault",
                        seconds(before),
                        seconds(moment)
                    ),
                });
            }
            before = moment;
        }
    }
}
