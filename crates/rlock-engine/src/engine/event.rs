//! What the engine is told, and what it says.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Id;
use crate::engine::ask::{Ask, Queueing};
use crate::engine::claims::Claims;
use crate::engine::instant::Instant;
use crate::engine::lane::{Node, Routes};
use crate::engine::notices::Notice;
use crate::engine::proof::Proof;
use crate::engine::request::{Reply, Request};
use crate::engine::terms::Terms;
use crate::error::{Error, Fault, Loss};

/// What happens.
#[derive(Debug)]
pub enum Event {
    /// Somebody asks for a lock; answered by [`Action::Resolve`].
    Ask {
        /// The call's number.
        call: Id,
        /// Who asks, and for what.
        claims: Claims,
        /// How it is to be held.
        ask: Ask,
        /// On which terms.
        terms: Terms,
        /// Whether and how long to wait.
        queueing: Queueing,
    },
    /// A guard ends, and somebody wants to know how; answered likewise.
    Release {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// How the guard holds it.
        ask: Ask,
    },
    /// A guard that was exclusive is to be shared; answered likewise.
    Downgrade {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
    },
    /// A hold is to last for at least `lease` from now.
    Extend {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// How long from now.
        lease: Duration,
    },
    /// The fence of a hold is to be at least `fence`, on these terms from now on,
    /// which are bound as before.
    Raise {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// The least that it is to be.
        fence: u64,
        /// On which terms.
        terms: Terms,
    },
    /// The server is to keep a hold until then, also if its last guard ends
    /// before; nothing is sent until that ends.
    Keep {
        /// The hold's number.
        hold: Id,
        /// Until when.
        until: Instant,
    },
    /// Nobody waits for that answer any more.
    Abandon {
        /// The call's number.
        call: Id,
    },
    /// A guard was dropped.
    Leave {
        /// The hold's number.
        hold: Id,
        /// How the guard held it.
        ask: Ask,
    },
    /// The call was granted, and its caller was gone before it knew.
    Untaken {
        /// The call's number.
        call: Id,
        /// The hold's number.
        hold: Id,
        /// How the call asked for it.
        ask: Ask,
    },
    /// The answer to [`Action::Send`].
    Reply {
        /// The request's number.
        request: Id,
        /// What was answered, or why nothing was.
        result: Result<Reply, Fault>,
    },
    /// The server has said something.
    Notice(Notice),
    /// There is a connection to a server.
    LinkUp {
        /// The server.
        node: Node,
        /// The connection's number.
        link: u64,
        /// Whether no request of an earlier one can still be carried out.
        is_sole: bool,
    },
    /// It is gone.
    LinkDown {
        /// The server.
        node: Node,
        /// Whether no other one is made before it is needed.
        is_left: bool,
    },
    /// A connection to a server is wanted, before there is anything to ask.
    Need {
        /// The server.
        node: Node,
    },
    /// A server said that another one has this slot.
    SlotMoved {
        /// The slot, below 16384.
        slot: u16,
        /// The server that has it now.
        node: Node,
    },
    /// Which server has which slots.
    Routes(Routes),
    /// There will never be one again.
    Closed,
    /// Somebody wants to know when nothing is left to clean up; answered by
    /// [`Action::Flushed`].
    Flush {
        /// The number of this question.
        flush: Id,
    },
    /// Nothing is to be taken any more: calls that wait for a lock end with
    /// [`Error::Closed`](crate::error::Error::Closed), and all that is held is
    /// released.
    LeaveAll,
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    /// Send `request` by a connection, after all that were sent before by it.
    Send {
        /// The request's number.
        id: Id,
        /// The connection's number.
        link: u64,
        /// What to send.
        request: Request,
        /// The call that waits for it; none if that is the background.
        call: Option<Id>,
    },
    /// The call is over.
    Resolve {
        /// The call's number.
        call: Id,
        /// How it ended.
        outcome: Outcome,
    },
    /// Wake those who wait for the end of a hold, and log it if it was lost.
    Over {
        /// The hold.
        proof: Arc<Proof>,
        /// How it ended.
        why: Loss,
    },
    /// Connect to a server, and again whenever the connection is gone.
    Connect {
        /// The server.
        node: Node,
    },
    /// Give the connection up: it is silent.
    Retire {
        /// The connection's number.
        link: u64,
    },
    /// What was to be cleaned up when this was asked for is.
    Flushed {
        /// The number of the question.
        flush: Id,
    },
}

/// How a call ends.
#[derive(Debug)]
pub enum Outcome {
    /// With one guard more.
    Granted(Arc<Proof>),
    /// Not in time; no error.
    Refused,
    /// Released, or downgraded.
    Done,
    /// With an error.
    Failed(Error),
}
