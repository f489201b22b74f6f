//! What the engine asks the server, what it can be answered, and what the server
//! says without being asked: that a queued request was granted or is over, and
//! that a hold was lost.

use std::time::Duration;

use crate::engine::call::WaitEnd;
use crate::engine::claims::{Claims, Name};
use crate::engine::instant::Instant;
use crate::engine::node::Node;
use crate::engine::terms::{Ask, LEASE_DEFAULT, Queueing, Terms, Value};
use crate::engine::work::{Input, Stage, Task};
use crate::engine::{Engine, Id};

/// A request. None of them does harm if it is carried out twice.
#[derive(Clone, Debug)]
pub enum Request {
    /// Answered with a fence, [`Reply::Queued`] or nil.
    Acquire {
        /// Who asks, and for what.
        claims: Claims,
        /// Alone, shared, or some of a number of permits.
        ask: Ask,
        /// On which terms; their lease is what is left of it by now.
        terms: Terms,
        /// Whether and how long to wait.
        queueing: Queueing,
        /// Whether the server is to tell of the outcome and of a loss.
        notify: bool,
        /// What is published with the hold; none leaves it as it is.
        value: Option<Value>,
    },
    /// Answered with a fence, or nil if not everything is held. For several
    /// keys the server names no fence; then it is the one known before.
    /// Answered with [`Reply::TooFew`] if it was done, but not enough replicas
    /// have said in time that they know it.
    Renew {
        /// Who holds what.
        claims: Claims,
        /// On which terms from then on; their lease is what is left of it by now.
        terms: Terms,
        /// The fence that is known.
        known: u64,
        /// The fence to raise it to, if it is smaller; of one key only.
        raise: Option<u64>,
        /// Whether the server is to tell of a loss by this connection from then on:
        /// then no replicas are asked.
        notify: bool,
        /// What is published from then on; none leaves it as it is.
        value: Option<Value>,
    },
    /// Answered with `Done`, or nil if not everything was held. With a fence
    /// only what is held under it is released, so that a release that arrives
    /// late frees nothing that its owner has taken again.
    Release {
        /// Who held what.
        claims: Claims,
        /// Under which fence; none is any.
        fence: Option<u64>,
    },
    /// Each key by itself, for when one of them holds something that is no
    /// lock, and keeps the server from releasing any.
    ReleaseEach {
        /// Who held what.
        claims: Claims,
        /// Under which fence; none is any.
        fence: Option<u64>,
    },
    /// Answered with a fence, or nil.
    Downgrade {
        /// Who holds what.
        claims: Claims,
    },
    /// Withdraws a request, or ends the place that was kept for it; answered
    /// with how many there were.
    Cancel {
        /// Who waits for what.
        claims: Claims,
    },
    /// Withdraws a request and undoes its grant; answered with what undoing
    /// came to.
    CleanUp {
        /// Who has asked for what.
        claims: Claims,
        /// What to do about a grant.
        undo: Undo,
    },
    /// A heartbeat: asks whether the server answers.
    Ping,
}

impl Request {
    /// How many replicas are asked whether they know of what it does.
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

    /// Whether it goes by a connection of its own, as it waits for replicas. Its
    /// answer, or that there is none, says nothing of the one that all others
    /// go by.
    pub fn goes_beside(&self) -> bool {
        self.replicas() > 0
    }

    /// Whether it is about what is there already, which goes with its key from
    /// one server to another, and leaves nothing with the connection that it is
    /// asked by: no messages that it would come by, and no hold that ends with it.
    pub fn is_of_a_hold(&self) -> bool {
        match self {
            Self::Renew { notify, terms, .. } => !notify && terms.bound.is_none(),
            Self::Release { .. }
            | Self::ReleaseEach { .. }
            | Self::Downgrade { .. }
            | Self::CleanUp { .. } => true,
            Self::Acquire { .. } | Self::Cancel { .. } | Self::Ping => false,
        }
    }
}

/// How to undo what a request that nobody waits for may have been granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undo {
    /// It can have been granted what has guards on it only.
    Nothing,
    /// It was free.
    Release,
    /// It was shared.
    Downgrade,
}

/// What a server answers to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It holds, under this fence.
    Fence(u64),
    /// It does not hold.
    Nil,
    /// The request waits.
    Queued,
    /// This many were there.
    Count(u64),
    /// This many replicas know it.
    TooFew(u16),
    /// It was done.
    Done,
    /// Of several requests the last was refused.
    Refused,
}

/// A request that was sent and not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) by: By,
    pub(super) node: Node,
    pub(super) connection: u64,
    pub(super) goes_beside: bool,
    pub(super) sent: Instant,
}

/// A renewal that the watchdog has asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    pub(super) hold: Id,
    /// The lease that was asked for, and the fence by then.
    pub(super) lease: Duration,
    pub(super) fence: u64,
    /// Whether it has the loss told by its connection.
    pub(super) attaches: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    Work(Id),
    Renewal(Renewal),
    Ping,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// A queued request was granted.
    Grant,
    /// A queued request is over, as its time is.
    WaitEnded,
    /// The server has dropped a queued request, or watches a hold no more.
    Withdrawn,
    /// A hold has ended without its owner's doing.
    Lost,
}

/// One message of the server.
#[derive(Clone, Debug)]
pub struct Notice {
    /// What has happened.
    pub kind: NoticeKind,
    /// The fence of the grant, or of the hold that was lost.
    pub fence: u64,
    /// To whom, and where.
    pub name: Name,
    /// The connection that it came by.
    pub connection: u64,
}

impl Engine {
    /// Takes a message, before any reply that comes after it by its connection.
    ///
    /// Messages and replies are in one order. So what is said happened after
    /// the last request was made that has been answered by now.
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
            // If nobody waits for a grant, the lock would be held for a lease.
            if let Some(claims) = Claims::named(&notice.name) {
                self.give_back(now, claims, LEASE_DEFAULT);
            }
        }
    }

    /// The call that has the turn.
    fn call_in_turn(&self, name: &Name) -> Option<Id> {
        let id = *self.claims.get(name)?.queue.front()?;
        let work = self.works.get(&id)?;
        matches!(work.task, Task::Call(_)).then_some(id)
    }

    /// Tells a call what the server says by the connection that it was made by.
    fn notify_call(&mut self, now: Instant, id: Id, connection: u64, end: WaitEnd) {
        let Some(work) = self.works.get_mut(&id) else {
            return;
        };
        // About a request of an earlier connection: the next one finds out.
        if work.progress.asked_by != Some(connection) {
            return;
        }
        match (work.progress.stage, &mut work.task) {
            (Stage::Queued(_), _) => self.tell(now, id, Input::Notified(end)),
            (Stage::Asked(_), Task::Call(call)) => call.early_notice = Some(end),
            _ => {}
        }
    }

    /// Whether a grant is what is held, or is being undone.
    fn is_known(&self, notice: &Notice) -> bool {
        let Some(claim) = self.claims.get(&notice.name) else {
            return false;
        };
        let hold = claim.hold.and_then(|hold| self.holds.get(&hold));
        if let Some(hold) = hold {
            return hold.is_called(notice.fence);
        }
        let first = claim.queue.front().and_then(|id| self.works.get(id));
        first.is_some_and(|work| match (&work.task, work.progress.stage) {
            // What was asked by the same connection comes after the grant.
            (Task::CleanUp(_), Stage::Asked(request)) => {
                let sent = self.requests.get(&request);
                sent.is_some_and(|sent| sent.connection == notice.connection)
            }
            (Task::CleanUp(_), _) => true,
            _ => false,
        })
    }

    /// The server cannot tell of a loss any more, as it does not have the key:
    /// so it says of those who wait and of those who hold.
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
        if let Some(hold) = hold.filter(|hold| hold.is_called(notice.fence)) {
            self.lose(now, hold.proof.hold);
        }
    }
}
