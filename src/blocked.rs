//! Blocked calls: from a ticket to the client that waits, and back.
//!
//! The server is asked to block without a time-out of its own: its time-out
//! races with our unblocking (before Redis 7.4 and Valkey 8 a client that
//! loses that race is never answered, or the server stops). So waits end by
//! our own deadlines, and every call is unblocked exactly once.

use std::os::raw::{c_int, c_void};

use rlock_core::{Delivery, Fence, KeptPlace, Locks, Request};

use crate::{
    api::{Context, entry, raw},
    notes::Note,
    site::Failure,
    state,
};

/// A grant to a blocked call, until it is known to have been delivered.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) db: u32,
    /// The keys of the request; a request for one lock has one.
    pub(crate) keys: Box<[Box<[u8]>]>,
    pub(crate) owner: Box<[u8]>,
    pub(crate) fence: Fence,
    /// The place that the owner gets back if the grant does not reach it.
    pub(crate) place: Option<Box<KeptPlace>>,
}

/// What a blocked call is answered with.
pub(crate) enum Outcome {
    Granted(Fence),
    Nil,
    /// The server can no longer grant: the key has moved, or it is a replica.
    TurnedAway,
}

/// Blocks the calling client. `None` if the server cannot block it.
fn block(ctx: &Context) -> Option<u64> {
    // SAFETY: the functions are ours and live as long as the module. A time-out
    // callback makes `CLIENT UNBLOCK` work, which is safe only where the race
    // is mended.
    let client = unsafe {
        let on_unblock: raw::RedisModuleCmdFunc = if raw::has_mended_unblock() {
            Some(on_client_unblock)
        } else {
            None
        };
        raw::block_client(ctx.raw(), Some(on_reply), on_unblock, Some(on_free), 0)
    };
    if client.is_null() {
        return None;
    }
    // SAFETY: the handle is good until it is unblocked.
    unsafe { raw::set_disconnect_callback(client, Some(on_disconnect)) };
    Some(client.expose_provenance() as u64)
}

/// Through what the outcome of a request will reach its caller: a message, or
/// the reply to the call, which is blocked by this.
///
/// # Errors
///
/// The server cannot block the caller.
pub(crate) fn delivery(
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
pub(crate) fn unblock(handle: u64, outcome: Outcome) {
    let client = std::ptr::with_exposed_provenance_mut(handle as usize);
    let outcome = Box::into_raw(Box::new(outcome));
    // SAFETY: the table of callers gives every handle away once, and a handle
    // is good until then. The server passes the outcome to `on_free`, once.
    unsafe { raw::unblock_client(client, outcome.cast()) };
}

/// The reply of an unblocked call.
unsafe extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    entry::command(ctx, |ctx| {
        // SAFETY: what `unblock` passed, before `on_free` is called.
        let outcome = unsafe {
            raw::blocked_client_data(ctx.raw())
                .cast::<Outcome>()
                .as_ref()
        };
        match outcome {
            Some(Outcome::Granted(fence)) => ctx.reply_number(fence.get()),
            Some(Outcome::TurnedAway) => ctx.reply_error(
                "TRYAGAIN this server can no longer grant the lock, ask the one that can",
            ),
            Some(Outcome::Nil) | None => ctx.reply_nil(),
        }
    })
}

/// The end of an unblocked call, whether or not it could be answered.
unsafe extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
    entry::callback(ctx, |ctx| {
        // SAFETY: made by `unblock`, and passed here once.
        let outcome = unsafe { Box::from_raw(data.cast::<Outcome>()) };
        // SAFETY: the context is that of this callback.
        let gone = unsafe { raw::blocked_client_disconnected(ctx.raw()) } != 0;
        if let Outcome::Granted(fence) = *outcome {
            state::leave_note(ctx, Note::GrantEnded { fence, gone });
        }
    });
}

/// The client has gone, or waits no more for another reason. Also called when
/// it goes after it was unblocked; then nobody knows the handle any more.
unsafe extern "C" fn on_disconnect(
    ctx: *mut raw::RedisModuleCtx,
    client: *mut raw::RedisModuleBlockedClient,
) {
    entry::callback(ctx, |ctx| {
        state::leave_note(ctx, Note::CallerGone(client.expose_provenance() as u64));
    });
}

/// `CLIENT UNBLOCK`: the wait ends with nil.
unsafe extern "C" fn on_client_unblock(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    entry::command(ctx, |ctx| {
        // SAFETY: the context is that of a blocked client's callback.
        let client = unsafe { raw::blocked_client_handle(ctx.raw()) };
        state::leave_note(ctx, Note::CallerGone(client.expose_provenance() as u64));
        ctx.reply_nil();
    })
}
