//! The state that a guard reads at any time, without a mutex and without a
//! request: its fence, until when the grant is valid, and whether it is lost.
//!
//! Validity is a comparison with the clock at the moment of the question. No task
//! has to run for it, so the answer cannot be late. A loss is final, even if the
//! server turns out to have renewed the lease in time.

use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::engine::Id;
use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::node::{Node, Routes};
use crate::engine::terms::{Terms, validity_end};
use crate::error::Loss;

/// Values of `validity` that are no moment: the clock is always past them.
const LEASE_ENDED: u64 = 1;
const ENDED_BY_SERVER: u64 = 2;
const RELEASED: u64 = 3;
/// The shortest grace for which heartbeats are frequent enough to prove validity.
const GRACE_MIN: Duration = Duration::from_millis(400);

/// When the connection to each server was last known to be alive.
pub type Alive = Arc<[AtomicU64]>;

/// The largest number of servers.
pub const NODES_MAX: u16 = 1024;

pub(super) fn alive(routes: &Routes) -> Alive {
    let nodes = match routes {
        Routes::One => 1,
        Routes::Slots(_) => NODES_MAX,
    };
    (0..nodes).map(|_| AtomicU64::new(0)).collect()
}

/// One grant, as its guards see it.
pub struct Proof {
    /// The hold's number.
    pub hold: Id,
    /// The call that was granted it first.
    pub call: Id,
    /// The owner, and the keys that it holds.
    pub claims: Claims,
    /// When this client learned of the grant, which is after the server made
    /// it.
    pub granted: Instant,
    fence: AtomicU64,
    /// Until when it is valid, or why it no longer is.
    validity: AtomicU64,
    /// The grace of a bound hold less its margin, and the last heartbeats, from which it counts.
    /// The server ends the hold one grace after its connection ended, and a
    /// stopped process does not see that end.
    bound: Option<(Duration, Alive)>,
    /// The server that reports its loss.
    node: AtomicU16,
    waiting: Mutex<Waiting>,
}

/// The tasks that wait for the loss.
#[derive(Default)]
struct Waiting {
    last: u64,
    wakers: Vec<(u64, Waker)>,
}

impl Proof {
    /// A grant of that hold to that call, under `fence`, known since `granted`, and
    /// valid until `until`.
    pub fn new(
        (hold, call): (Id, Id),
        claims: Claims,
        fence: u64,
        granted: Instant,
        until: Instant,
    ) -> Self {
        Self {
            hold,
            call,
            claims,
            granted,
            fence: AtomicU64::new(fence),
            validity: AtomicU64::new(until.nanos()),
            bound: None,
            node: AtomicU16::new(0),
            waiting: Mutex::default(),
        }
    }

    /// The proof of several holds together, each of which has its own proof.
    pub fn of_several(claims: Claims, fence: u64, granted: Instant, until: Instant) -> Self {
        Self::new((Id(0), Id(0)), claims, fence, granted, until)
    }

    /// The same for a hold with these terms, which may bind it to its connection.
    pub fn bound(self, terms: &Terms, alive: &Alive, node: Node) -> Self {
        let grace = terms.bound.filter(|grace| *grace >= GRACE_MIN);
        let grace = grace.map(|grace| grace.saturating_sub(terms.margin));
        Self {
            bound: grace.map(|grace| (grace, Arc::clone(alive))),
            node: AtomicU16::new(node.0),
            ..self
        }
    }

    /// Whether it ends with its connection.
    pub fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    pub(super) fn set_node(&self, node: Node) {
        self.node.store(node.0, Ordering::Release);
    }

    /// The grant's number; larger than the fence of every earlier holder.
    pub fn fence(&self) -> u64 {
        self.fence.load(Ordering::Acquire)
    }

    /// Sets the new fence of an upgrade.
    pub fn set_fence(&self, fence: u64) {
        self.fence.store(fence, Ordering::Release);
    }

    /// Until when it is valid, unless its connection ends; none if it is over.
    pub fn valid_until(&self) -> Option<Instant> {
        match self.validity.load(Ordering::Acquire) {
            LEASE_ENDED | ENDED_BY_SERVER | RELEASED => None,
            until => Some(Instant::from_nanos(until)),
        }
    }

    /// When it is over if nothing more arrives at the server that reports its loss;
    /// none if it is over.
    pub(crate) fn quiet_end(&self) -> Option<Instant> {
        let until = self.valid_until()?;
        Some(self.while_connected(until.nanos()))
    }

    /// Until when its lease runs, whether its connection is alive or not; none if it
    /// is over.
    pub(crate) fn running(&self, now: Instant) -> Option<Instant> {
        self.valid_until().filter(|end| now < *end)
    }

    /// Limits `until` to the time for which the connection is known to be alive.
    fn while_connected(&self, until: u64) -> Instant {
        let until = Instant::from_nanos(until);
        match &self.bound {
            Some((grace, alive)) => {
                let node = usize::from(self.node.load(Ordering::Acquire));
                let alive = alive.get(node).map_or(0, |it| it.load(Ordering::Acquire));
                let alive = Instant::from_nanos(alive);
                until.min(validity_end(alive, *grace))
            }
            None => until,
        }
    }

    /// Why it is lost at `now`; none if it is not lost.
    pub fn loss(&self, now: Instant) -> Option<Loss> {
        // A renewal on another thread may come first; then the new end counts.
        let _ = self.change(LEASE_ENDED, |until| until <= now);
        match self.validity.load(Ordering::Acquire) {
            LEASE_ENDED => Some(Loss::LeaseEnded),
            ENDED_BY_SERVER => Some(Loss::EndedByServer),
            _ => None,
        }
    }

    /// Why it is no longer valid at `now`: lost or released; none if it is
    /// valid.
    pub fn end_of(&self, now: Instant) -> Option<Loss> {
        let loss = self.loss(now);
        let is_released = self.validity.load(Ordering::Acquire) == RELEASED;
        loss.or(is_released.then_some(Loss::Released))
    }

    /// How long it stays valid if nothing more arrives; zero if it is over.
    pub fn remaining(&self, now: Instant) -> Duration {
        match (self.loss(now), self.valid_until()) {
            (None, Some(until)) => until - now,
            _ => Duration::ZERO,
        }
    }

    /// Whether it is valid at `now`: neither lost nor released.
    pub fn is_live(&self, now: Instant) -> bool {
        self.loss(now).is_none() && self.valid_until().is_some()
    }

    /// Makes it valid until `end`; false if it was already over.
    pub fn set_valid_until(&self, now: Instant, end: Instant) -> bool {
        self.change(end.nanos(), |until| now < until)
    }

    /// The same while its lease runs, even if nothing has shown for its grace that its
    /// connection is alive: what shows it may be unread.
    pub(super) fn set_running_until(&self, now: Instant, end: Instant) -> bool {
        self.replace(end.nanos(), |until| now < Instant::from_nanos(until))
    }

    /// Marks it as ended by the server; true if it was live until then.
    pub fn lose(&self, now: Instant) -> bool {
        self.change(ENDED_BY_SERVER, |until| now < until)
    }

    /// Ends it with its last lease, unless it is already over.
    pub fn expire(&self) {
        self.change(LEASE_ENDED, |_| true);
    }

    /// Ends it on purpose: from now on nothing counts as a loss.
    pub fn end(&self, now: Instant) {
        self.change(RELEASED, |until| now < until);
    }

    /// Sets `validity` if it is still a moment, and `applies` is true for when it is
    /// over if nothing more arrives.
    fn change(&self, validity: u64, applies: impl Fn(Instant) -> bool) -> bool {
        self.replace(validity, |until| applies(self.while_connected(until)))
    }

    fn replace(&self, validity: u64, applies: impl Fn(u64) -> bool) -> bool {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.validity
            .fetch_update(set, fetch, |now| match now {
                LEASE_ENDED | ENDED_BY_SERVER | RELEASED => None,
                until => applies(until).then_some(validity),
            })
            .is_ok()
    }

    /// Registers `waker` for [`wake`](Self::wake). `place` is zero at first;
    /// [`stop_waiting`](Self::stop_waiting) must free it.
    pub fn wait(&self, place: &mut u64, waker: &Waker) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let known = waiting.wakers.iter_mut().find(|(known, _)| known == place);
        let before = match known {
            Some((_, known)) => std::mem::replace(known, waker.clone()),
            None => {
                waiting.last += 1;
                *place = waiting.last;
                let place = waiting.last;
                waiting.wakers.push((place, waker.clone()));
                return;
            }
        };
        // Dropping a waker may run any code.
        drop(waiting);
        drop(before);
    }

    /// Whether a task waits for the loss. A task that starts to wait later sees
    /// the current state.
    pub fn is_awaited(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        !waiting.wakers.is_empty()
    }

    /// Ends a [`wait`](Self::wait) and frees its place.
    pub fn stop_waiting(&self, place: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let found = waiting.wakers.iter().position(|(known, _)| *known == place);
        let before = found.map(|index| waiting.wakers.swap_remove(index));
        drop(waiting);
        drop(before);
    }

    /// Wakes all waiting tasks. The caller must hold no lock.
    pub fn wake(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        for (_, waker) in wakers {
            waker.wake();
        }
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, fence {}", self.claims, self.fence())
    }
}
