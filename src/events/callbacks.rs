//! Every function that the server calls without a command. The functions of the
//! commands are in [`crate::commands`], the settings' functions in
//! [`crate::settings`].

use std::{
    cell::Cell,
    ffi::CStr,
    os::raw::{c_char, c_int, c_void},
    ptr,
};

use super::{info, timer};
use crate::{
    api::{Context, KeyEvent, MainThread, Section, Text, entry, raw},
    clock,
    delivery::Outcome,
    notes::{KeyChange, Note},
    state,
};

pub(super) unsafe extern "C" fn on_key_event(
    ctx: *mut raw::RedisModuleCtx,
    class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    if KeyEvent::is_ours(event) {
        return raw::REDISMODULE_OK as c_int;
    }
    // SAFETY: both strings of the server live as long as this call.
    let (event, key) = unsafe { (CStr::from_ptr(event), Text::from_raw(key)) };
    let change = if class & raw::REDISMODULE_NOTIFY_EVICTED != 0 {
        KeyChange::Evicted
    } else if event == c"expire" {
        KeyChange::TimeToLive
    } else if event == c"rename_from" {
        KeyChange::RenamedFrom
    } else if event == c"rename_to" {
        KeyChange::RenamedTo
    } else {
        KeyChange::Other
    };
    entry::callback(ctx, |ctx| state::key_changed(ctx, key, change));
    raw::REDISMODULE_OK as c_int
}

pub(super) unsafe extern "C" fn on_role_changed(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    let is_master = subevent == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER;
    entry::callback(ctx, |ctx| {
        Context::assume_audience();
        state::add_note(ctx, Note::RoleChanged { is_master });
    });
}

pub(super) unsafe extern "C" fn on_flush(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if subevent != raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
        return;
    }
    // SAFETY: the server passes this structure with this event.
    let flush = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() };
    // A negative number means all databases.
    let db = flush.and_then(|flush| u32::try_from(flush.dbnum).ok());
    entry::callback(ctx, |ctx| state::add_note(ctx, Note::KeysChanged(db)));
}

pub(super) unsafe extern "C" fn on_swap(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut c_void,
) {
    // SAFETY: the server passes this structure with this event.
    let swap = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() };
    let Some(swap) = swap else { return };
    entry::callback(ctx, |ctx| {
        for db in [swap.dbnum_first, swap.dbnum_second] {
            state::add_note(ctx, Note::KeysChanged(u32::try_from(db).ok()));
        }
    });
}

/// Whether the data that is being read comes from a master.
static FROM_MASTER: MainThread<Cell<bool>> = MainThread::new(Cell::new(false));

pub(super) unsafe extern "C" fn on_loading(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    entry::callback(ctx, |ctx| {
        Context::assume_audience();
        match subevent {
            raw::REDISMODULE_SUBEVENT_LOADING_REPL_START => FROM_MASTER.get().set(true),
            // Data from a master does not count as a start of this server.
            raw::REDISMODULE_SUBEVENT_LOADING_ENDED if !FROM_MASTER.get().replace(false) => {
                state::add_note(ctx, Note::Loaded);
            }
            raw::REDISMODULE_SUBEVENT_LOADING_FAILED => FROM_MASTER.get().set(false),
            _ => {}
        }
    });
}

pub(super) unsafe extern "C" fn on_client_change(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if subevent != raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        return;
    }
    // SAFETY: the server passes this structure with this event.
    let client = unsafe { data.cast::<raw::RedisModuleClientInfo>().as_ref() };
    let Some(client) = client else { return };
    entry::callback(ctx, |ctx| {
        if state::inspect(|state| state.locks.has_contended()) != Some(false) {
            state::add_note(ctx, Note::SessionClosed(client.id));
        }
    });
}

/// A setting of the server has changed.
pub(super) unsafe extern "C" fn on_config(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    entry::callback(ctx, |ctx| {
        Context::assume_audience();
        state::add_note(ctx, Note::ConfigChanged);
    });
}

/// A module was loaded or unloaded.
pub(super) unsafe extern "C" fn on_modules(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    Context::assume_modules();
}

/// Ten times a second: does what no command does.
pub(super) unsafe extern "C" fn on_cron(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    entry::callback(ctx, |ctx| {
        ctx.find_audience();
        state::tick(ctx);
    });
}

/// The server has made or lost a child process, which reads the data for a new
/// replica, an append-only file or a dump; or it begins or ends a dump itself.
pub(super) unsafe extern "C" fn on_snapshot(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    Context::assume_audience();
}

/// A turn of the event loop has ended: its output has been written, and the
/// module knows of each connection that was closed in it.
pub(super) unsafe extern "C" fn on_turn(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP {
        entry::callback(ctx, |_| state::turn_ended());
    }
}

/// The timer has fired.
pub(super) unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    entry::callback(ctx, timer::run);
}

/// The event loop continues, which is the only purpose of this event.
pub(super) unsafe extern "C" fn on_wake(_data: *mut c_void) {
    clock::woken();
}

/// The reply of an unblocked call.
pub(super) unsafe extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    entry::command(ctx, |ctx| {
        // SAFETY: what `Deliveries` passed, before `on_free` is called.
        let outcome = unsafe {
            raw::blocked_client_data(ctx.raw())
                .cast::<Outcome>()
                .as_ref()
        };
        match outcome {
            Some(Outcome::Granted { fence, .. }) => ctx.reply_number(fence.get()),
            Some(Outcome::TurnedAway) => ctx.reply_error(
                "TRYAGAIN this server can no longer grant the lock, ask the one that can",
            ),
            Some(Outcome::Nil) | None => ctx.reply_nil(),
        }
    })
}

/// The end of an unblocked call, whether or not its reply could be sent.
pub(super) unsafe extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
    entry::callback(ctx, |ctx| {
        // SAFETY: made by `Deliveries`, and passed here once.
        let outcome = unsafe { Box::from_raw(data.cast::<Outcome>()) };
        // SAFETY: the context belongs to this callback.
        let gone = unsafe { raw::blocked_client_disconnected(ctx.raw()) } != 0;
        // Most calls get their grants, and nothing else changes with that.
        if let Outcome::Granted { handle, .. } = *outcome
            && (gone || !state::grant_arrived(handle))
        {
            state::add_note(ctx, Note::GrantEnded { handle, gone });
        }
    });
}

/// The client has disconnected, or no longer waits for another reason. The
/// server also calls this if the client disconnects after it was unblocked; the
/// handle is unknown by then.
pub(super) unsafe extern "C" fn on_disconnect(
    ctx: *mut raw::RedisModuleCtx,
    client: *mut raw::RedisModuleBlockedClient,
) {
    entry::callback(ctx, |ctx| {
        state::add_note(ctx, Note::CallerGone(client.expose_provenance() as u64));
    });
}

/// `CLIENT UNBLOCK`: the wait ends with nil.
pub(super) unsafe extern "C" fn on_client_unblock(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    entry::command(ctx, |ctx| {
        // SAFETY: the context belongs to a blocked client's callback.
        let client = unsafe { raw::blocked_client_handle(ctx.raw()) };
        state::add_note(ctx, Note::CallerGone(client.expose_provenance() as u64));
        ctx.reply_nil();
    })
}

/// Writes the module's section, but not into the server's crash report: the
/// heap must not be used then.
pub(super) unsafe extern "C" fn on_info(
    section: *mut raw::RedisModuleInfoCtx,
    for_crash_report: c_int,
) {
    if for_crash_report != 0 {
        return;
    }
    entry::callback(ptr::null_mut(), |ctx| {
        // SAFETY: the server passes a section for this call.
        info::report(ctx, &unsafe { Section::begin(section) });
    });
}
