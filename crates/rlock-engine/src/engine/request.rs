//! Requests to a server, its replies, and its messages: a queued request was
//! granted or is over, or a hold was lost.
//!
//! A request can outlive the connection that carried it, and arrive after later
//! requests of the same owner. What prevents harm:
//!
//! | request | connection | harm if it is late | prevented by |
//! |---|---|---|---|
//! | any | main | as below | the next main connection asks the server to close this one, before its first request; without that right, clean-up is repeated (`leaving.rs`) and a place is asked for again (`call.rs`) |
//! | `Renew` | for replicas, or to the target of a moving slot | shortens the lease of a later hold, or binds it | the owner's next request waits until this one is answered ([`Event::SentSeparately`](crate::engine::Event::SentSeparately)); if it never is, the server is asked to close that connection first ([`Fault::Stray`](crate::error::Fault::Stray)), or clean-up is repeated ([`Event::PredecessorStays`](crate::engine::Event::PredecessorStays)) |
//! | `Release` with a fence | the same | none: it names its hold | |
//! | `Release` and `ReleaseEach` without a fence, `CleanUp`, `Downgrade` | to the target of a moving slot | ends or shares a later hold | as for `Renew` |
//! | `ReleasePermits` | main only | releases permits twice, if it was repeated | it is repeated only after `CountPermits` has shown that it was not carried out, and cannot be any more (`part_release.rs`) |
//! | `Acquire`, `Cancel` | main only | | as for any |
//! | a question that changes something (`FORCE`) | main | ends a later hold | nothing: it is not repeated, and its caller learns that it may have been carried out |
//!
//! Owners of a single call ([`Owner::numbered`](crate::engine::claims::Owner::numbered))
//! have no later request, so they do not wait.

use std::time::Duration;

use crate::engine::call::WaitEnd;
use crate::engine::claims::{Claims, Name};
use crate::engine::instant::Instant;
use crate::engine::node::Node;
use crate::engine::terms::{Ask, LEASE_DEFAULT, Queueing, Terms, Value};
use crate::engine::work::{Input, Stage, Task};
use crate::engine::{Engine, Id};

/// A request. It is harmless if the server carries it out twice, unless it releases
/// permits.
#[derive(Clone, Debug)]
pub enum Request {
    /// Answered with a fence, [`Reply::Queued`] or nil.
    Acquire {
        /// The owner, and the keys that it asks for.
        claims: Claims,
        /// Exclusive, shared, or a number of permits.
        ask: Ask,
        /// The terms; their lease is the rest of it.
        terms: Terms,
        /// Whether and how long to wait.
        queueing: Queueing,
        /// Whether the server sends messages about the outcome and a loss.
        notify: bool,
        /// The published value; none leaves it unchanged.
        value: Option<Value>,
    },
    /// Answered with a fence, or nil if not everything is held. Several keys are
    /// renewed only under the known fence, which the answer then is. Answered with
    /// [`Reply::TooFew`] if it was done, but too few replicas acknowledged it in
    /// time.
    Renew {
        /// The owner, and the keys that it holds.
        claims: Claims,
        /// The new terms; their lease is the rest of it.
        terms: Terms,
        /// The known fence. A single key is renewed under any fence, and the answer
        /// names it.
        known: u64,
        /// Raises the fence to this if it is smaller; for a single key only.
        raise: Option<u64>,
        /// Whether the server reports a loss by this connection from then on; no
        /// replicas are asked then.
        notify: bool,
        /// The new published value; none leaves it unchanged.
        value: Option<Value>,
    },
    /// Answered with `Done`, or nil if not everything was held. With a fence,
    /// only a hold under this fence is released, so that a late release does not
    /// free a newer hold of the same owner.
    Release {
        /// The owner, and the keys that it held.
        claims: Claims,
        /// The fence; none for any fence.
        fence: Option<u64>,
    },
    /// Releases each key separately: one of them is not a lock, so the server
    /// refuses to release all at once.
    ReleaseEach {
        /// The owner, and the keys that it held.
        claims: Claims,
        /// The fence; none for any fence.
        fence: Option<u64>,
    },
    /// Releases some permits of a hold, which keeps the others. Answered with
    /// `Done`, or nil if there is no hold under this fence. Each repetition
    /// releases more.
    ReleasePermits {
        /// The owner and the key.
        claims: Claims,
        /// How many.
        permits: u64,
        /// The fence.
        fence: u64,
    },
    /// Answered with the number of permits of a hold, or nil if there is no hold
    /// under this fence.
    CountPermits {
        /// The owner and the key.
        claims: Claims,
        /// The fence.
        fence: u64,
    },
    /// Answered with a fence, or nil.
    Downgrade {
        /// The owner, and the keys that it holds.
        claims: Claims,
    },
    /// Withdraws a request, or ends the place that was kept for it; answered with
    /// the number of withdrawn requests.
    Cancel {
        /// The owner, and the keys that it waits for.
        claims: Claims,
    },
    /// Withdraws a request and undoes its grant; answered with the reply to the
    /// undoing.
    CleanUp {
        /// The owner, and the keys that it has asked for.
        claims: Claims,
        /// How to undo a grant.
        undo: Undo,
    },
    /// A heartbeat: asks whether the server answers.
    Ping,
}

impl Request {
    /// The number of replicas that must acknowledge it.
    pub fn replicas(&self) -> u16 {
        match self {
            Self::Renew {
                terms,
                notify: false,
                ..
            } => terms.replicas,
            _ => 0,
        }
    }

    /// The owner and the keys; none for a heartbeat.
    pub fn claims(&self) -> Option<&Claims> {
        match self {
            Self::Acquire { claims, .. }
            | Self::Renew { claims, .. }
            | Self::Release { claims, .. }
            | Self::ReleaseEach { claims, .. }
            | Self::ReleasePermits { claims, .. }
            | Self::CountPermits { claims, .. }
            | Self::Downgrade { claims }
            | Self::Cancel { claims }
            | Self::CleanUp { claims, .. } => Some(claims),
            Self::Ping => None,
        }
    }

    /// Whether it uses a separate connection, because it waits for replicas. Its
    /// answer, or a missing answer, says nothing about the main connection.
    pub fn is_separate(&self) -> bool {
        self.replicas() > 0
    }

    /// Whether it is for an existing hold, which moves with its key between
    /// servers, and ties nothing to its connection: no later messages, no bound
    /// hold, and no repetition that depends on how the connection ended.
    pub fn is_of_a_hold(&self) -> bool {
        match self {
            Self::Renew { notify, terms, .. } => !notify && terms.bound.is_none(),
            Self::Release { .. }
            | Self::ReleaseEach { .. }
            | Self::Downgrade { .. }
            | Self::CleanUp { .. } => true,
            Self::Acquire { .. }
            | Self::ReleasePermits { .. }
            | Self::CountPermits { .. }
            | Self::Cancel { .. }
            | Self::Ping => false,
        }
    }
}

/// How to undo the possible grant of a request that nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo {
    /// Not at all: only a hold that has guards can have been granted.
    Nothing,
    /// The lock was free before.
    Release,
    /// The hold was shared before.
    Downgrade,
}

/// A server's answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The owner holds it, under this fence.
    Fence(u64),
    /// The owner does not hold it.
    Nil,
    /// The request is queued.
    Queued,
    /// The number of requests that were found, or of permits.
    Count(u64),
    /// Only this number of replicas acknowledged it.
    TooFew(u16),
    /// It was done.
    Done,
    /// The last of several requests was refused.
    Refused,
}

/// A request that is not yet answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) by: Requester,
    pub(super) node: Node,
    pub(super) connection: u64,
    pub(super) is_separate: bool,
    pub(super) sent: Instant,
}

impl Sent {
    /// The main connection by which it was answered, in order with the reports of
    /// losses; 0 for another connection.
    pub(super) fn in_order_with(&self) -> u64 {
        if self.is_separate { 0 } else { self.connection }
    }
}

/// A renewal by the watchdog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    pub(super) hold: Id,
    /// The requested lease, and the fence at that moment.
    pub(super) lease: Duration,
    pub(super) fence: u64,
    /// Whether it asks for loss reports by its connection.
    pub(super) attaches: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Requester {
    Work(Id),
    Renewal(Renewal),
    Ping,
}

/// The event that a message reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// A queued request was granted.
    Grant,
    /// A queued request is over because its wait has ended.
    WaitEnded,
    /// The server has dropped a queued request, or no longer watches a hold.
    Withdrawn,
    /// A hold has ended, and its owner did not end it.
    Lost,
}

/// One message from the server.
#[derive(Clone, Debug)]
pub struct Notice {
    /// The event.
    pub kind: NoticeKind,
    /// The fence of the grant, or of the lost hold.
    pub fence: u64,
    /// The owner and the key.
    pub name: Name,
    /// The connection on which it arrived.
    pub connection: u64,
}

impl Engine {
    /// Takes a message, before any later reply on its connection.
    ///
    /// Messages and replies arrive in one order. So the last answered request
    /// was made before the event.
    pub(super) fn notice(&mut self, now: Instant, notice: &Notice) {
        let end = match notice.kind {
            NoticeKind::Lost => return self.loss_notified(now, notice),
            NoticeKind::Grant => WaitEnd::Grant {
                fence: notice.fence,
                not_before: self.known_good_of(notice.connection),
            },
            NoticeKind::WaitEnded => WaitEnd::TimedOut,
            NoticeKind::Withdrawn => {
                self.watch_is_over(now, notice);
                WaitEnd::Withdrawn
            }
        };
        if let Some(call) = self.call_in_turn(&notice.name) {
            self.notify_call(now, call, notice.connection, end);
        } else if notice.kind == NoticeKind::Grant && !self.is_known(notice) {
            // Otherwise a lock that was granted to nobody would stay held for a
            // lease.
            if let Some(claims) = Claims::named(&notice.name) {
                self.undo_unclaimed_grant(now, claims, LEASE_DEFAULT);
            }
        }
    }

    /// The call that has the turn.
    fn call_in_turn(&self, name: &Name) -> Option<Id> {
        let id = self.claims.get(name)?.turn?;
        let work = self.works.get(&id)?;
        matches!(work.task, Task::Call(_)).then_some(id)
    }

    /// Passes a message to the call, if it came by the connection of the call's
    /// request.
    fn notify_call(&mut self, now: Instant, id: Id, connection: u64, end: WaitEnd) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        // It is about a request of an earlier connection: the next request
        // learns the outcome.
        if work.progress.asked_by != Some(connection) {
            return;
        }
        match (work.progress.stage, &mut work.task) {
            (Stage::Queued(_), _) => self.advance_with(now, id, Input::Notified(end)),
            (Stage::Asked(_), Task::Call(call)) => call.early_notice = Some(end),
            _ => {}
        }
    }

    /// Whether a grant is already counted here or is being undone.
    fn is_known(&self, notice: &Notice) -> bool {
        let Some(claim) = self.claims.get(&notice.name) else {
            return false;
        };
        let hold = claim.hold.and_then(|hold| self.holds.get(&hold));
        if let Some(hold) = hold {
            return hold.has_fence(notice.fence);
        }
        let first = claim.turn.and_then(|id| self.works.get(&id));
        first.is_some_and(|work| match (&work.task, work.progress.stage) {
            // A request on the same connection comes after the grant.
            (Task::CleanUp(_), Stage::Asked(request)) => {
                let sent = self.requests.get(&request);
                sent.is_some_and(|sent| sent.connection == notice.connection)
            }
            (Task::CleanUp(_), _) => true,
            _ => false,
        })
    }

    /// The server no longer has the key, so it no longer reports a loss. It
    /// sends this for waiting requests and for holds.
    fn watch_is_over(&mut self, now: Instant, notice: &Notice) {
        let id = self.claims.get(&notice.name).and_then(|claim| claim.hold);
        let Some(hold) = id.and_then(|id| self.holds.get_mut(&id)) else {
            return;
        };
        if hold.notices_by == notice.connection && hold.proof.is_live(now) {
            hold.notices_by = 0;
            if hold.renewing.is_none() {
                let id = hold.proof.hold;
                self.check_at(now, id, Some(now));
            }
        }
    }

    fn loss_notified(&mut self, now: Instant, notice: &Notice) {
        let Some(claim) = self.claims.get_mut(&notice.name) else {
            return;
        };
        claim.fence_lost = claim.fence_lost.max(notice.fence);
        let hold = claim.hold.and_then(|hold| self.holds.get(&hold));
        if let Some(hold) = hold.filter(|hold| hold.may_have_fence(notice.fence)) {
            self.lose(now, hold.proof.hold);
        }
    }
}
