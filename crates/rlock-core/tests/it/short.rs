//! All short sequences of a few operations.

use rlock_core::{Mode, Wait};

use crate::{
    operation::{Asked, Foreign, Operation, Pass, SHARED as TOGETHER},
    pair::{Pair, Setup},
};

const fn asked(owner: usize, wait: Wait) -> Asked {
    Asked::plain(owner, 5, wait)
}

/// Waits without end, and keeps its place for as long as a lease.
const fn keeping(owner: usize) -> Asked {
    Asked {
        keep_ms: Some(5),
        ..asked(owner, Wait::Forever)
    }
}

const fn ask(key: usize, mode: Mode, asked: Asked) -> Operation {
    Operation::Acquire { key, mode, asked }
}

const fn release(key: usize, owner: usize) -> Operation {
    Operation::Release {
        key,
        owner,
        all: true,
        under: None,
    }
}

const PAST_NEXT_END: Operation = Operation::Pass {
    time: Pass::PastNextEnd,
    punctual: true,
};

/// What two owners and a bystander may do to one lock.
const EXCLUSIVE: [Operation; 11] = [
    ask(0, Mode::Exclusive, asked(0, Wait::Millis(3))),
    ask(0, Mode::Exclusive, keeping(1)),
    ask(
        0,
        Mode::Exclusive,
        Asked {
            connection: Some(0),
            channel: Some(0),
            ..keeping(1)
        },
    ),
    Operation::Release {
        key: 0,
        owner: 0,
        all: false,
        under: None,
    },
    release(0, 1),
    Operation::Renew {
        key: 0,
        owner: 0,
        lease_ms: 1,
        raise: None,
        connection: 0,
        channel: None,
        grace_ms: None,
    },
    Operation::Cancel {
        key: 0,
        owner: 1,
        connection: 1,
    },
    Operation::HangUp { recent: 0 },
    Operation::Undeliver { recent: 0 },
    Operation::Foreign {
        change: Foreign::Del { key: 0 },
        settled: true,
    },
    PAST_NEXT_END,
];

const LIMITED: Mode = Mode::Shared {
    permits: 2,
    limit: Some(3),
};

/// What three owners may do to one lock that they share, or would have alone.
const SHARED: [Operation; 11] = [
    ask(0, TOGETHER, asked(0, Wait::Forever)),
    ask(0, LIMITED, asked(1, Wait::Forever)),
    ask(0, LIMITED, keeping(2)),
    ask(0, Mode::Exclusive, keeping(0)),
    ask(0, Mode::Exclusive, asked(1, Wait::Millis(3))),
    ask(
        0,
        TOGETHER,
        Asked {
            lease_ms: 1,
            connection: Some(0),
            grace_ms: Some(0),
            ..asked(2, Wait::No)
        },
    ),
    release(0, 0),
    release(0, 1),
    Operation::Downgrade { key: 0, owner: 0 },
    Operation::Close { connection: 0 },
    PAST_NEXT_END,
];

/// What three owners may do to two locks, each or both.
const SEVERAL: [Operation; 10] = [
    Operation::AcquireAll {
        set: 0,
        asked: asked(0, Wait::Millis(3)),
    },
    Operation::AcquireAll {
        set: 1,
        asked: keeping(0),
    },
    Operation::AcquireAll {
        set: 1,
        asked: asked(1, Wait::Forever),
    },
    ask(0, Mode::Exclusive, asked(1, Wait::Forever)),
    ask(1, Mode::Exclusive, asked(1, Wait::Forever)),
    ask(0, TOGETHER, keeping(2)),
    ask(1, TOGETHER, keeping(2)),
    Operation::ReleaseAll {
        set: 0,
        owner: 0,
        all: true,
        under: None,
    },
    release(1, 1),
    PAST_NEXT_END,
];

/// Does the moves in every order, with repetitions.
fn all_sequences<const DEPTH: usize>(moves: &[Operation]) {
    let mut sequence = [0; DEPTH];
    loop {
        let mut pair = Pair::new(Setup::WIDE);
        for (at, chosen) in sequence.iter().enumerate() {
            if let Err(difference) = pair.check(moves[*chosen]) {
                let moves: Vec<_> = sequence[..=at].iter().map(|it| moves[*it]).collect();
                panic!("{difference}\nafter {moves:#?}");
            }
        }
        let Some(turned) = sequence.iter().rposition(|it| *it + 1 < moves.len()) else {
            return;
        };
        sequence[turned] += 1;
        sequence[turned + 1..].fill(0);
    }
}

#[test]
fn core_and_model_agree_on_every_short_sequence_of_exclusive_requests() {
    all_sequences::<4>(&EXCLUSIVE);
}

#[test]
fn core_and_model_agree_on_every_short_sequence_of_shared_requests() {
    all_sequences::<4>(&SHARED);
}

#[test]
fn core_and_model_agree_on_every_short_sequence_of_requests_for_several() {
    all_sequences::<4>(&SEVERAL);
}
