//! Everything that happens without a command: the server's events, the timer,
//! and `INFO`.
//!
//! Callbacks only leave notes. The timer does all writes, in pieces. A write in
//! a key event would precede the event's own change in the replication stream.
//! And nothing may be written while writes are paused or the server is a
//! replica.

mod callbacks;
mod info;
mod timer;

use std::os::raw::c_int;

use crate::{
    api::{Context, raw},
    clock::Timer,
    delivery,
    state::State,
};

/// Makes the state, and registers the callbacks that it needs.
///
/// # Errors
///
/// Why there can be no state, as text.
pub(crate) fn start(ctx: &Context) -> Result<(), String> {
    delivery::start(delivery::Callbacks {
        reply: Some(callbacks::on_reply),
        unblocked: Some(callbacks::on_client_unblock),
        free: Some(callbacks::on_free),
        gone: Some(callbacks::on_disconnect),
    });
    let timer = Timer::new(Some(callbacks::on_timer), Some(callbacks::on_wake));
    State::start(ctx, timer, subscribe_to_keys, subscribe_to_turns)?;
    // SAFETY: the callback lives as long as the module.
    unsafe { raw::register_info_func(ctx.raw(), Some(callbacks::on_info)) };
    Ok(())
}

/// Subscribes to the key events that change the holder of a lock, when a client
/// waits for the first time. Each event costs the server about 50 ns, even for
/// other keys, and the subscription cannot be cancelled before Redis 8.2.
fn subscribe_to_keys(ctx: &Context) {
    let classes = raw::REDISMODULE_NOTIFY_GENERIC
        | raw::REDISMODULE_NOTIFY_EXPIRED
        | raw::REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: the callback lives as long as the module.
    unsafe { raw::subscribe_to_keyspace_events(ctx.raw(), classes, Some(callbacks::on_key_event)) };
}

/// Subscribes to the turns of the event loop, when a grant is first sent by
/// message. Each turn costs two calls from then on.
fn subscribe_to_turns(ctx: &Context) {
    let event = raw::RedisModuleEvent {
        id: raw::REDISMODULE_EVENT_EVENTLOOP,
        dataver: 1,
    };
    // SAFETY: the callback lives as long as the module.
    unsafe { raw::subscribe_to_server_event(ctx.raw(), event, Some(callbacks::on_turn)) };
}

/// Subscribes to everything else that changes holders or waiters. This comes
/// last while loading: if the server refused the module after it, it would keep
/// calling.
pub(crate) fn subscribe(ctx: &Context) {
    let events: [(u64, raw::RedisModuleEventCallback); 10] = [
        (
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            Some(callbacks::on_role_changed),
        ),
        (raw::REDISMODULE_EVENT_FLUSHDB, Some(callbacks::on_flush)),
        (raw::REDISMODULE_EVENT_LOADING, Some(callbacks::on_loading)),
        (
            raw::REDISMODULE_EVENT_CLIENT_CHANGE,
            Some(callbacks::on_client_change),
        ),
        (raw::REDISMODULE_EVENT_SWAPDB, Some(callbacks::on_swap)),
        (raw::REDISMODULE_EVENT_CRON_LOOP, Some(callbacks::on_cron)),
        (
            raw::REDISMODULE_EVENT_MODULE_CHANGE,
            Some(callbacks::on_modules),
        ),
        (raw::REDISMODULE_EVENT_CONFIG, Some(callbacks::on_config)),
        (
            raw::REDISMODULE_EVENT_PERSISTENCE,
            Some(callbacks::on_snapshot),
        ),
        (
            raw::REDISMODULE_EVENT_FORK_CHILD,
            Some(callbacks::on_snapshot),
        ),
    ];
    let is_told = events.map(|(id, callback)| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the callbacks live as long as the module.
        unsafe { raw::subscribe_to_server_event(ctx.raw(), event, callback) }
    });
    if is_told.iter().all(|it| *it == raw::REDISMODULE_OK as c_int) {
        ctx.may_find_audience();
    }
}
