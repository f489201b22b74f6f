//! All that can happen to two contenders for a lock of three servers: messages
//! in any order, servers that crash, links that break, clocks that are ahead,
//! leases that end while their holder stalls.
//!
//! Built with the tests of `rlock-core`, as fast code: there are millions of states.

#[path = "../../../../rlock-engine/src/session/quorum/plan.rs"]
#[allow(unreachable_pub, reason = "shared with the engine")]
mod plan;

mod world;

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use world::{Action, CALM, Setting, Without, World};

/// How a state was first reached.
struct Visited {
    from: Option<usize>,
    action: Option<Action>,
}

struct Search {
    visited: Vec<Visited>,
    /// From where each state is reached without a fault.
    before: Vec<Vec<u32>>,
    done: Vec<usize>,
    violation: Option<String>,
}

fn search(setting: &Setting) -> Search {
    let world = World::new(setting);
    let mut search = Search {
        visited: vec![Visited {
            from: None,
            action: None,
        }],
        before: vec![Vec::new()],
        done: Vec::new(),
        violation: None,
    };
    let mut known = HashMap::from([(hash(&world), 0)]);
    let mut open = VecDeque::from([(0, world)]);
    while let Some((id, world)) = open.pop_front() {
        if world.is_done() {
            search.done.push(id);
            if world.faults == setting.faults && !world.is_served(setting) {
                let story = search.story(id);
                search.violation = Some(format!("nobody is served: {story:?}"));
                return search;
            }
            continue;
        }
        for action in world.actions(setting) {
            let mut next = world.clone();
            let broken = next.act(action, setting);
            let count = known.len();
            let to = *known.entry(hash(&next)).or_insert(count);
            if to == count {
                search.visited.push(Visited {
                    from: Some(id),
                    action: Some(action),
                });
                search.before.push(Vec::new());
            }
            if next.faults == world.faults {
                search.before[to].push(u32::try_from(id).expect("few states"));
            }
            if let Err(rule) = broken {
                search.violation = Some(format!("{rule}: {:?}", search.story(to)));
                return search;
            }
            assert!(count < 8_000_000, "too many states");
            if to == count {
                open.push_back((to, next));
            }
        }
    }
    search
}

fn hash(world: &World) -> u64 {
    let mut hasher = Mixer(0);
    world.hash(&mut hasher);
    hasher.finish()
}

/// Half of the time is spent here, so it is a quick one: splitmix64 of each word.
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word.cast_unsigned() as u64);
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        self.0 = mixed ^ (mixed >> 27);
    }
}

impl Search {
    fn story(&self, mut id: usize) -> Vec<Action> {
        let mut story = Vec::new();
        while let Some(from) = self.visited[id].from {
            story.extend(self.visited[id].action);
            id = from;
        }
        story.reverse();
        story
    }

    /// A state from which nobody ever gets what he wants, if no fault helps.
    fn stuck(&self) -> Option<Vec<Action>> {
        let mut can_end = vec![false; self.visited.len()];
        let mut open = self.done.clone();
        while let Some(id) = open.pop() {
            if !std::mem::replace(&mut can_end[id], true) {
                open.extend(self.before[id].iter().map(|id| *id as usize));
            }
        }
        can_end.iter().position(|it| !it).map(|id| self.story(id))
    }
}

/// Nothing is wrong in that world.
fn is_right(what: &str, setting: Setting) {
    let found = search(&setting);
    println!("{what}: {} states", found.visited.len());
    assert_eq!(found.violation, None, "{what}");
    let stuck = found.stuck().map(|story| format!("{story:?}"));
    assert_eq!(stuck, None, "{what}");
    assert!(!found.done.is_empty());
}

/// What is wrong in that world.
fn wrong(setting: Setting) -> String {
    let violation = search(&setting).violation.expect("a violation");
    println!("{violation}");
    violation
}

const TRIES: Setting = Setting {
    tries: true,
    ..CALM
};

#[test]
fn no_two_hold_a_quorum_fences_rise_and_nobody_is_stuck() {
    is_right("no fault", CALM);
    is_right(
        "a fault",
        Setting {
            faults: 1,
            attempts: 2,
            ..CALM
        },
    );
}

#[test]
fn of_those_who_try_a_quorum_one_gets_it() {
    is_right("tries", TRIES);
    let faults = 1;
    is_right("tries, a fault", Setting { faults, ..TRIES });
}

#[test]
fn a_clock_that_is_far_ahead_keeps_nobody_from_a_quorum() {
    let clocks = [1000, 100, 0];
    is_right("a clock ahead", Setting { clocks, ..CALM });
    is_right("a clock ahead, tries", Setting { clocks, ..TRIES });
    let faults = 1;
    let ahead = Setting { clocks, ..CALM };
    is_right("a clock ahead, a fault", Setting { faults, ..ahead });
}

/// Servers that forget all, one after the other.
const CRASHES: Setting = Setting {
    is_held: true,
    faults: 2,
    is_meant: |action| matches!(action, Action::CrashLosing(_)),
    ..CALM
};

#[test]
fn servers_of_a_quorum_may_crash_one_after_the_other() {
    is_right("two crashes", CRASHES);
}

#[test]
fn without_the_commit_a_fence_of_a_quorum_is_smaller_than_an_earlier_one() {
    let violation = wrong(Setting {
        faults: 2,
        is_meant: |action| matches!(action, Action::Cut(..)),
        without: Without::Commit,
        ..CALM
    });
    assert!(violation.starts_with("fence "), "{violation}");
}

#[test]
fn without_the_grace_two_hold_a_quorum_at_once() {
    let violation = wrong(Setting {
        faults: 1,
        is_meant: |action| matches!(action, Action::CrashLosing(_)),
        without: Without::Grace,
        ..CALM
    });
    assert!(violation.starts_with("two hold"), "{violation}");
}

#[test]
fn with_a_hold_that_outlives_the_grace_two_hold_a_quorum_at_once() {
    let without = Without::Bound;
    let violation = wrong(Setting { without, ..CRASHES });
    assert!(violation.starts_with("two hold"), "{violation}");
}
