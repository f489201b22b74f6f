//! Keeps the connection known to be there while holds are bound to it, or
//! somebody waits.
//!
//! A grant by message counts from the last sign of life before it. So while
//! somebody waits, a quiet connection is asked for one four times in the
//! shortest lease, once for all who wait; and so often that they do not wait
//! for long at a server that hangs.
//!
//! When a connection ends, a bound hold counts only for its grace from when the
//! connection was last known to be there. If that were the last renewal, an end
//! after a quiet time would lose holds that the server still has. So a quiet
//! connection is asked four times in the shortest grace; and given up if
//! nothing comes for half of it, so that its end is seen here before the grace
//! can be over on the server.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::instant::Instant;
use crate::engine::lane::Node;
use crate::engine::request::{By, Request};
use crate::engine::{Action, Engine, Link, Timer};

/// At most ten signs of life a second are asked for, and at least one in five
/// seconds unless more are wanted.
const PULSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl Engine {
    /// Has a sign of life asked for at least so often while there is need.
    pub fn set_quiet(&mut self, quiet: Duration) {
        self.quiet = Some(quiet);
    }

    /// When the last request was made that the server answered.
    pub fn known_good(&self, node: Node) -> Instant {
        let lane = self.lanes.get(&node);
        lane.map_or(Instant::from_nanos(0), |lane| lane.known_good)
    }

    pub(super) fn lease_is_awaited(&mut self, now: Instant, node: Node, lease: Duration) {
        if count(&mut self.lane(node).leases, lease) {
            self.keep_pulse(now, node);
        }
    }

    pub(super) fn lease_is_not_awaited(&mut self, node: Node, lease: Duration) {
        uncount(&mut self.lane(node).leases, lease);
    }

    pub(super) fn grace_begins(&mut self, now: Instant, node: Node, grace: Duration) {
        if !grace.is_zero() && count(&mut self.lane(node).graces, grace) {
            self.keep_pulse(now, node);
        }
    }

    pub(super) fn grace_ends(&mut self, node: Node, grace: Duration) {
        uncount(&mut self.lane(node).graces, grace);
    }

    /// Asks for a sign of life if the last is too old.
    pub(super) fn keep_pulse(&mut self, now: Instant, node: Node) {
        let quiet = self.quiet.unwrap_or(PULSE.1);
        let lane = self.lane(node);
        let grace = lane.graces.keys().next().copied();
        let lease = lane.leases.keys().next().copied();
        let shortest = grace.into_iter().chain(lease).min();
        let interval = shortest.map(|shortest| (shortest / 4).clamp(PULSE.0, quiet));
        let (Some(interval), Link::Up { number, .. }) = (interval, lane.link) else {
            return self.set_pulse(node, None);
        };
        let age = now - lane.known_good;
        if age < interval && lane.renewals.ping.is_none() {
            return self.set_pulse(node, Some(now + (interval - age)));
        }
        let is_new = lane.renewals.ping.is_none();
        let sent = *lane.renewals.ping.get_or_insert(now);
        if is_new {
            self.send(now, (node, number), By::Ping, Request::Ping);
        }
        let silence = grace.map(|grace| sent + (grace / 2).max(PULSE.0));
        if silence.is_some_and(|silence| silence <= now) {
            self.actions.push_back(Action::Retire { link: number });
            return self.set_pulse(node, None);
        }
        self.set_pulse(node, silence);
    }

    pub(super) fn pulse_reply(&mut self, now: Instant, node: Node) {
        self.lane(node).renewals.ping = None;
        self.keep_pulse(now, node);
    }

    pub(super) fn set_pulse(&mut self, node: Node, due: Option<Instant>) {
        if let Some(before) = std::mem::replace(&mut self.lane(node).pulse, due) {
            self.agenda.remove(&(before, Timer::Pulse(node)));
        }
        if let Some(due) = due {
            self.agenda.insert((due, Timer::Pulse(node)));
        }
    }
}

/// Counts one more of that length; whether it is shorter than all others.
fn count(all: &mut BTreeMap<Duration, usize>, length: Duration) -> bool {
    let shortest = all.keys().next().copied();
    *all.entry(length).or_default() += 1;
    shortest.is_none_or(|shortest| length < shortest)
}

fn uncount(all: &mut BTreeMap<Duration, usize>, length: Duration) {
    if let Some(count) = all.get_mut(&length) {
        *count -= 1;
        if *count == 0 {
            all.remove(&length);
        }
    }
}
