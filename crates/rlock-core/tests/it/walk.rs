//! Long random walks, and all short ones.

use rlock_core::Wait;

use crate::{
    operation::{Foreign, Operation, Pass},
    pair::{Pair, Setup},
};

/// Xorshift (G. Marsaglia, 2003): enough to wander about with, and the same
/// everywhere.
struct Steps(u64);

impl Iterator for Steps {
    type Item = [u8; 6];

    fn next(&mut self) -> Option<[u8; 6]> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let bytes = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes();
        bytes.first_chunk().copied()
    }
}

/// Walks, and fails with the operations that lead to the difference.
fn walk(seed: u64, setup: Setup, operations: usize) {
    let mut pair = Pair::new(setup);
    let mut last = Vec::new();
    for (at, bytes) in Steps(seed).take(operations).enumerate() {
        let operation = Operation::decode(bytes);
        last.push(operation);
        if let Err(difference) = pair.check(operation) {
            let tail = &last[last.len().saturating_sub(12)..];
            panic!("seed {seed}, step {at}: {difference}\nafter {tail:#?}");
        }
    }
}

const SEEDS: [u64; 10] = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89];
const OPERATIONS: usize = 60_000;

#[test]
fn core_and_model_agree_on_a_long_walk() {
    for seed in SEEDS {
        walk(seed, Setup::WIDE, OPERATIONS);
    }
}

#[test]
fn core_and_model_agree_on_a_long_walk_between_narrow_limits() {
    for seed in SEEDS {
        walk(seed, Setup::NARROW, OPERATIONS);
    }
}

const fn ask(owner: usize, wait: Wait, once: bool, notify: Option<(usize, usize)>) -> Operation {
    Operation::Acquire {
        key: 0,
        owner,
        lease_ms: 5,
        once,
        wait,
        notify,
    }
}

/// What two owners and a bystander may do to one lock.
const MOVES: [Operation; 11] = [
    ask(0, Wait::Millis(3), false, None),
    ask(1, Wait::Forever, true, None),
    ask(1, Wait::Forever, true, Some((0, 0))),
    Operation::Release {
        key: 0,
        owner: 0,
        all: false,
    },
    Operation::Release {
        key: 0,
        owner: 1,
        all: true,
    },
    Operation::Renew {
        key: 0,
        owner: 0,
        lease_ms: 1,
    },
    Operation::Cancel { key: 0, owner: 1 },
    Operation::HangUp { recent: 0 },
    Operation::Undeliver { recent: 0 },
    Operation::Foreign {
        change: Foreign::Del { key: 0 },
        settled: true,
    },
    Operation::Pass {
        time: Pass::PastNextEnd,
        punctual: true,
    },
];

const DEPTH: usize = 5;

#[test]
fn core_and_model_agree_on_every_short_sequence() {
    let mut sequence = [0; DEPTH];
    loop {
        let mut pair = Pair::new(Setup::WIDE);
        for (at, chosen) in sequence.iter().enumerate() {
            if let Err(difference) = pair.check(MOVES[*chosen]) {
                let moves: Vec<_> = sequence[..=at].iter().map(|it| MOVES[*it]).collect();
                panic!("{difference}\nafter {moves:#?}");
            }
        }
        let Some(turned) = sequence.iter().rposition(|it| *it + 1 < MOVES.len()) else {
            return;
        };
        sequence[turned] += 1;
        sequence[turned + 1..].fill(0);
    }
}
