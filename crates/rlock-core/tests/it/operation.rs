//! What may happen to a lock, made from six bytes, so that random walks,
//! shrinking and fuzzing all speak of the same operations.

use rlock_core::Wait;

pub(crate) const KEYS: [(u32, &str); 3] = [(0, "k0"), (0, "k1"), (1, "k2")];
pub(crate) const OWNERS: [&str; 5] = ["ann", "bob", "cid", "dee", "eve"];
pub(crate) const CHANNELS: [&str; 2] = ["c0", "c1"];
/// Connections on which several requests wait for messages.
pub(crate) const CONNECTIONS: usize = 3;

const LEASES: [u64; 5] = [1, 5, 20, 60, 200];
const WAITS: [Wait; 6] = [
    Wait::No,
    Wait::Forever,
    Wait::Millis(1),
    Wait::Millis(4),
    Wait::Millis(20),
    Wait::Millis(70),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Acquire {
        key: usize,
        owner: usize,
        lease_ms: u64,
        once: bool,
        wait: Wait,
        /// Connection and channel; `None` for a call on its own connection.
        notify: Option<(usize, usize)>,
    },
    Renew {
        key: usize,
        owner: usize,
        lease_ms: u64,
    },
    Release {
        key: usize,
        owner: usize,
        all: bool,
    },
    Cancel {
        key: usize,
        owner: usize,
    },
    Force {
        key: usize,
    },
    /// The reply of a recent grant could not be written.
    Undeliver {
        recent: usize,
    },
    /// The connection of a recent blocked call ends, answered or not.
    HangUp {
        recent: usize,
    },
    /// A connection that waits for messages ends.
    Close {
        connection: usize,
    },
    Listen {
        channel: usize,
        on: bool,
    },
    Foreign {
        change: Foreign,
        /// Whether the locks are settled before the next command.
        settled: bool,
    },
    Pass {
        time: Pass,
        /// Whether the timer fires on the way, or the server is too busy.
        punctual: bool,
    },
}

/// What others do to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    Del {
        key: usize,
    },
    Pexpire {
        key: usize,
        ms: u64,
    },
    Persist {
        key: usize,
    },
    Set {
        key: usize,
    },
    /// A free lock is taken, as Redisson does it.
    Take {
        key: usize,
        owner: usize,
        ms: u64,
    },
    Rename {
        from: usize,
    },
    Flush {
        db: Option<u32>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Millis(u64),
    /// To the last millisecond of what ends next.
    ToNextEnd,
    PastNextEnd,
}

impl Operation {
    /// Total: every six bytes are an operation, and zeros are a plain one, so
    /// that shrinking ends in what is easily read.
    pub(crate) fn decode(bytes: [u8; 6]) -> Self {
        let [what, a, b, c, d, e] = bytes.map(usize::from);
        let key = a % KEYS.len();
        let owner = b % OWNERS.len();
        let lease_ms = LEASES[c % LEASES.len()];
        match what % 48 {
            0..=15 => Self::Acquire {
                key,
                owner,
                lease_ms,
                once: e % 4 == 1,
                wait: WAITS[d % WAITS.len()],
                notify: (e / 4 % 2 == 1).then_some((e / 8 % CONNECTIONS, e / 32 % 2)),
            },
            16 | 17 => Self::Renew {
                key,
                owner,
                lease_ms,
            },
            18..=26 => Self::Release {
                key,
                owner,
                all: c % 3 == 1,
            },
            27 => Self::Cancel { key, owner },
            28 => Self::Force { key },
            29 => Self::Undeliver { recent: a % 4 },
            30 | 31 => Self::HangUp { recent: a % 6 },
            32 => Self::Close {
                connection: a % CONNECTIONS,
            },
            33 => Self::Listen {
                channel: a % CHANNELS.len(),
                on: b % 3 < 2,
            },
            34..=38 => Self::Foreign {
                change: Foreign::decode(d, key, owner, lease_ms),
                settled: e % 3 < 2,
            },
            _ => Self::Pass {
                time: match b % 4 {
                    0 | 1 => Pass::Millis(c as u64 % 12),
                    2 => Pass::ToNextEnd,
                    _ => Pass::PastNextEnd,
                },
                punctual: d % 4 < 3,
            },
        }
    }
}

impl Foreign {
    fn decode(what: usize, key: usize, owner: usize, ms: u64) -> Self {
        match what % 16 {
            0..=2 => Self::Del { key },
            3..=5 => Self::Pexpire { key, ms },
            6 | 7 => Self::Persist { key },
            8 => Self::Set { key },
            9..=11 => Self::Take { key, owner, ms },
            12 | 13 => Self::Rename { from: key % 2 },
            14 => Self::Flush { db: Some(0) },
            _ => Self::Flush { db: None },
        }
    }
}
