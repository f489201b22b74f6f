//! What a run came to, in words.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::picture;
use rlock_testkit::history::checker::{self, Violation};
use rlock_testkit::history::{History, Moment, micros, seconds};

pub(crate) struct Report {
    pub(crate) world: &'static str,
    pub(crate) length: Duration,
    pub(crate) seed: u64,
}

impl Report {
    /// Prints it and draws the picture; whether nothing is wrong.
    pub(crate) fn conclude(&self, history: &History) -> bool {
        let violations = checker::check(history);
        println!("{}", operations(history));
        println!("{}", grants(history));
        let leaders = history.seen.iter().filter(|it| it.fence.is_some());
        println!("  leaders seen by observers: {}", leaders.count());
        println!("{}", faults(history));
        println!(
            "  held by two at once: {} times; violations: {}",
            checker::overlaps(history).len(),
            violations.len()
        );
        let file = picture_file(self.world);
        match std::fs::write(
            &file,
            picture::draw(self.world, self.seed, history, &violations),
        ) {
            Ok(()) => println!("  picture: {}", file.display()),
            Err(error) => eprintln!("  no picture at {}: {error}", file.display()),
        }
        println!(
            "  again: cargo test --workspace --test chaos -- --world {} --seconds {} --seed {}",
            self.world,
            self.length.as_secs(),
            self.seed
        );
        explain(history, &violations);
        violations.is_empty()
    }
}

/// In `target/chaos`, of this workspace unless it is somewhere else.
fn picture_file(world: &str) -> PathBuf {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| target.into());
    let directory = PathBuf::from(target).join("chaos");
    let _ = std::fs::create_dir_all(&directory);
    let directory = directory.canonicalize().unwrap_or(directory);
    directory.join(format!("{world}.svg"))
}

fn counted<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_insert(0) += 1;
    }
    let counts = counts.iter().map(|(word, count)| format!("{count} {word}"));
    counts.collect::<Vec<_>>().join(", ")
}

fn operations(history: &History) -> String {
    let took = |call: &rlock_testkit::history::Call| call.ended.map(|ended| ended - call.asked);
    let longest = history
        .calls
        .iter()
        .filter(|call| call.outcome == "granted")
        .filter_map(took)
        .max();
    format!(
        "  calls: {} ({})\n  outcomes: {}\n  longest wait that was granted: {}",
        history.calls.len(),
        counted(history.calls.iter().map(|call| call.verb)),
        counted(history.calls.iter().map(|call| call.outcome.as_str())),
        seconds(longest.unwrap_or(0))
    )
}

fn grants(history: &History) -> String {
    let kind = |hold: &rlock_testkit::history::Hold| match (hold.is_shared, hold.is_replicated) {
        (true, _) => "shared",
        (false, true) => "replicated",
        (false, false) => "exclusive",
    };
    format!(
        "  grants: {} ({}); ends: {}",
        history.holds.len(),
        counted(history.holds.iter().map(kind)),
        counted(history.holds.iter().map(|hold| hold.end.as_str()))
    )
}

fn faults(history: &History) -> String {
    let mut kinds: BTreeMap<&str, (u32, Moment)> = BTreeMap::new();
    for fault in &history.faults {
        let (count, longest) = kinds.entry(fault.kind).or_default();
        *count += 1;
        let until = fault.healed.unwrap_or(history.end()) + 2_000_000;
        *longest = (*longest).max(longest_pause(history, fault.begun, until));
    }
    let lines = kinds.iter().map(|(kind, (count, longest))| {
        format!(
            "\n    {count} × {kind}: longest time without any grant of a key {}",
            seconds(*longest)
        )
    });
    let still: Moment = history
        .stalls
        .iter()
        .map(|still| still.ended - still.begun)
        .sum();
    format!(
        "  faults: {}{}\n  clients stalled for {} in all",
        history.faults.len(),
        lines.collect::<String>(),
        seconds(still.max(micros(Duration::ZERO)))
    )
}

/// The longest time in which one key was granted to nobody.
fn longest_pause(history: &History, from: Moment, to: Moment) -> Moment {
    let to = to.min(history.stopped.unwrap_or(to));
    let pause = |holds: &Vec<usize>| {
        let granted = holds.iter().map(|hold| history.holds[*hold].granted);
        let inside = granted.filter(|moment| (from..to).contains(moment));
        let (mut before, mut longest) = (from, 0);
        for moment in inside.chain([to]) {
            longest = longest.max(moment.saturating_sub(before));
            before = moment;
        }
        longest
    };
    history
        .holds_by_key()
        .values()
        .map(pause)
        .max()
        .unwrap_or(0)
}

fn explain(history: &History, violations: &[Violation]) {
    for violation in violations.iter().take(20) {
        eprintln!(
            "\n{:?} at {}: {}",
            violation.rule,
            seconds(violation.moment),
            violation.text
        );
        let near = history.faults.iter().filter(|fault| {
            fault.begun <= violation.moment + 5_000_000
                && fault.healed.unwrap_or(Moment::MAX) + 10_000_000 >= violation.moment
        });
        for fault in near {
            eprintln!(
                "  near: {} ({}) from {} to {}",
                fault.kind,
                fault.detail,
                seconds(fault.begun),
                seconds(fault.healed.unwrap_or(0))
            );
        }
    }
    if violations.len() > 20 {
        eprintln!("\nand {} more", violations.len() - 20);
    }
}
