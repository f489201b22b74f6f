//! Observers of the leader at a key: they receive each change that the holders
//! publish.
//!
//! All observers of a key share one subscription, on the connection of the key's
//! server. Right after the subscription the client asks the server for the
//! leader. The server answers in order, so the answer includes all earlier
//! messages, and each later message is a change. After a reconnect, or when the
//! slot has moved, this starts again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::endpoint::connection::ReplyKind;
use crate::endpoint::{Action, ConnectionId, Endpoint, Note, Timer, silent};
use crate::engine::instant::Instant;
use crate::engine::node::Node;
use crate::engine::terms::LEASE_DEFAULT;
use crate::engine::{self, Id};
use crate::error::{Error, Failure, Fault};
use crate::wire::resp::Frame;
use crate::wire::{inspect, replies, requests};

/// A change of the leader, as an observer receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The new leader; none if there is none.
    pub leader: Option<Proclaimed>,
    /// Whether there may have been other leaders since the last change: the
    /// connection was lost, or the observer fell too far behind.
    pub missed: bool,
}

/// A leader's published value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Proclaimed {
    /// Its fence: larger than the fence of every earlier leader, except after a
    /// change with `missed`.
    pub fence: u64,
    /// The value: 0 to 1024 bytes.
    pub value: Vec<u8>,
}

/// The known leaders at a key.
#[derive(Debug, Default)]
struct Known {
    /// The largest fence since the last answer, and whether its hold has ended.
    fence: u64,
    is_over: bool,
    leader: Option<Proclaimed>,
}

impl Known {
    /// Applies a message; true if it changes anything.
    fn update(&mut self, fence: u64, value: Option<&[u8]>) -> bool {
        if fence < self.fence || (fence == self.fence && self.is_over) {
            return false;
        }
        (self.fence, self.is_over) = (fence, value.is_none());
        let value = value.map(Vec::from);
        self.is_led_by(value.map(|value| Proclaimed { fence, value }))
    }

    /// Applies the answer to the question for the leader, whatever its fence: after
    /// a fail-over or with a clock that was set back, the leader may have a smaller
    /// fence than an earlier one.
    fn answered(&mut self, leader: Option<Proclaimed>) {
        self.fence = leader.as_ref().map_or(0, |leader| leader.fence);
        self.is_over = false;
        self.is_led_by(leader);
    }

    fn is_led_by(&mut self, leader: Option<Proclaimed>) -> bool {
        let is_new = self.leader != leader;
        self.leader = leader;
        is_new
    }
}

/// The observation of a key.
#[derive(Debug)]
pub(super) struct Watch {
    /// Each observer, and whether it has received the current leader.
    observers: BTreeMap<Id, bool>,
    known: Known,
    stage: Stage,
    /// The server that has the key, and whose connection is kept alive.
    node: Option<Node>,
    /// The connection with the subscription.
    main: Option<ConnectionId>,
    attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The server is not connected.
    NoConnection,
    /// It is retried at this moment.
    Pause(Instant),
    /// The server was asked for the leader, in that attempt.
    Asked(Id),
    /// The subscription is complete: each message is a change.
    Followed,
}

impl Endpoint {
    pub(super) fn observe(&mut self, now: Instant, observer: Id, key: Arc<[u8]>) {
        if self.is_closed || self.engine.is_leaving() {
            return self.observed(observer, Err(Error::Closed));
        }
        self.observers.insert(observer, Arc::clone(&key));
        if let Some(watch) = self.watches.get_mut(&key) {
            let is_notified = watch.stage == Stage::Followed;
            watch.observers.insert(observer, is_notified);
            if is_notified {
                let (leader, missed) = (watch.known.leader.clone(), false);
                self.observed(observer, Ok(Change { leader, missed }));
            }
            return;
        }
        let watch = Watch {
            observers: BTreeMap::from([(observer, false)]),
            known: Known::default(),
            stage: Stage::NoConnection,
            node: None,
            main: None,
            attempts: 0,
        };
        self.watches.insert(Arc::clone(&key), watch);
        self.watch(now, &key);
    }

    pub(super) fn unobserve(&mut self, now: Instant, observer: Id) {
        let Some(key) = self.observers.remove(&observer) else {
            return;
        };
        let Some(watch) = self.watches.get_mut(&key) else {
            return;
        };
        watch.observers.remove(&observer);
        if watch.observers.is_empty() {
            self.leave_watch(now, &key);
        }
    }

    fn observed(&mut self, observer: Id, change: Result<Change, Error>) {
        self.actions
            .push_back(Action::Observed { observer, change });
    }

    /// Subscribes at the server of a key, and asks it for the leader.
    fn watch(&mut self, now: Instant, key: &Arc<[u8]>) {
        let node = self.engine.routes().node_of(key);
        self.engine.handle(now, engine::Event::Need { node });
        let (main, attempt) = (self.main_connection(node), self.next_id());
        let Some(watch) = self.watches.get_mut(key) else {
            return;
        };
        watch.stage = match main {
            Some(_) => Stage::Asked(attempt),
            None => Stage::NoConnection,
        };
        let before = std::mem::replace(&mut watch.main, main).filter(|it| Some(*it) != main);
        if let Some(before) = before {
            self.unsubscribe(now, before, key);
        }
        self.set_watched_node(now, key, Some(node));
        let Some(main) = main else {
            return;
        };
        let is_sharded = self.is_sharded_at(main);
        if let Some(connection) = self.connections.get_mut(&main) {
            let was_empty = connection.output.is_empty();
            let subscribe = requests::subscribe_values(key, is_sharded);
            let asked = || (Arc::clone(key), attempt);
            connection.write(now, &subscribe, ReplyKind::Watched(asked()));
            connection.write(now, &requests::info(key), ReplyKind::Leader(asked()));
            self.has_output(now, main, was_empty);
        }
    }

    fn is_sharded_at(&self, main: ConnectionId) -> bool {
        let main = self.connections.get(&main);
        self.is_cluster() || main.is_some_and(|main| main.greeting.is_cluster)
    }

    fn unsubscribe(&mut self, now: Instant, main: ConnectionId, key: &Arc<[u8]>) {
        let is_sharded = self.is_sharded_at(main);
        if let Some(connection) = self.connections.get_mut(&main) {
            let was_empty = connection.output.is_empty();
            requests::unsubscribe_values(key, is_sharded).write(&mut connection.output);
            // The reply is never an error, so it separates the errors of other
            // commands.
            connection.write(
                now,
                &requests::hello(),
                ReplyKind::Unwatched(Arc::clone(key)),
            );
            self.has_output(now, main, was_empty);
        }
    }

    /// Requests heartbeats on the connection to the server that has the key, as
    /// for calls that wait for a lock.
    fn set_watched_node(&mut self, now: Instant, key: &Arc<[u8]>, node: Option<Node>) {
        let Some(watch) = self.watches.get_mut(key) else {
            return;
        };
        let before = std::mem::replace(&mut watch.node, node);
        if before == node {
            return;
        }
        if let Some(before) = before {
            self.engine.lease_is_not_awaited(before, LEASE_DEFAULT);
        }
        if let Some(node) = node {
            self.engine.lease_is_awaited(now, node, LEASE_DEFAULT);
        }
    }

    fn leave_watch(&mut self, now: Instant, key: &Arc<[u8]>) -> Option<Watch> {
        self.set_watched_node(now, key, None);
        let watch = self.watches.remove(key)?;
        let channel = requests::value_channel(key);
        let mut others = requests::keys_of_channel(&channel);
        let is_shared = others.any(|other| self.watches.contains_key(other));
        if let Some(main) = watch.main.filter(|_| !is_shared) {
            self.unsubscribe(now, main, key);
        }
        Some(watch)
    }

    /// Subscribes where there is a new connection, or where the key has moved.
    pub(super) fn resume_watches(&mut self, now: Instant) {
        let routes = self.engine.routes();
        let is_selected = |(key, watch): &(&Arc<[u8]>, &Watch)| match watch.stage {
            Stage::NoConnection => true,
            Stage::Pause(_) => false,
            Stage::Asked(_) | Stage::Followed => watch.node != Some(routes.node_of(key)),
        };
        let selected = self.watches.iter().filter(is_selected);
        let selected: Vec<_> = selected.map(|(key, _)| Arc::clone(key)).collect();
        for key in selected {
            self.watch(now, &key);
        }
    }

    /// Retries the watches whose pause is over. It skips the others, because
    /// thousands may be at a server that is loading its data.
    pub(super) fn resume_paused_watches(&mut self, now: Instant) {
        while let Some((until, key)) = self.paused_watches.pop_first() {
            if until > now {
                self.paused_watches.insert((until, key));
                return;
            }
            let watch = self.watches.get(&key);
            if watch.is_some_and(|watch| watch.stage == Stage::Pause(until)) {
                self.watch(now, &key);
            }
        }
    }

    /// A connection brings no more messages.
    pub(super) fn watches_are_lost(&mut self, main: ConnectionId) {
        for watch in self.watches.values_mut() {
            if watch.main == Some(main) {
                (watch.main, watch.stage) = (None, Stage::NoConnection);
            }
        }
    }

    pub(super) fn watches_are_closed(&mut self) {
        self.paused_watches.clear();
        for (_, watch) in std::mem::take(&mut self.watches) {
            if let Some(node) = watch.node {
                self.engine.lease_is_not_awaited(node, LEASE_DEFAULT);
            }
        }
        for (observer, _) in std::mem::take(&mut self.observers) {
            self.observed(observer, Err(Error::Closed));
        }
    }

    /// The server has refused the subscription.
    pub(super) fn watch_is_refused(
        &mut self,
        now: Instant,
        main: ConnectionId,
        (key, attempt): &(Arc<[u8]>, Id),
        frame: Frame,
    ) {
        if let Frame::Error(error) = frame {
            self.watch_failed(now, main, (key, *attempt), Fault::of(error, &[key]));
        }
    }

    /// The server has answered the question for the leader, or refused it.
    pub(super) fn leader_reply(
        &mut self,
        now: Instant,
        main: ConnectionId,
        (key, attempt): &(Arc<[u8]>, Id),
        frame: Frame,
    ) {
        let info = match frame {
            Frame::Error(error) => Err(Fault::of(error, &[key])),
            frame => inspect::info(&frame).map_err(Fault::Refused),
        };
        let info = match info {
            Ok(info) => info,
            Err(fault) => return self.watch_failed(now, main, (key, *attempt), fault),
        };
        let Some(watch) = self.watch_asked(key, *attempt) else {
            return;
        };
        (watch.stage, watch.attempts) = (Stage::Followed, 0);
        watch.known.answered(info.leader().map(|leader| Proclaimed {
            fence: leader.fence,
            value: leader.value,
        }));
        let leader = watch.known.leader.clone();
        let observers = watch.observers.iter_mut();
        let notified: Vec<_> = observers
            .map(|(observer, is_notified)| (*observer, std::mem::replace(is_notified, true)))
            .collect();
        for (observer, missed) in notified {
            let leader = leader.clone();
            self.observed(observer, Ok(Change { leader, missed }));
        }
    }

    /// The watch that waits for the answer to this attempt.
    fn watch_asked(&mut self, key: &Arc<[u8]>, attempt: Id) -> Option<&mut Watch> {
        let watch = self.watches.get_mut(key)?;
        (watch.stage == Stage::Asked(attempt)).then_some(watch)
    }

    fn watch_failed(
        &mut self,
        now: Instant,
        main: ConnectionId,
        (key, attempt): (&Arc<[u8]>, Id),
        fault: Fault,
    ) {
        let Some(node) = self.watch_asked(key, attempt).map(|watch| watch.node) else {
            return;
        };
        let ends = fault.ends_connection();
        match fault {
            Fault::Refused(error) => self.watch_ends(now, key, &error),
            Fault::Moved(error) if !self.is_cluster() => {
                self.watch_ends(now, key, &Error::Refused(error));
            }
            Fault::Moved(error) | Fault::Transient(Failure::Server(error)) => {
                self.watch_later(now, key);
                self.redirected(now, &error, node);
            }
            Fault::Transient(_) | Fault::Broken(_) | Fault::Stray(_) => self.watch_later(now, key),
        }
        if ends {
            self.give_up(now, main, silent());
        }
    }

    fn watch_later(&mut self, now: Instant, key: &Arc<[u8]>) {
        let Some(attempts) = self.watches.get(key).map(|watch| watch.attempts) else {
            return;
        };
        let until = now + self.engine.pause(attempts);
        if let Some(watch) = self.watches.get_mut(key) {
            watch.attempts = attempts.saturating_add(1);
            watch.stage = Stage::Pause(until);
        }
        self.paused_watches.insert((until, Arc::clone(key)));
        self.timers.insert((until, Timer::Watches));
    }

    fn watch_ends(&mut self, now: Instant, key: &Arc<[u8]>, error: &Error) {
        let watch = self.leave_watch(now, key);
        for (observer, _) in watch.into_iter().flat_map(|watch| watch.observers) {
            self.observers.remove(&observer);
            self.observed(observer, Err(error.clone()));
        }
    }

    /// Takes a message on the channel of values of some key.
    pub(super) fn published(&mut self, main: ConnectionId, channel: &[u8], message: &[u8]) {
        let Some((fence, value)) = replies::published(message) else {
            return self.note(Note::UnknownMessage(message.to_vec()));
        };
        for key in requests::keys_of_channel(channel) {
            let watch = self.watches.get_mut(key);
            let Some(watch) = watch.filter(|watch| watch.main == Some(main)) else {
                continue;
            };
            let is_new = watch.known.update(fence, value);
            // The answer to the question includes earlier messages.
            if watch.stage != Stage::Followed || !is_new {
                continue;
            }
            let (leader, missed) = (watch.known.leader.clone(), false);
            let notified: Vec<Id> = watch.observers.keys().copied().collect();
            for observer in notified {
                let leader = leader.clone();
                self.observed(observer, Ok(Change { leader, missed }));
            }
        }
    }

    /// A channel of values is no longer subscribed: on request, or because its
    /// slot has moved.
    pub(super) fn unsubscribed(&mut self, now: Instant, main: ConnectionId, channel: &[u8]) {
        let Some(connection) = self.connections.get(&main) else {
            return;
        };
        let expected = || connection.expected.iter().map(|it| &it.kind);
        let is_asked = |key: &[u8]| {
            expected().any(|it| matches!(it, ReplyKind::Unwatched(asked) if **asked == *key))
        };
        let keys = requests::keys_of_channel(channel);
        let keys = keys.filter(|key| self.watches.contains_key(*key) && !is_asked(key));
        let keys: Vec<Arc<[u8]>> = keys.map(Arc::from).collect();
        for key in keys {
            let watch = self.watches.get_mut(&key);
            if let Some(watch) = watch.filter(|watch| watch.main == Some(main)) {
                watch.main = None;
                self.watch_later(now, &key);
                self.mark_routes_stale(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(known: &Known) -> Option<(u64, &[u8])> {
        let leader = known.leader.as_ref();
        leader.map(|leader| (leader.fence, leader.value.as_slice()))
    }

    #[test]
    fn leader_follows_the_largest_fence() {
        let mut known = Known::default();
        assert!(known.update(7, Some(b"a")));
        assert!(!known.update(7, Some(b"a")), "the same again");
        assert!(known.update(7, Some(b"b")), "another value");
        assert!(!known.update(6, Some(b"c")) && !known.update(6, None));
        assert_eq!(leader(&known), Some((7, &b"b"[..])));
        assert!(known.update(7, None));
        assert!(!known.update(7, Some(b"b")), "it has ended");
        assert_eq!(leader(&known), None);
        assert!(known.update(9, Some(b"")));
        assert!(known.update(10, None), "its beginning was missed");
        assert!(!known.update(9, Some(b"d")));
    }

    #[test]
    fn an_answer_counts_whatever_its_fence() {
        let of = |fence| {
            let value = b"v".to_vec();
            Some(Proclaimed { fence, value })
        };
        let mut known = Known::default();
        known.answered(of(7));
        known.answered(of(6));
        assert_eq!(leader(&known), Some((6, &b"v"[..])));
        assert!(!known.update(5, Some(b"w")), "from an earlier leader");
        assert!(known.update(6, None));
        known.answered(of(6));
        assert_eq!(leader(&known), Some((6, &b"v"[..])));
        known.answered(None);
        assert_eq!(leader(&known), None);
        assert!(known.update(5, Some(b"w")), "it leads now");
    }
}
