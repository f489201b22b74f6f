//! All that can happen to two contenders for a lock of three servers: messages
//! in any order, servers that crash, links that break, leases that end while
//! their holder stands still.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use crate::quorum_world::{Action, Without, World};

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

fn search(world: World, without: Without) -> Search {
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
            continue;
        }
        for action in world.actions(without) {
            let mut next = world.clone();
            let broken = next.act(action, without);
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

#[test]
fn no_two_hold_a_quorum_fences_rise_and_nobody_is_stuck() {
    // With a fault there are two million states: too many for a slow build.
    let faults_max = u8::from(!cfg!(debug_assertions));
    for (faults, rounds) in [(0, 1), (1, 1)] {
        if faults > faults_max {
            continue;
        }
        let found = search(World::new(faults, rounds), Without::Nothing);
        println!(
            "{faults} faults, {rounds} rounds: {} states",
            found.visited.len()
        );
        assert_eq!(found.violation, None);
        assert_eq!(found.stuck().map(|story| format!("{story:?}")), None);
        assert!(!found.done.is_empty());
    }
}

#[test]
fn without_the_commit_a_fence_of_a_quorum_is_smaller_than_an_earlier_one() {
    let found = search(World::new(2, 1), Without::Commit);
    let violation = found.violation.expect("a violation");
    println!("{violation}");
    assert!(violation.starts_with("fence "), "{violation}");
}

#[cfg(not(debug_assertions))]
#[test]
fn without_the_grace_two_hold_a_quorum_at_once() {
    let found = search(World::new(1, 1), Without::Grace);
    let violation = found.violation.expect("a violation");
    println!("{violation}");
    assert!(violation.starts_with("two hold"), "{violation}");
}
