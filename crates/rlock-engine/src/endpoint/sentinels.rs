//! Which server is the master, according to Redis Sentinels.
//!
//! All Sentinels are asked, because a Sentinel that was cut off together with
//! an old master keeps naming it. Each failover has a larger configuration
//! epoch than the failovers before: the largest epoch counts.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::endpoint::connection::{Purpose, ReplyKind, Stage};
use crate::endpoint::{ConnectionId, Endpoint, Source, Timer};
use crate::engine::instant::Instant;
use crate::engine::node::Node;
use crate::error::Failure;
use crate::servers::{Address, Login, Tls};
use crate::wire::resp::{Command, Frame};
use crate::wire::topology::Named;

/// How long one Sentinel may take to answer.
const TIME: Duration = Duration::from_secs(1);
/// How long to wait for the others once one has answered.
const OTHERS_TIME: Duration = Duration::from_millis(200);
/// The interval of rounds while the master is connected.
pub(super) const ASKED_EVERY: Duration = Duration::from_millis(500);

pub(super) struct Sentinels {
    all: Vec<Sentinel>,
    login: Login,
    master: String,
    /// The encryption of connections to the master.
    tls: Option<Tls>,
    round: Option<Round>,
    /// When the next round begins.
    next: Option<Instant>,
}

struct Sentinel {
    address: Address,
    /// The connection, which is kept from round to round.
    connection: Option<ConnectionId>,
    replies: Vec<Frame>,
}

/// A round of questions to all Sentinels.
#[derive(Default)]
struct Round {
    /// How long to wait for the others.
    until: Option<Instant>,
    newest: Option<Named>,
    failures: Vec<(String, Failure)>,
    left: BTreeSet<usize>,
}

impl Sentinels {
    pub(super) fn new(
        addresses: Vec<Address>,
        login: Login,
        master: String,
        tls: Option<Tls>,
    ) -> Self {
        let all = addresses.into_iter().map(|address| Sentinel {
            address,
            connection: None,
            replies: Vec::new(),
        });
        Self {
            all: all.collect(),
            login,
            master,
            tls,
            round: None,
            next: None,
        }
    }

    pub(super) fn master(&self) -> &str {
        &self.master
    }

    /// The first command to a Sentinel that has a password.
    pub(super) fn greeting(&self) -> Option<Command> {
        let password = self.login.password.as_ref()?;
        let mut auth = Command::new("AUTH");
        if let Some(user) = &self.login.user {
            auth.arg(user);
        }
        auth.arg(password.expose());
        Some(auth)
    }

    /// Records a Sentinel's answer; true if all have answered.
    fn reply(&mut self, now: Instant, number: usize, result: Result<Named, Failure>) -> bool {
        let (Some(round), Some(sentinel)) = (&mut self.round, self.all.get(number)) else {
            return false;
        };
        if !round.left.remove(&number) {
            return false;
        }
        match result {
            Ok(named) => {
                round.until.get_or_insert(now + OTHERS_TIME);
                let is_newer = |known: &Named| known.epoch < named.epoch;
                if round.newest.as_ref().is_none_or(is_newer) {
                    round.newest = Some(named);
                }
            }
            Err(failure) => round.failures.push((sentinel.address.to_string(), failure)),
        }
        round.left.is_empty()
    }
}

impl Endpoint {
    /// Begins a round, unless one is under way.
    pub(super) fn ask_sentinels(&mut self, now: Instant) {
        let Source::Sentinels(sentinels) = &mut self.source else {
            return;
        };
        if sentinels.round.is_some() {
            return;
        }
        sentinels.next = None;
        sentinels.round = Some(Round {
            left: (0..sentinels.all.len()).collect(),
            ..Round::default()
        });
        let all = sentinels.all.iter();
        let all = all.map(|it| (it.address.clone(), it.connection));
        let all: Vec<_> = all.collect();
        for (number, (address, known)) in all.into_iter().enumerate() {
            match known {
                Some(connection) => self.ask_sentinel(now, connection),
                None => {
                    let purpose = Purpose::Sentinel(number);
                    let connection = self.new_connection(now, purpose, address, TIME);
                    if let Some(sentinel) = self.sentinel(number) {
                        sentinel.connection = Some(connection);
                    }
                }
            }
        }
    }

    fn sentinel(&mut self, number: usize) -> Option<&mut Sentinel> {
        match &mut self.source {
            Source::Sentinels(sentinels) => sentinels.all.get_mut(number),
            Source::One(_) | Source::Cluster(_) => None,
        }
    }

    /// Asks a Sentinel, at once or as soon as its connection is open.
    pub(super) fn ask_sentinel(&mut self, now: Instant, id: ConnectionId) {
        let (Source::Sentinels(sentinels), Some(connection)) =
            (&self.source, self.connections.get_mut(&id))
        else {
            return;
        };
        if connection.stage != Stage::Open {
            return;
        }
        let was_empty = connection.output.is_empty();
        for question in Named::questions(&sentinels.master) {
            connection.write(now, &question, ReplyKind::Sentinel);
        }
        self.has_output(now, id, was_empty);
    }

    pub(super) fn sentinel_reply(&mut self, now: Instant, id: ConnectionId, frame: Frame) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let Purpose::Sentinel(number) = connection.purpose else {
            return;
        };
        let Source::Sentinels(sentinels) = &mut self.source else {
            return;
        };
        let Some(sentinel) = sentinels.all.get_mut(number) else {
            return;
        };
        sentinel.replies.push(frame);
        let [address, about] = sentinel.replies.as_slice() else {
            return;
        };
        let named = Named::read(address, about, &sentinels.master);
        sentinel.replies.clear();
        if sentinels.reply(now, number, named) {
            return self.round_ends(now);
        }
        let round = sentinels.round.as_ref();
        if let Some(until) = round.and_then(|round| round.until) {
            self.timers.insert((until, Timer::Sentinels));
        }
    }

    pub(super) fn sentinel_ended(&mut self, now: Instant, number: usize, failure: Failure) {
        if let Some(sentinel) = self.sentinel(number) {
            sentinel.connection = None;
            sentinel.replies.clear();
        }
        let Source::Sentinels(sentinels) = &mut self.source else {
            return;
        };
        if sentinels.reply(now, number, Err(failure)) {
            self.round_ends(now);
        }
    }

    fn round_ends(&mut self, now: Instant) {
        let Source::Sentinels(sentinels) = &mut self.source else {
            return;
        };
        let Some(round) = sentinels.round.take() else {
            return;
        };
        let found = match round.newest {
            Some(Named { host, port, .. }) => Ok(Address::Tcp {
                host,
                port,
                tls: sentinels.tls,
            }),
            None => Err(Failure::NoneOf {
                what: "no Sentinel names the master",
                failures: round.failures,
            }),
        };
        self.master_is_at(now, found);
        if self.is_connected(Node::default()) {
            self.ask_sentinels_later(now);
        }
    }

    pub(super) fn ask_sentinels_later(&mut self, now: Instant) {
        if let Source::Sentinels(sentinels) = &mut self.source {
            let next = now + ASKED_EVERY;
            sentinels.next = Some(next);
            self.timers.insert((next, Timer::Sentinels));
        }
    }

    pub(super) fn sentinels_are_due(&mut self, now: Instant) {
        let Source::Sentinels(sentinels) = &self.source else {
            return;
        };
        let until = sentinels.round.as_ref().and_then(|round| round.until);
        if until.is_some_and(|until| until <= now) {
            self.round_ends(now);
        } else if sentinels.next.is_some_and(|next| next <= now)
            && self.is_connected(Node::default())
        {
            self.ask_sentinels(now);
        }
    }
}
