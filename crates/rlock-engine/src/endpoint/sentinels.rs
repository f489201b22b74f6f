//! Which server is the master, according to Redis Sentinels.
//!
//! All Sentinels are asked, because a Sentinel that was cut off together with
//! an old master keeps naming it. Each failover has a larger configuration
//! epoch than the failovers before: the largest epoch counts. It counts for ten
//! seconds even if the Sentinels that have named it are late.
//!
//! Sentinels may write the address of one master differently: one announces host
//! names, or is on the other side of a NAT. So the address in use is kept as long
//! as a Sentinel names it in the newest epoch. A Sentinel whose user may not ask
//! for the epoch tells none. Where all tell none, most Sentinels decide.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::endpoint::connection::{Purpose, ReplyKind, Stage};
use crate::endpoint::{ConnectionId, Endpoint, Source, Timer};
use crate::engine::instant::{Instant, LateChecks};
use crate::engine::node::Node;
use crate::error::Failure;
use crate::servers::{Address, Login, Tls};
use crate::wire::resp::{Command, Frame};
use crate::wire::topology::Named;

/// How long one Sentinel may take to answer.
const TIME: Duration = Duration::from_secs(1);
/// How long to wait for the others once one has answered.
const OTHERS_TIME: Duration = Duration::from_millis(200);
/// The interval of rounds while the master is connected, or being connected to.
pub(super) const ASKED_EVERY: Duration = Duration::from_millis(500);
/// For how long the last answer of a Sentinel counts that no longer answers.
const ANSWER_COUNTS: Duration = Duration::from_secs(10);
/// The same where none tells its epoch: a Sentinel that is late has answered within
/// this time.
const LATE_COUNTS: Duration = Duration::from_secs(2);

pub(super) struct Sentinels {
    all: Vec<Sentinel>,
    login: Login,
    master: String,
    /// The encryption of connections to the master.
    tls: Option<Tls>,
    round: Option<Round>,
    /// When the next round begins.
    next: Option<Instant>,
    /// The address of the last connection to a master, and whether it could be
    /// used, as far as is known.
    last: Option<(Address, bool)>,
}

struct Sentinel {
    address: Address,
    /// The connection, which is kept from round to round.
    connection: Option<ConnectionId>,
    /// Whether this connection has answered.
    has_answered: bool,
    replies: Vec<Frame>,
    /// Its last answer, and when it came.
    named: Option<(Named, Instant)>,
}

/// A round of questions to all Sentinels.
#[derive(Default)]
struct Round {
    /// How long to wait for the others.
    until: Option<Instant>,
    late_checks: LateChecks,
    /// The Sentinels that have named a master, in the order of their answers.
    answered: Vec<usize>,
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
            has_answered: false,
            replies: Vec::new(),
            named: None,
        });
        Self {
            all: all.collect(),
            login,
            master,
            tls,
            round: None,
            next: None,
            last: None,
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

    /// Records a Sentinel's answer; true if all of the round have answered. One
    /// that comes after its round counts in the next ones: all answers of a
    /// Sentinel that is far away may be late.
    fn reply(&mut self, now: Instant, number: usize, result: Result<Named, Failure>) -> bool {
        let Some(sentinel) = self.all.get_mut(number) else {
            return false;
        };
        let failure = match result {
            Ok(named) => {
                (sentinel.named, sentinel.has_answered) = (Some((named, now)), true);
                None
            }
            Err(failure) => {
                // One that is connected has answered that it knows no master.
                sentinel.named.take_if(|_| sentinel.connection.is_some());
                Some((sentinel.address.to_string(), failure))
            }
        };
        let Some(round) = &mut self.round else {
            return false;
        };
        if !round.left.remove(&number) {
            return false;
        }
        match failure {
            None => {
                round.until.get_or_insert(now + OTHERS_TIME);
                round.answered.push(number);
            }
            Some(failure) => round.failures.push(failure),
        }
        round.left.is_empty()
    }

    /// The address of the master according to a round; none if no Sentinel has
    /// named it.
    fn chosen(&self, now: Instant, round: &Round, is_up: bool) -> Option<Address> {
        let named = self.newest(now, round, is_up)?;
        match &self.last {
            Some((used, true)) if named.contains(used) => Some(used.clone()),
            Some((failed, false)) => {
                let other = named.iter().find(|it| *it != failed);
                other.or(named.first()).cloned()
            }
            _ => named.first().cloned(),
        }
    }

    /// The addresses in the newest epoch, if any Sentinel has answered in a round.
    /// The last answers of Sentinels that are late or down now count too. If none
    /// tells its epoch, only those of late ones do.
    fn newest(&self, now: Instant, round: &Round, is_up: bool) -> Option<Vec<Address>> {
        let named = |number: &usize| self.all.get(*number)?.named.as_ref();
        let answered = round.answered.iter().filter_map(named);
        answered.clone().next()?;
        let others = (0..self.all.len()).filter(|it| !round.answered.contains(it));
        let all = |age: Duration, is_late: bool| {
            let others = others.clone().filter_map(|number| self.all.get(number));
            let others = others.filter(move |it| !is_late || it.has_answered);
            let others = others.filter_map(|it| it.named.as_ref());
            let others = others.filter(move |(_, at)| now - *at <= age);
            answered.clone().chain(others).map(|(named, _)| named)
        };
        let late = || all(LATE_COUNTS, true);
        if late().all(|named| named.epoch.is_none()) {
            // Too few to leave a master that others have named a moment ago.
            let age = if is_up { ANSWER_COUNTS } else { LATE_COUNTS };
            if late().count() <= self.all.len() / 2
                && let Some((used, true)) = &self.last
                && all(age, false).any(|named| self.at(named) == *used)
            {
                return Some(vec![used.clone()]);
            }
            return Some(most(late().map(|named| self.at(named)).collect()));
        }
        let all = || all(ANSWER_COUNTS, false);
        let epoch = all().map(|named| named.epoch).max()?;
        let newest = all().filter(|named| named.epoch == epoch);
        Some(newest.map(|named| self.at(named)).collect())
    }

    fn at(&self, named: &Named) -> Address {
        Address::Tcp {
            host: named.host.clone(),
            port: named.port,
            tls: self.tls,
        }
    }

    /// Records a connection to a master, and whether it can be used.
    pub(super) fn has_tried(&mut self, address: &Address, is_usable: bool) {
        self.last = Some((address.clone(), is_usable));
    }
}

/// The addresses that occur most often, in their order.
fn most(addresses: Vec<Address>) -> Vec<Address> {
    let count = |address: &Address| addresses.iter().filter(|it| *it == address).count();
    let most = addresses.iter().map(count).max();
    let of_most = addresses.iter().filter(|it| Some(count(it)) == most);
    of_most.cloned().collect()
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
        let all = sentinels.all.iter_mut();
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
            (sentinel.connection, sentinel.has_answered) = (None, false);
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
        let is_up = self.main_connection(Node::default()).is_some();
        let Source::Sentinels(sentinels) = &mut self.source else {
            return;
        };
        let Some(round) = sentinels.round.take() else {
            return;
        };
        let found = sentinels.chosen(now, &round, is_up).ok_or(Failure::NoneOf {
            what: "no Sentinel names the master",
            failures: round.failures,
        });
        self.master_is_at(now, found);
        if self.has_master() {
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
        let Source::Sentinels(sentinels) = &mut self.source else {
            return;
        };
        if let Some(round) = &mut sentinels.round
            && let Some(until) = round.until
            && until <= now
        {
            match round.late_checks.again(until, now) {
                Some(again) => {
                    round.until = Some(again);
                    self.timers.insert((again, Timer::Sentinels));
                }
                None => self.round_ends(now),
            }
        } else if sentinels.next.is_some_and(|next| next <= now) && self.has_master() {
            self.ask_sentinels(now);
        }
    }
}
