//! Blocked calls: from a ticket to the waiting client, and back.
//!
//! The server is asked to block without a time-out: its time-out races with the
//! module's unblocking (before Redis 7.4 and Valkey 8 a client that loses this
//! race never gets a reply, or the server crashes). So waits end by the
//! module's own deadlines, and every call is unblocked exactly once.

use std::cell::Cell;

use rlock_core::{Delivery, Fence, Locks, Request};

use crate::{
    api::{Context, MainThread, raw},
    operation::Failure,
};

/// The reply to a blocked call.
pub(crate) enum Outcome {
    Granted {
        fence: Fence,
        /// The id of the call; the server reuses it only after this call has
        /// ended.
        handle: u64,
    },
    Nil,
    /// The server can no longer grant: the key has moved, or the server is a
    /// replica.
    TurnedAway,
}

/// The server's callbacks for a blocked client.
#[derive(Clone, Copy)]
pub(crate) struct Callbacks {
    /// Replies when the call was unblocked.
    pub(crate) reply: raw::RedisModuleCmdFunc,
    /// Replies after `CLIENT UNBLOCK`.
    pub(crate) unblocked: raw::RedisModuleCmdFunc,
    /// Frees the outcome, whether or not it was sent.
    pub(crate) free: raw::FreeFn,
    /// Called when the client has disconnected.
    pub(crate) gone: raw::RedisModuleDisconnectFunc,
}

static CALLBACKS: MainThread<Cell<Option<Callbacks>>> = MainThread::new(Cell::new(None));

/// Sets the callbacks. No client is blocked before that.
pub(crate) fn start(callbacks: Callbacks) {
    CALLBACKS.get().set(Some(callbacks));
}

/// Blocks the calling client. `None` if the server cannot block it.
fn block(ctx: &Context) -> Option<u64> {
    let on = CALLBACKS.get().get()?;
    // A time-out callback makes `CLIENT UNBLOCK` work, which is safe only if
    // the server has the fix for the race.
    let unblocked = on.unblocked.filter(|_| raw::has_fixed_unblock());
    // SAFETY: the functions belong to the module and live as long as it.
    let client = unsafe { raw::block_client(ctx.raw(), on.reply, unblocked, on.free, 0) };
    if client.is_null() {
        return None;
    }
    // SAFETY: the handle is valid until it is unblocked.
    unsafe { raw::set_disconnect_callback(client, on.gone) };
    Some(client.expose_provenance() as u64)
}

/// How the outcome of a request will reach its caller: by a message, or by the
/// reply to the call, which this blocks.
///
/// # Errors
///
/// The server cannot block the caller.
pub(crate) fn of(
    locks: &mut Locks,
    ctx: &Context,
    request: &Request<'_>,
) -> Result<(Delivery, Option<u64>), Failure> {
    if let Some((session, channel)) = request.session.zip(request.channel) {
        return Ok((locks.by_message(session, channel), None));
    }
    let handle = block(ctx).ok_or(Failure::CannotBlock)?;
    let session = ctx.client_id();
    Ok((Delivery::blocked(session, handle), Some(handle)))
}

/// Ends a blocked call. Each handle may be passed only once.
pub(super) fn unblock(handle: u64, outcome: Outcome) {
    let client = std::ptr::with_exposed_provenance_mut(handle as usize);
    let outcome = Box::into_raw(Box::new(outcome));
    // SAFETY: the table of callers returns every handle once, and a handle is
    // valid until then. The server passes the outcome to `free`, once.
    unsafe { raw::unblock_client(client, outcome.cast()) };
}
