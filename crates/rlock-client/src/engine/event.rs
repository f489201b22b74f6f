//! What the engine is told, and what it says.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Id;
use crate::engine::ask::{Ask, Queueing};
use crate::engine::claims::Claims;
use crate::engine::lane::{Node, Routes};
use crate::engine::notices::Notice;
use crate::engine::proof::Proof;
use crate::engine::request::{Reply, Request};
use crate::engine::terms::Terms;
use crate::error::{Error, Fault, Loss};

/// What happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// Somebody asks for a lock; answered by [`Action::Resolve`].
    Ask {
        call: Id,
        claims: Claims,
        ask: Ask,
        terms: Terms,
        queueing: Queueing,
    },
    /// A guard ends, and somebody wants to know how; answered likewise.
    Release { call: Id, hold: Id, ask: Ask },
    /// A guard that was exclusive is to be shared; answered likewise.
    Downgrade { call: Id, hold: Id },
    /// A hold is to last for at least `lease` from now.
    Extend { call: Id, hold: Id, lease: Duration },
    /// The fence of a hold is to be at least `fence`, on these terms from now on,
    /// which are bound as before.
    Raise {
        call: Id,
        hold: Id,
        fence: u64,
        terms: Terms,
    },
    /// Nobody waits for that answer any more.
    Abandon { call: Id },
    /// A guard was dropped.
    Leave { hold: Id, ask: Ask },
    /// The answer to [`Action::Send`].
    Reply {
        request: Id,
        result: Result<Reply, Fault>,
    },
    /// The server has said something.
    Notice(Notice),
    /// There is a connection to a server. `is_sole`: no request of an earlier
    /// one can still be carried out.
    LinkUp {
        node: Node,
        link: u64,
        is_sole: bool,
    },
    /// It is gone. `is_left`: no other one is made before it is needed.
    LinkDown { node: Node, is_left: bool },
    /// A connection to a server is wanted, before there is anything to ask.
    Need { node: Node },
    /// A server said that another one has this slot.
    SlotMoved { slot: u16, node: Node },
    /// Which server has which slots.
    Routes(Routes),
    /// There will never be one again.
    Closed,
    /// Somebody wants to know when nothing is left to clean up; answered by
    /// [`Action::Flushed`].
    Flush { flush: Id },
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Action {
    /// Send `request` by a connection, after all that were sent before by it.
    Send {
        id: Id,
        link: u64,
        request: Request,
        /// The call that waits for it; none if that is the background.
        call: Option<Id>,
    },
    /// The call is over.
    Resolve { call: Id, outcome: Outcome },
    /// Wake those who wait for the end of a hold, and log it if it was lost.
    Over { proof: Arc<Proof>, why: Loss },
    /// Connect to a server, and again whenever the connection is gone.
    Connect { node: Node },
    /// Give the connection up: it is silent.
    Retire { link: u64 },
    /// What was to be cleaned up when this was asked for is.
    Flushed { flush: Id },
}

/// How a call ends.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// With one guard more.
    Granted(Arc<Proof>),
    /// Not in time; no error.
    Refused,
    /// Released, or downgraded.
    Done,
    Failed(Error),
}
