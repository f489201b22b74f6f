//! One owner at one key: what is asked for it, and what it holds.
//!
//! A claim is where messages for its owner arrive, and where calls of the
//! same owner take turns: an owner queues at most once per key, and counts
//! its re-entries here, not on the server. A request for several keys has a
//! claim at each.

use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::engine::clock::Instant;
use crate::engine::hold::Hold;
use crate::engine::owner::Owner;
use crate::engine::sync::lock;
use crate::engine::wakeups::Wakeups;
use crate::error::Loss;

/// What the server says of a queued request, or of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Grant,
    WaitEnded,
    Withdrawn,
    Lost,
}

/// Something that the server has said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) event: Event,
    pub(crate) fence: u64,
    /// The connection that it came by.
    pub(crate) link: u64,
    /// A moment before the server said it: when a request was sent by that
    /// connection that was answered before.
    pub(crate) not_before: Instant,
}

/// What ends the waiting of a queued request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted {
        /// The one that the message named.
        fence: u64,
        /// A moment that was before the grant.
        not_before: Instant,
    },
    WaitEnded,
    Withdrawn,
    Disconnected,
}

#[derive(Debug, Default)]
struct Mailbox {
    /// The connection that the request came by whose outcome is awaited.
    awaited_by: Option<u64>,
    outcome: Option<Outcome>,
    /// The largest fence that the server said was lost. It may arrive before
    /// the task that was granted this fence has run again.
    fence_lost: u64,
}

#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) owner: Owner,
    pub(crate) key: Arc<[u8]>,
    /// `<owner> <key>`, as messages have it.
    pub(crate) name: Arc<[u8]>,
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    mailbox: Mutex<Mailbox>,
    bell: Notify,
    hold: Mutex<Weak<Hold>>,
    /// Where it is found by messages.
    wakeups: Weak<Wakeups>,
}

impl Claim {
    pub(crate) fn new(
        wakeups: Weak<Wakeups>,
        owner: Owner,
        key: Arc<[u8]>,
        name: Arc<[u8]>,
    ) -> Self {
        Self {
            wakeups,
            owner,
            key,
            name,
            turn: Arc::default(),
            mailbox: Mutex::default(),
            bell: Notify::new(),
            hold: Mutex::default(),
        }
    }

    /// Awaits the outcome of a request that is about to be sent by connection
    /// `link`, and forgets those of earlier ones.
    pub(crate) fn await_by(&self, link: u64) {
        let mut mailbox = lock(&self.mailbox);
        (mailbox.awaited_by, mailbox.outcome) = (Some(link), None);
    }

    /// Awaits no outcome any more.
    pub(crate) fn await_nothing(&self) {
        lock(&self.mailbox).awaited_by = None;
    }

    /// Waits for the outcome of a queued request.
    pub(crate) async fn outcome(&self) -> Outcome {
        loop {
            if let Some(outcome) = lock(&self.mailbox).outcome.take() {
                return outcome;
            }
            self.bell.notified().await;
        }
    }

    /// Takes what the server says about this owner and key; false if that is a
    /// grant that nobody waits for.
    pub(crate) fn deliver(&self, said: Said) -> bool {
        let Said {
            event,
            fence,
            link,
            not_before,
        } = said;
        match event {
            Event::Grant => {
                let is_awaited = self.post(link, Outcome::Granted { fence, not_before });
                return is_awaited || self.hold().is_some_and(|hold| hold.fence() == fence);
            }
            Event::WaitEnded => drop(self.post(link, Outcome::WaitEnded)),
            Event::Withdrawn => drop(self.post(link, Outcome::Withdrawn)),
            Event::Lost => self.lost(fence),
        }
        true
    }

    /// Tells a waiter that the connection that its request came by is gone.
    pub(crate) fn disconnected(&self, link: u64) {
        self.post(link, Outcome::Disconnected);
    }

    /// Tells a waiter that no message will come any more.
    pub(crate) fn closed(&self) {
        lock(&self.mailbox).outcome = Some(Outcome::Disconnected);
        self.bell.notify_one();
    }

    /// Whether anybody awaits an outcome. One that came by another connection
    /// than the request is about an earlier request, and is left alone.
    fn post(&self, link: u64, outcome: Outcome) -> bool {
        let mut mailbox = lock(&self.mailbox);
        if mailbox.awaited_by == Some(link) {
            mailbox.outcome = Some(outcome);
            self.bell.notify_one();
        }
        mailbox.awaited_by.is_some()
    }

    fn lost(&self, fence: u64) {
        let mut mailbox = lock(&self.mailbox);
        mailbox.fence_lost = mailbox.fence_lost.max(fence);
        drop(mailbox);
        if let Some(hold) = self.hold().filter(|hold| hold.fence() == fence) {
            hold.lose(Loss::EndedByServer);
        }
    }

    /// Whether the server said that the hold with this fence was lost.
    pub(crate) fn is_lost(&self, fence: u64) -> bool {
        lock(&self.mailbox).fence_lost >= fence
    }

    /// The newest hold, which may be over already.
    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        lock(&self.hold).upgrade()
    }

    /// The hold that can be entered again, if there is one.
    pub(crate) fn live_hold(&self) -> Option<Arc<Hold>> {
        self.hold()
            .filter(|hold| hold.loss().is_none() && !hold.is_ended())
    }

    pub(crate) fn set_hold(&self, hold: &Arc<Hold>) {
        *lock(&self.hold) = Arc::downgrade(hold);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(wakeups) = self.wakeups.upgrade() {
            wakeups.forget(self);
        }
    }
}
