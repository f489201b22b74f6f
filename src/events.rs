//! What the server tells us without being asked, and the timer.
//!
//! Callbacks only take notes; all that has to be written is written by the
//! timer, in pieces. Writing in a key event would come before the event's own
//! change in the replication stream; and nothing may be written while writes
//! are paused or the server is a replica.

use std::{
    cell::Cell,
    os::raw::{c_char, c_int, c_void},
    time::{Duration, Instant},
};

use rlock_core::{Due, Name, Timestamp};

use crate::{
    api::{Context, KeyEvent, MainThread, OwnedText, Text, entry, raw},
    blocked::Grant,
    clock,
    notes::Note,
    opened::Pending,
    serving,
    site::Site,
    state::{self, State},
    tell,
    transact::{self, change, transact},
};

/// How long one turn of the event loop may take, if it does not reach the number
/// of its tickets before.
const TURN_MAX: Duration = Duration::from_millis(1);
/// How long to wait before trying again while nothing may be written, in
/// milliseconds.
const PAUSE_MS: u64 = 10;

/// Subscribes to the key events that change who holds. Done when somebody
/// waits for the first time: each event costs the server about 50 ns, also
/// those of other keys, and there is no way back before Redis 8.2.
pub(crate) fn subscribe_to_keys(ctx: &Context) {
    let classes = raw::REDISMODULE_NOTIFY_GENERIC
        | raw::REDISMODULE_NOTIFY_EXPIRED
        | raw::REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: the callback lives as long as the module.
    unsafe { raw::subscribe_to_keyspace_events(ctx.raw(), classes, Some(on_key_event)) };
}

/// Subscribes to everything else that changes who holds or who waits. Comes
/// last while loading: a server that refuses the module then would keep
/// calling.
pub(crate) fn subscribe(ctx: &Context) {
    let events: [(u64, raw::RedisModuleEventCallback); 7] = [
        (
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            Some(on_role_changed),
        ),
        (raw::REDISMODULE_EVENT_FLUSHDB, Some(on_flush)),
        (raw::REDISMODULE_EVENT_LOADING, Some(on_loading)),
        (raw::REDISMODULE_EVENT_CLIENT_CHANGE, Some(on_client_change)),
        (raw::REDISMODULE_EVENT_SWAPDB, Some(on_swap)),
        (raw::REDISMODULE_EVENT_CRON_LOOP, Some(on_cron)),
        (raw::REDISMODULE_EVENT_CONFIG, Some(on_config)),
    ];
    // SAFETY: the callbacks live as long as the module.
    unsafe {
        for (id, callback) in events {
            let event = raw::RedisModuleEvent { id, dataver: 1 };
            raw::subscribe_to_server_event(ctx.raw(), event, callback);
        }
    }
}

unsafe extern "C" fn on_key_event(
    ctx: *mut raw::RedisModuleCtx,
    class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    if KeyEvent::is_ours(event) {
        return raw::REDISMODULE_OK as c_int;
    }
    let evicted = class & raw::REDISMODULE_NOTIFY_EVICTED != 0;
    // SAFETY: the server's string lives as long as this call.
    let key = unsafe { Text::from_raw(key) };
    entry::callback(ctx, |ctx| state::key_changed(ctx, key, evicted));
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn on_role_changed(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    let is_master = subevent == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER;
    entry::callback(ctx, |ctx| {
        state::leave_note(ctx, Note::RoleChanged { is_master });
    });
}

unsafe extern "C" fn on_flush(
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
    entry::callback(ctx, |ctx| state::leave_note(ctx, Note::KeysChanged(db)));
}

unsafe extern "C" fn on_swap(
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
            state::leave_note(ctx, Note::KeysChanged(u32::try_from(db).ok()));
        }
    });
}

/// Whether the data that is being read comes from a master.
static FROM_MASTER: MainThread<Cell<bool>> = MainThread::new(Cell::new(false));

unsafe extern "C" fn on_loading(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    entry::callback(ctx, |ctx| match subevent {
        raw::REDISMODULE_SUBEVENT_LOADING_REPL_START => FROM_MASTER.get().set(true),
        // What a master sends is no start of this server.
        raw::REDISMODULE_SUBEVENT_LOADING_ENDED if !FROM_MASTER.get().replace(false) => {
            state::leave_note(ctx, Note::Loaded);
        }
        raw::REDISMODULE_SUBEVENT_LOADING_FAILED => FROM_MASTER.get().set(false),
        _ => {}
    });
}

unsafe extern "C" fn on_client_change(
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
        if state::look(|state| state.locks.has_contended()) != Some(false) {
            state::leave_note(ctx, Note::SessionClosed(client.id));
        }
    });
}

/// Some setting of the server's has changed.
unsafe extern "C" fn on_config(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    entry::callback(ctx, serving::read_config);
}

/// Ten times a second: looks after what no command does.
unsafe extern "C" fn on_cron(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    entry::callback(ctx, |ctx| {
        serving::tick(clock::now());
        state::look_after(ctx);
    });
}

/// The timer: does what has become due, as much as one turn allows.
pub(crate) unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    entry::callback(ctx, |ctx| {
        state::with(ctx, |state, now| {
            state.timer.rung();
            let flags = ctx.flags();
            if flags.is_loading() || ctx.avoids_writes() {
                // Whatever is due stays due; come back for it.
                return state.timer.hold_off(ctx, now, now.plus_millis(PAUSE_MS));
            }
            if flags.is_master() && !state.was_demoted {
                state.role_changed = false;
                turn(state, ctx, now);
            } else {
                stand_down(state, ctx);
            }
        });
    });
}

fn turn(state: &mut State, ctx: &Context, now: Timestamp) {
    let began = Instant::now();
    while !is_over(state, began)
        && let Some(grant) = state.undelivered.pop_front()
    {
        take_back(state, ctx, now, &grant);
    }
    state.locks.sweep();
    while !is_over(state, began)
        && let Some(due) = state.locks.next_due(now)
    {
        do_due(state, ctx, now, due);
    }
}

/// Whether a turn that began at `began` has done what it may.
fn is_over(state: &State, began: Instant) -> bool {
    state.locks.turn_is_over() || began.elapsed() > TURN_MAX
}

/// Passes a grant on that did not reach its owner.
fn take_back(state: &mut State, ctx: &Context, now: Timestamp, grant: &Grant) {
    if !ctx.select_db(grant.db) {
        return;
    }
    let owner = OwnedText::new(&grant.owner);
    let keys: Vec<_> = grant.keys.iter().map(|key| OwnedText::new(key)).collect();
    let (mut taken, mut pending) = (false, Pending::new());
    let mut last = None;
    for key in &keys {
        let site = Site {
            ctx,
            now,
            db: grant.db,
            key: key.text(),
            caller: Some(owner.text()),
        };
        if serving::is_ours(state, &site) {
            let done = change(state, &site, &mut pending, |locks, name, hold, _| {
                Ok(locks.undeliver(now, name, hold, &grant.owner, grant.fence))
            });
            taken |= matches!(done, Ok(true));
        }
        last = Some(site);
    }
    if let Some(site) = last {
        transact::finish(state, &site, pending);
    }
    if taken {
        state.locks.count_undelivered();
        if let Some(place) = &grant.place {
            let names = grant.keys.iter().map(|key| Name { db: grant.db, key });
            let names: Vec<_> = names.collect();
            state.locks.keep_place(now, &names, place);
        }
    }
}

fn do_due(state: &mut State, ctx: &Context, now: Timestamp, due: Due) {
    match due {
        Due::WaitEnd(ticket) => {
            if let Some(ended) = state.locks.end_wait(now, ticket) {
                let (owner, key) = (&ended.owner, &ended.key);
                tell::end_wait(state, ctx, &ended.delivery, owner, key);
            }
        }
        Due::Unbind { db, key, owner } => {
            let (key, owner) = (OwnedText::new(&key), OwnedText::new(&owner));
            let site = Site {
                ctx,
                now,
                db,
                key: key.text(),
                caller: Some(owner.text()),
            };
            if ctx.select_db(db) && serving::is_ours(state, &site) {
                // A key that holds no lock any more has no hold to be cut.
                let _ = transact(state, &site, |locks, name, hold, _| {
                    Ok(locks.unbind(now, name, hold, owner.bytes()))
                });
            }
        }
        Due::Settle { db, key } => {
            let key = OwnedText::new(&key);
            let site = Site {
                ctx,
                now,
                db,
                key: key.text(),
                caller: None,
            };
            if ctx.select_db(db) && serving::is_ours(state, &site) {
                transact::settle(state, &site);
            }
        }
    }
}

/// A replica grants nothing: those who wait for a message are told so. Blocked
/// clients the server has disconnected itself.
fn stand_down(state: &mut State, ctx: &Context) {
    state.undelivered.clear();
    while !state.locks.turn_is_over()
        && let Some(ended) = state.locks.withdraw_any()
    {
        tell::turn_away(state, ctx, &ended);
    }
    // If more is left, the note makes the timer ring again at once.
    state.was_demoted = state.locks.has_contended();
    state.role_changed = state.was_demoted;
}
