//! Operations decoded from eight bytes, so that random walks, shrinking and
//! fuzzing all use the same ones.

use rlock_core::{AcquireOptions, Extras, Grace, Mode, Wait};

use crate::core::operation::{
    Asked, CHANNELS, CONNECTIONS, Foreign, OWNERS, Operation, Pass, Raise, SETS, SHARED, Under,
    VALUES,
};

const LEASES: [u32; 5] = [1, 5, 20, 60, 200];
const GRACES: [Grace; 3] = [grace(0), grace(3), grace(30)];
const KEEPS: [Grace; 3] = [grace(2), grace(15), grace(80)];
const MODES: [Mode; 8] = [
    Mode::Exclusive,
    SHARED,
    Mode::Exclusive,
    limited(1, 2),
    Mode::Exclusive,
    limited(2, 3),
    SHARED,
    limited(1, 3),
];
/// Mostly permits, and few other modes.
const OF_PERMITS: [Mode; 8] = [
    limited(1, 2),
    limited(1, 3),
    limited(2, 3),
    Mode::Exclusive,
    limited(1, 2),
    limited(2, 2),
    SHARED,
    limited(1, 3),
];
const WAITS: [Wait; 6] = [
    Wait::No,
    Wait::Forever,
    Wait::Millis(1),
    Wait::Millis(4),
    Wait::Millis(20),
    Wait::Millis(70),
];

const fn grace(ms: u32) -> Grace {
    Grace::from_millis(ms)
}

const fn limited(permits: u32, limit: u32) -> Mode {
    let limit = Some(limit);
    Mode::Shared { permits, limit }
}

/// A value for half of the requests.
fn extras(what: usize) -> Extras<&'static str> {
    let value = what % (2 * VALUES.len());
    let value = value.checked_sub(1).and_then(|it| VALUES.get(it));
    Extras {
        value: value.copied(),
    }
}

impl Operation {
    /// All eight-byte inputs decode to an operation. Zeros decode to a simple
    /// one, so that shrinking ends in readable operations.
    pub fn decode(bytes: [u8; 8]) -> Self {
        Self::decode_with(&MODES, bytes)
    }

    /// Decodes an operation, with mostly permits.
    pub fn decode_of_permits(bytes: [u8; 8]) -> Self {
        Self::decode_with(&OF_PERMITS, bytes)
    }

    /// One long table, so that all shares are visible together.
    fn decode_with(modes: &[Mode; 8], bytes: [u8; 8]) -> Self {
        let [what, a, b, c, d, e, f, g] = bytes.map(usize::from);
        let key = [0, 0, 0, 1, 1, 2, 2, 3][a % 8];
        let set = a / 8 % SETS.len();
        let owner = b % OWNERS.len();
        let lease_ms = LEASES[c % LEASES.len()];
        let connection = f % CONNECTIONS;
        let mode = modes[g % modes.len()];
        let extras = extras(b / OWNERS.len());
        let asked = Asked {
            extras: match mode {
                Mode::Exclusive => extras,
                Mode::Shared { .. } => Extras::NONE,
            },
            ..Asked::decode(mode, [owner, c, d, e, f, g / 8])
        };
        match what % 64 {
            0..=19 => Self::Acquire { key, asked },
            20..=23 => Self::AcquireAll { set, asked },
            24 | 25 => Self::Renew {
                key,
                owner,
                lease_ms,
                raise: Raise::decode(d),
                connection,
                channel: (e % 3 == 1).then_some(e / 3 % CHANNELS.len()),
                bind: (g % 4 == 1).then_some(GRACES[g / 4 % GRACES.len()]),
                extras,
            },
            26 => Self::RenewAll {
                set,
                owner,
                lease_ms,
                under: Under::decode(d),
                connection,
                channel: (e % 3 == 1).then_some(e / 3 % CHANNELS.len()),
            },
            27..=35 => Self::Release {
                key,
                owner,
                all: c % 3 == 1,
                permits: [None, Some(1), Some(2), None, None, None][e % 6],
                under: Under::decode(d),
            },
            36 | 37 => Self::ReleaseAll {
                set,
                owner,
                all: c % 3 == 1,
                under: Under::decode(d),
            },
            38 | 39 => Self::Downgrade { key, owner },
            40 => Self::Cancel {
                key,
                owner,
                connection,
            },
            41 => Self::Force {
                key,
                queue: c % 2 == 0,
                under: Under::decode(d).map(|under| (owner, under)),
            },
            42 => Self::Undeliver { recent: a % 4 },
            43 | 44 => Self::HangUp { recent: a % 6 },
            45 | 46 => Self::Close { connection },
            47 => Self::Listen {
                channel: a % CHANNELS.len(),
                on: b % 3 < 2,
            },
            48 => Self::ListenToUnlocks { on: b % 2 == 0 },
            49..=53 => Self::Foreign {
                change: Foreign::decode(d, key, owner, lease_ms),
                settled: e % 3 < 2,
            },
            54 if b % 4 == 0 => Self::Restart {
                ms: 1 + c as u64 % 20,
            },
            55..=57 => Self::Follow { key },
            _ => Self::Pass {
                time: match b % 4 {
                    0 | 1 => Pass::Millis(c as u64 % 12),
                    2 => Pass::ToNextEnd,
                    _ => Pass::PastNextEnd,
                },
                timer_fires: d % 4 < 3,
            },
        }
    }
}

impl Asked {
    fn decode(mode: Mode, [owner, c, d, e, f, g]: [usize; 6]) -> Self {
        let connection = (f / 4 % 4 > 0).then_some(f % CONNECTIONS);
        let channel = (e / 4 % 3 == 1).then_some(e / 32 % CHANNELS.len());
        let wait = WAITS[d % WAITS.len()];
        let keep = (g % 2 == 1).then_some(KEEPS[g / 2 % KEEPS.len()]);
        Self {
            owner,
            options: AcquireOptions {
                mode,
                lease_ms: LEASES[c % LEASES.len()],
                reenter: e % 4 == 1,
                keep: keep.filter(|_| wait != Wait::No),
                bind: (f / 16 % 4 == 1).then_some(GRACES[f / 64 % GRACES.len()]),
            },
            wait,
            connection,
            channel: channel.filter(|_| connection.is_some()),
            extras: Extras::NONE,
        }
    }
}

impl Raise {
    const fn decode(what: usize) -> Option<Self> {
        match what % 12 {
            0 => Some(Self::Least),
            1 | 2 => Some(Self::OfAnother),
            3 => Some(Self::Ahead),
            4 => Some(Self::Most),
            5 => Some(Self::TooFar),
            _ => None,
        }
    }
}

impl Under {
    const fn decode(what: usize) -> Option<Self> {
        match what % 8 {
            0 => Some(Self::NoHold),
            1 => Some(Self::Its),
            2 => Some(Self::Recent(what / 8 % 4)),
            _ => None,
        }
    }
}

impl Foreign {
    fn decode(what: usize, key: usize, owner: usize, ms: u32) -> Self {
        match what % 24 {
            0..=2 => Self::Del { key },
            3..=6 => Self::Pexpire { key, ms },
            7 => Self::Persist { key },
            8 => Self::Set { key },
            9..=11 => Self::Take { key, owner, ms },
            12..=15 => Self::DropCount { key, owner },
            16 | 17 => Self::Rename { from: key % 2 },
            18 => Self::FarFence {
                key,
                ahead_ms: ms * 1000,
            },
            19 => Self::Flush { db: Some(0) },
            20..=22 => Self::Value {
                key,
                value: VALUES.get(owner).copied(),
            },
            _ => Self::Flush { db: None },
        }
    }
}
