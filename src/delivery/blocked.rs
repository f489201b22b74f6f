//! Blocked calls: from a ticket to the client that waits, and back.
//!
//! The server is asked to block without a time-out of its own: its time-out
//! races with our unblocking (before Redis 7.4 and Valkey 8 a client that
//! loses that race is never answered, or the server stops). So waits end by
//! our own deadlines, and every call is unblocked exactly once.

use std::cell::Cell;

use rlock_core::{Delivery, Fence, Locks, Request};

use crate::{
    api::{Context, MainThread, raw},
    operation::Failure,
};

/// What a blocked call is answered with.
pub(crate) enum Outcome {
    Granted {
        fence: Fence,
        /// The id of the call; the server gives it to no other before this one has ended.
        handle: u64,
    },
    Nil,
    /// The server can no longer grant: the key has moved, or it is a replica.
    TurnedAway,
}

/// What the server calls for a blocked client.
#[derive(Clone, Copy)]
pub(crate) struct Callbacks {
    /// Replies when the call was unblocked.
    pub(crate) reply: raw::RedisModuleCmdFunc,
    /// Replies when it was by `CLIENT UNBLOCK`.
    pub(crate) unblocked: raw::RedisModuleCmdFunc,
    /// Frees the outcome, which was replied with or not.
    pub(crate) free: raw::FreeFn,
    /// Called when the client has gone.
    pub(crate) gone: raw::RedisModuleDisconnectFunc,
}

static CALLBACKS: MainThread<Cell<Option<Callbacks>>> = MainThread::new(Cell::new(None));

/// Sets what the server is to call. Before that no client is blocked.
pub(crate) fn start(callbacks: Callbacks) {
    CALLBACKS.get().set(Some(callbacks));
}

/// Blocks the calling client. `None` if the server cannot block it.
fn block(ctx: &Context) -> Option<u64> {
    let on = CALLBACKS.get().get()?;
    // A time-out callback makes `CLIENT UNBLOCK` work, which is safe only where
    // the race is fixed.
    let unblocked = on.unblocked.filter(|_| raw::has_mended_unblock());
    // SAFETY: the functions are ours and live as long as the module.
    let client = unsafe { raw::block_client(ctx.raw(), on.reply, unblocked, on.free, 0) };
    if client.is_null() {
        return None;
    }
    // SAFETY: the handle is good until it is unblocked.
    unsafe { raw::set_disconnect_callback(client, on.gone) };
    Some(client.expose_provenance() as u64)
}

/// Through what the outcome of a request will reach its caller: a message, or
/// the reply to the call, which is blocked by this.
///
/// # Errors
///
/// The server cannot block the caller.
pub(crate) fn of(
    locks: &Locks,
    ctx: &Context,
    request: &Request<'_>,
) -> Result<(Delivery, Option<u64>), Failure> {
    if let Some((session, channel)) = request.session.zip(request.channel) {
        return Ok((locks.by_message(session, channel), None));
    }
    let handle = block(ctx).ok_or(Failure::CannotBlock)?;
    let session = ctx.client_id();
    Ok((Delivery::Blocked { session, handle }, Some(handle)))
}

/// Ends a blocked call. Each handle may be passed once.
pub(super) fn unblock(handle: u64, outcome: Outcome) {
    let client = std::ptr::with_exposed_provenance_mut(handle as usize);
    let outcome = Box::into_raw(Box::new(outcome));
    // SAFETY: the table of callers gives every handle away once, and a handle
    // is good until then. The server passes the outcome to `free`, once.
    unsafe { raw::unblock_client(client, outcome.cast()) };
}
