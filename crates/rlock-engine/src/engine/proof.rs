//! What a guard can tell at any time, without a lock and without asking
//! anybody: the fence, until when its grant counts, and whether it is lost.
//!
//! Whether it counts is a comparison with the clock, made when it is asked
//! for: no task has to run for it, so none can be too late. A loss is final,
//! even if the server later turns out to have renewed in time.

use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::engine::Id;
use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::node::{Node, Routes};
use crate::engine::terms::validity_end;
use crate::error::Loss;

/// In place of a moment, as the clock never shows so small ones.
const LEASE_ENDED: u64 = 1;
const ENDED_BY_SERVER: u64 = 2;
const RELEASED: u64 = 3;
/// The shortest grace for which heartbeats come often enough to count by
/// them.
const GRACE_MIN: Duration = Duration::from_millis(400);

/// When each server's connection was last known to be there.
pub type Alive = Arc<[AtomicU64]>;

/// The most servers that can be known.
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
    /// Who holds what.
    pub claims: Claims,
    /// When the grant was known here: not before the server gave it.
    pub granted: Instant,
    fence: AtomicU64,
    /// Until when it counts, or why it does not any more.
    standing: AtomicU64,
    /// The grace of a bound hold, and the last heartbeat that it counts from. The
    /// server ends the hold one grace after the end of its connection, which a
    /// stopped process does not see.
    bound: Option<(Duration, Alive)>,
    /// The server that tells of its loss.
    node: AtomicU16,
    waiting: Mutex<Waiting>,
}

/// Those who wait for the loss.
#[derive(Default)]
struct Waiting {
    last: u64,
    wakers: Vec<(u64, Waker)>,
}

impl Proof {
    /// A grant under `fence`, known since `granted`, that counts until then.
    pub fn new(hold: Id, claims: Claims, fence: u64, granted: Instant, until: Instant) -> Self {
        Self {
            hold,
            claims,
            granted,
            fence: AtomicU64::new(fence),
            standing: AtomicU64::new(until.nanos()),
            bound: None,
            node: AtomicU16::new(0),
            waiting: Mutex::default(),
        }
    }

    /// One that rests on several holds, each with a proof of its own.
    pub fn of_several(claims: Claims, fence: u64, granted: Instant, until: Instant) -> Self {
        Self::new(Id(0), claims, fence, granted, until)
    }

    /// The same, for a hold that is bound to its connection with that grace.
    pub fn bound(self, grace: Option<Duration>, alive: &Alive, node: Node) -> Self {
        let grace = grace.filter(|grace| *grace >= GRACE_MIN);
        Self {
            bound: grace.map(|grace| (grace, Arc::clone(alive))),
            node: AtomicU16::new(node.0),
            ..self
        }
    }

    pub(super) fn set_node(&self, node: Node) {
        self.node.store(node.0, Ordering::Release);
    }

    /// The number of the grant; larger than the fence of every earlier holder.
    pub fn fence(&self) -> u64 {
        self.fence.load(Ordering::Acquire)
    }

    /// An upgrade gives a new one.
    pub fn set_fence(&self, fence: u64) {
        self.fence.store(fence, Ordering::Release);
    }

    /// Until when it counts, unless its connection ends; none if it is over.
    pub fn valid_until(&self) -> Option<Instant> {
        match self.standing.load(Ordering::Acquire) {
            LEASE_ENDED | ENDED_BY_SERVER | RELEASED => None,
            until => Some(Instant::from_nanos(until)),
        }
    }

    /// No longer than the connection is known to have been there.
    fn as_known(&self, until: u64) -> Instant {
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

    /// Why it is lost, if it is, judged now.
    pub fn loss(&self, now: Instant) -> Option<Loss> {
        // A renewal may come in between; then it is judged by that.
        let _ = self.change(LEASE_ENDED, |until| until <= now);
        match self.standing.load(Ordering::Acquire) {
            LEASE_ENDED => Some(Loss::LeaseEnded),
            ENDED_BY_SERVER => Some(Loss::EndedByServer),
            _ => None,
        }
    }

    /// Why it does not count any more, if so: it is lost, or was released.
    pub fn end_of(&self, now: Instant) -> Option<Loss> {
        let loss = self.loss(now);
        let is_released = self.standing.load(Ordering::Acquire) == RELEASED;
        loss.or(is_released.then_some(Loss::Released))
    }

    /// Whether it is neither lost nor being released, judged now.
    pub fn is_live(&self, now: Instant) -> bool {
        self.loss(now).is_none() && self.valid_until().is_some()
    }

    /// Counts until then from now on; false if it was over before.
    pub fn set_valid_until(&self, now: Instant, end: Instant) -> bool {
        self.change(end.nanos(), |until| now < until)
    }

    /// Whether that is news.
    pub fn lose(&self, now: Instant) -> bool {
        self.change(ENDED_BY_SERVER, |until| now < until)
    }

    /// Ends as the last lease did, unless it is over already.
    pub fn lapse(&self) {
        self.change(LEASE_ENDED, |_| true);
    }

    /// Ends it on purpose: from here nothing is a loss.
    pub fn end(&self, now: Instant) {
        self.change(RELEASED, |until| now < until);
    }

    /// Sets the standing while it is a moment for which `applies` holds.
    fn change(&self, standing: u64, applies: impl Fn(Instant) -> bool) -> bool {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.standing
            .fetch_update(set, fetch, |now| match now {
                LEASE_ENDED | ENDED_BY_SERVER | RELEASED => None,
                until => applies(self.as_known(until)).then_some(standing),
            })
            .is_ok()
    }

    /// Has `waker` woken by [`wake`](Self::wake). `place` is zero at first,
    /// and must be returned.
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
        // To drop one may run any code.
        drop(waiting);
        drop(before);
    }

    /// Whether anybody needs waking. Who asks to be woken from now on sees
    /// the standing of now.
    pub fn is_awaited(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        !waiting.wakers.is_empty()
    }

    /// Ends what [`wait`](Self::wait) has begun.
    pub fn give_back(&self, place: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let found = waiting.wakers.iter().position(|(known, _)| *known == place);
        let before = found.map(|index| waiting.wakers.swap_remove(index));
        drop(waiting);
        drop(before);
    }

    /// Wakes all who wait. The caller must hold no lock.
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
