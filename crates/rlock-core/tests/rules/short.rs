//! All short sequences of a few operations.

use rlock_core::{AcquireOptions, Extras, Grace, Mode, Wait};

use rlock_testkit::core::{
    operation::{Asked, Foreign, Operation, Pass, SHARED as TOGETHER},
    pair::{Pair, Setup},
};

const fn asked(owner: usize, mode: Mode, wait: Wait) -> Asked {
    Asked::plain(owner, mode, 5, wait)
}

/// Waits without a limit, and keeps its place for as long as a lease.
const fn keeping(owner: usize, mode: Mode) -> Asked {
    let mut asked = asked(owner, mode, Wait::Forever);
    asked.options.keep = Some(Grace::from_millis(5));
    asked
}

const fn ask(key: usize, asked: Asked) -> Operation {
    Operation::Acquire { key, asked }
}

const fn release(key: usize, owner: usize) -> Operation {
    Operation::Release {
        key,
        owner,
        all: true,
        permits: None,
        under: None,
    }
}

const fn value(value: &'static str) -> Extras<&'static str> {
    Extras { value: Some(value) }
}

const PAST_NEXT_END: Operation = Operation::Pass {
    time: Pass::PastNextEnd,
    timer_fires: true,
};

/// Operations of two owners and a bystander on one lock.
const EXCLUSIVE: [Operation; 11] = [
    ask(
        0,
        Asked {
            extras: value("a:1"),
            ..asked(0, Mode::Exclusive, Wait::Millis(3))
        },
    ),
    ask(0, keeping(1, Mode::Exclusive)),
    ask(
        0,
        Asked {
            connection: Some(0),
            channel: Some(0),
            extras: value("b:2"),
            ..keeping(1, Mode::Exclusive)
        },
    ),
    Operation::Release {
        key: 0,
        owner: 0,
        all: false,
        permits: None,
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
        bind: None,
        extras: value(""),
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

/// Operations of three owners on one lock, in shared or exclusive mode.
const SHARED: [Operation; 11] = [
    ask(0, asked(0, TOGETHER, Wait::Forever)),
    ask(0, asked(1, LIMITED, Wait::Forever)),
    ask(0, keeping(2, LIMITED)),
    ask(0, keeping(0, Mode::Exclusive)),
    ask(0, asked(1, Mode::Exclusive, Wait::Millis(3))),
    ask(
        0,
        Asked {
            connection: Some(0),
            options: AcquireOptions {
                bind: Some(Grace::from_millis(0)),
                ..AcquireOptions::new(TOGETHER, 1)
            },
            ..asked(2, TOGETHER, Wait::No)
        },
    ),
    release(0, 0),
    release(0, 1),
    Operation::Downgrade { key: 0, owner: 0 },
    Operation::Close { connection: 0 },
    PAST_NEXT_END,
];

/// Operations of three owners on two locks, each or both.
const SEVERAL: [Operation; 10] = [
    Operation::AcquireAll {
        set: 0,
        asked: asked(0, Mode::Exclusive, Wait::Millis(3)),
    },
    Operation::AcquireAll {
        set: 1,
        asked: keeping(0, Mode::Exclusive),
    },
    Operation::AcquireAll {
        set: 1,
        asked: asked(1, Mode::Exclusive, Wait::Forever),
    },
    ask(0, asked(1, Mode::Exclusive, Wait::Forever)),
    ask(1, asked(1, Mode::Exclusive, Wait::Forever)),
    ask(0, keeping(2, TOGETHER)),
    ask(1, keeping(2, TOGETHER)),
    Operation::ReleaseAll {
        set: 0,
        owner: 0,
        all: true,
        under: None,
    },
    release(1, 1),
    PAST_NEXT_END,
];

/// Plays the moves in every order, with repetitions.
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
