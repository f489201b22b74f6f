//! The state of each server: its connection, its holds and waits, and its keys.
//!
//! There is one server, or a cluster in which each server has the keys of some
//! slots. An owner's operations at a key run at the server that has the key's
//! slot, and move with the slot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crc::{CRC_16_XMODEM, Crc};

use crate::engine::claims::{Claims, Numbers};
use crate::engine::hold::Hold;
use crate::engine::instant::{Instant, LateChecks};
use crate::engine::watchdog::Renewals;
use crate::engine::work::{Stage, Work};
use crate::engine::{Action, ConnectionState, Engine, Id, in_order};

/// A server, by its number among all servers that this client has known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(pub u16);

/// Which server has which keys.
#[derive(Clone, Debug)]
pub enum Routes {
    /// There is only one server.
    One,
    /// The server of each slot.
    Slots(Box<[Node]>),
}

impl Routes {
    /// The server of a slot.
    pub fn node(&self, slot: u16) -> Node {
        match self {
            Self::One => Node::default(),
            Self::Slots(nodes) => nodes.get(usize::from(slot)).copied().unwrap_or_default(),
        }
    }

    /// The server of a key.
    pub fn node_of(&self, key: &[u8]) -> Node {
        match self {
            Self::One => Node::default(),
            Self::Slots(_) => self.node(slot_of(key)),
        }
    }

    /// The servers that have slots here and none in `next`.
    fn left_by(&self, next: &Self) -> BTreeSet<Node> {
        let slots = 0..SLOTS;
        let moved = slots.filter(|slot| self.node(*slot) != next.node(*slot));
        moved.map(|slot| self.node(slot)).collect()
    }

    /// Whether a server has any slots.
    pub fn has(&self, node: Node) -> bool {
        match self {
            Self::One => node == Node::default(),
            Self::Slots(nodes) => nodes.contains(&node),
        }
    }

    /// The servers that have slots.
    pub fn nodes(&self) -> BTreeSet<Node> {
        match self {
            Self::One => BTreeSet::from([Node::default()]),
            Self::Slots(nodes) => nodes.iter().copied().collect(),
        }
    }
}

/// The state of one server.
#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) connection: ConnectionState,
    /// The number of connections so far.
    connections: u64,
    /// When the last answered request of this connection was sent, and when its
    /// last answer came.
    pub(super) known_good: Instant,
    pub(super) last_answer: Instant,
    /// All work at this server.
    pub(super) works: Numbers,
    pub(super) renewals: Renewals,
    /// The graces of bound holds, and the leases of requests that wait, each with
    /// its number of occurrences.
    pub(super) graces: BTreeMap<Duration, usize>,
    pub(super) leases: BTreeMap<Duration, usize>,
    /// When the next heartbeat is due.
    pub(super) heartbeat: Option<Instant>,
}

impl NodeState {
    fn new(connection: ConnectionState) -> Self {
        Self {
            connection,
            connections: 0,
            known_good: Instant::from_nanos(0),
            last_answer: Instant::from_nanos(0),
            works: Numbers::default(),
            renewals: Renewals::default(),
            graces: BTreeMap::new(),
            leases: BTreeMap::new(),
            heartbeat: None,
        }
    }

    /// Whether this client has no hold and no waiting request there.
    pub(super) fn is_unused(&self) -> bool {
        let is_quiet = self.graces.is_empty() && self.leases.is_empty();
        is_quiet && self.works.is_empty() && self.renewals.holds.is_empty()
    }
}

impl Engine {
    pub(super) fn node_state(&mut self, node: Node) -> &mut NodeState {
        let number = usize::from(node.0);
        if number >= self.nodes.len() {
            self.add_nodes(node);
        }
        &mut self.nodes[number]
    }

    /// Adds the states of all servers up to this one.
    #[cold]
    fn add_nodes(&mut self, last: Node) {
        let connection = self.connection(last);
        let count = usize::from(last.0) + 1;
        let new = || NodeState::new(connection);
        self.nodes.resize_with(count, new);
    }

    pub(super) fn known_state(&self, node: Node) -> Option<&NodeState> {
        self.nodes.get(usize::from(node.0))
    }

    pub(super) fn connection(&self, node: Node) -> ConnectionState {
        match self.known_state(node) {
            Some(state) => state.connection,
            None if self.is_closed => ConnectionState::Closed,
            None => ConnectionState::Idle,
        }
    }

    /// When the last answered request of that connection was made; the clock's
    /// start if the connection is gone.
    pub(super) fn known_good_of(&self, connection: u64) -> Instant {
        let mut nodes = self.nodes.iter();
        let state = nodes.find(|state| state.connection.is(connection));
        state.map_or(Instant::from_nanos(0), |state| state.known_good)
    }

    pub(super) fn mark_alive(&mut self, now: Instant, node: Node, known_good: Instant) {
        let state = self.node_state(node);
        (state.known_good, state.last_answer) = (known_good, now);
        if let Some(alive) = self.alive.get(usize::from(node.0)) {
            alive.store(known_good.nanos(), Ordering::Release);
        }
    }

    /// Connects to a server that was not needed so far.
    pub(super) fn connect_if_idle(&mut self, node: Node) {
        let state = self.node_state(node);
        if matches!(state.connection, ConnectionState::Idle) {
            state.connection = ConnectionState::Down;
            self.actions.push_back(Action::Connect { node });
        }
    }

    pub(super) fn connection_up(
        &mut self,
        now: Instant,
        node: Node,
        connection: u64,
        is_predecessor_gone: bool,
    ) {
        let state = self.node_state(node);
        state.connections += 1;
        let is_again = state.connections > 1;
        state.connection = ConnectionState::Up {
            number: connection,
            is_predecessor_gone,
        };
        self.metrics.reconnects += u64::from(is_again);
        self.mark_alive(now, node, now);
        self.check_all(now, node);
        self.resume(now, node);
        self.keep_heartbeat(now, node);
    }

    /// An earlier request may still be carried out after those of that connection.
    pub(super) fn predecessor_stays(&mut self, connection: u64) {
        for state in &mut self.nodes {
            if let ConnectionState::Up {
                number,
                is_predecessor_gone,
            } = &mut state.connection
                && *number == connection
            {
                *is_predecessor_gone = false;
            }
        }
    }

    /// A connection ended. With `is_left` there is no new connection until one
    /// is needed.
    pub(super) fn connection_down(&mut self, now: Instant, node: Node, is_left: bool) {
        let before = self.connection(node);
        let state = self.node_state(node);
        state.connection = if is_left {
            ConnectionState::Idle
        } else {
            ConnectionState::Down
        };
        state.renewals.ping = None;
        state.renewals.late_checks = LateChecks::default();
        self.set_heartbeat(node, None);
        self.cut_bound(now, node);
        if let ConnectionState::Up { number, .. } = before {
            self.cut_moved(now, node, number);
        }
        let holds: Vec<Id> = self.holds_at(node).map(|(id, _)| id).collect();
        let is_needed = !holds.is_empty();
        for hold in holds {
            self.wait_for_end(now, hold);
        }
        self.connection_lost(now, node);
        if is_left {
            self.resume(now, node);
        }
        if is_left && is_needed {
            self.connect_if_idle(node);
        }
    }

    /// The holds at a server, oldest first.
    pub(super) fn holds_at(&self, node: Node) -> impl Iterator<Item = (Id, &Hold)> {
        let ids = self.known_state(node).map(|state| &state.renewals.holds);
        let ids = ids.into_iter().flatten();
        let holds = ids.filter_map(|id| Some((*id, &**self.holds.get(id)?)));
        in_order(holds, |id, _| id)
    }

    /// The work at a server, oldest first.
    pub(super) fn works_at(&self, node: Node) -> impl Iterator<Item = (Id, &Work)> {
        let ids = self.known_state(node).map(|state| &state.works);
        let ids = ids.into_iter().flatten();
        let works = ids.filter_map(|id| Some((*id, &**self.works.get(id)?)));
        in_order(works, |_, work| work.progress.order)
    }

    /// After their grace, the server ends the holds that were bound to the
    /// connection.
    pub(super) fn cut_bound(&self, now: Instant, node: Node) {
        let known_good = self.known_good(node);
        for (_, hold) in self.holds_at(node) {
            hold.cut(now, known_good);
        }
    }

    /// The same for those that are noted at another server, which has not yet answered:
    /// they are bound to this connection still.
    fn cut_moved(&mut self, now: Instant, node: Node, connection: u64) {
        let known_good = self.known_good(node);
        let is_bound_there = |hold: &Hold| {
            hold.terms.bound.is_some() && hold.node != node && hold.notices_by == connection
        };
        for id in self.moved.iter().copied().collect::<Vec<_>>() {
            if let Some(hold) = self.holds.get(&id).filter(|hold| is_bound_there(hold)) {
                hold.cut(now, known_good);
                let due = hold.next_due(now);
                self.set_timer(id, due);
            }
        }
    }

    /// One slot has moved to another server.
    pub(super) fn slot_moved(&mut self, now: Instant, slot: u16, node: Node) {
        if let Routes::Slots(nodes) = &mut self.routes
            && let Some(known) = nodes.get_mut(usize::from(slot))
            && *known != node
        {
            let before = std::mem::replace(known, node);
            self.follow_routes(now, before);
        }
    }

    pub(super) fn set_routes(&mut self, now: Instant, routes: Routes) {
        let before = std::mem::replace(&mut self.routes, routes);
        for node in before.left_by(&self.routes) {
            self.follow_routes(now, node);
        }
    }

    /// Moves the holds and the work whose slots are now at another server.
    fn follow_routes(&mut self, now: Instant, before: Node) {
        let routes = &self.routes;
        let moved = |id, claims: &Claims| {
            let node = routes.node(claims.slot());
            (node != before).then_some((id, node))
        };
        let holds = self.holds_at(before);
        let holds = holds.filter_map(|(id, hold)| moved(id, &hold.proof.claims));
        let holds: Vec<_> = holds.collect();
        let works = self.works_at(before);
        let works: Vec<_> = works
            .filter_map(|(id, work)| moved(id, &work.progress.claims))
            .collect();
        for (id, node) in holds {
            self.move_hold(now, id, node);
        }
        for (id, node) in works {
            self.move_work(now, id, node);
        }
    }

    /// The new server reports no loss until it is asked to: at once, but after a
    /// pause if the hold has moved since its last renewal. Two servers may name
    /// each other.
    fn move_hold(&mut self, now: Instant, id: Id, node: Node) {
        self.stop_renewing(id);
        let Some(hold) = self.holds.get_mut(&id) else {
            return;
        };
        let (grace, is_live) = (hold.terms.bound, hold.proof.is_live(now));
        let before = std::mem::replace(&mut hold.node, node);
        hold.renewing = None;
        if grace.is_some() {
            self.moved.insert(id);
        }
        let failures = hold.failures;
        hold.failures = failures.saturating_add(1);
        self.hold_leaves(id, before, grace);
        self.hold_comes(now, id, node, grace);
        if !is_live {
            // Its timer was late, and is gone.
            self.loss(now, id);
            return;
        }
        self.connect_if_idle(node);
        match self.connection(node) {
            ConnectionState::Up { .. } => {
                let pause = match failures {
                    0 => Duration::ZERO,
                    _ => self.pause_of(now, id, failures),
                };
                self.check_at(now, id, Some(now + pause));
            }
            ConnectionState::Idle | ConnectionState::Down | ConnectionState::Closed => {
                self.wait_for_end(now, id);
            }
        }
    }

    /// A hold arrives at a server, bound with `grace` if there is one.
    pub(super) fn hold_comes(&mut self, now: Instant, id: Id, node: Node, grace: Option<Duration>) {
        self.node_state(node).renewals.holds.insert(id);
        if let Some(grace) = grace {
            self.grace_begins(now, node, grace);
        }
    }

    pub(super) fn hold_leaves(&mut self, id: Id, node: Node, grace: Option<Duration>) {
        self.node_state(node).renewals.holds.remove(&id);
        if let Some(grace) = grace {
            self.grace_ends(node, grace);
        }
    }

    /// A queued request is withdrawn there; a request in progress gets its
    /// answer.
    fn move_work(&mut self, now: Instant, id: Id, node: Node) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut work.progress.node, node);
        let waits = matches!(work.progress.stage, Stage::Queued(_) | Stage::Connection);
        self.node_state(before).works.remove(&id);
        self.node_state(node).works.insert(id);
        if waits {
            self.advance(now, id);
        }
    }

    /// The server of a request that is not yet answered.
    pub fn server_of(&self, request: Id) -> Option<Node> {
        self.requests.get(&request).map(|sent| sent.node)
    }

    /// Whether there is no connection to a server where a hold is live.
    pub fn is_cut_off(&self, now: Instant) -> bool {
        let is_live = |id: &Id| self.holds.get(id).is_some_and(|it| it.proof.is_live(now));
        let is_down = |it: &NodeState| !matches!(it.connection, ConnectionState::Up { .. });
        let mut nodes = self.nodes.iter();
        nodes.any(|it| is_down(it) && it.renewals.holds.iter().any(is_live))
    }

    /// Whether a server has slots or a connection.
    pub fn is_in_use(&self, node: Node) -> bool {
        !matches!(self.connection(node), ConnectionState::Idle) || self.routes.has(node)
    }
}

const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The number of slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// The slot of a key, by the cluster specification: a CRC of the key, or of the
/// text between its first braces. Below [`SLOTS`].
pub fn slot_of(key: &[u8]) -> u16 {
    CRC.checksum(tag(key).unwrap_or(key)) % SLOTS
}

/// The text between the first `{` and the next `}`, unless it is empty.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|byte| *byte == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers come from `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(slot_of(b""), 0);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"123456789"), 12739);
        assert_eq!(slot_of(b"somekey"), 11058);
    }

    #[test]
    fn keys_with_the_same_tag_share_a_slot() {
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
    }

    #[test]
    fn an_empty_or_open_tag_does_not_count() {
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
        assert_ne!(slot_of(b"foo{bar"), slot_of(b"bar"));
        assert_ne!(slot_of(b"}foo{"), slot_of(b"foo"));
    }
}
