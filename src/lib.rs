//! `librlock.so`: locks in a Redis or Valkey server.
//!
//! This crate is the shell around `rlock_core`: it talks to the server and
//! decides nothing about locks.
//!
//! # Layout
//!
//! Each file or folder uses only those above it in this list, which a test checks:
//!
//! - `api`: the server's API, nearly all `unsafe`, and where a panic ends;
//! - `settings`: their values, and how the server reads and writes them;
//! - `store`: reads and writes a hold as a hash; caches shared holds;
//! - `operation`: where, when and for whom a lock is changed, and why that is
//!   refused;
//! - `notes`: events that callbacks have recorded while the state was in use;
//! - `clock`: the time, and the one timer;
//! - `delivery`: how outcomes reach the callers, by reply or by message;
//! - `serving`: whether this server may grant anything now;
//! - `state`: the data that is kept between calls;
//! - `transact`: the one path that every change of a lock takes;
//! - `commands`: their table, and one file for each group of similar commands;
//! - `events`: what happens without a command, and the callbacks for it.

mod api;
mod clock;
mod commands;
mod delivery;
mod events;
mod notes;
mod operation;
mod serving;
mod settings;
mod state;
mod store;
mod transact;

use std::os::raw::c_int;

use api::{Context, Text, entry, raw};

/// The server's own memory, so that its limits and statistics include the
/// module. A test program has no server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

/// The version as `MODULE LIST` shows it: major, minor and patch, two digits
/// each.
const VERSION: c_int = version_part(env!("CARGO_PKG_VERSION_MAJOR")) * 1_00_00
    + version_part(env!("CARGO_PKG_VERSION_MINOR")) * 1_00
    + version_part(env!("CARGO_PKG_VERSION_PATCH"));

/// Used while the module is compiled.
const fn version_part(text: &str) -> c_int {
    match c_int::from_str_radix(text, 10) {
        Ok(number) => number,
        Err(_) => panic!("a part of the version is not a number"),
    }
}

/// The entry point for Redis.
///
/// # Safety
///
/// Called by the server, once, with a context and its arguments.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { on_load(ctx, argv, argc, Server::Redis) }
}

/// The server that loads the module: each looks for its own name first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    Redis,
    Valkey,
}

/// # Safety
///
/// As for [`RedisModule_OnLoad`].
unsafe fn on_load(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
    server: Server,
) -> c_int {
    // SAFETY: the server's own context, before anything else is called; nothing
    // is allocated before this, as the allocator is the server's.
    let status = unsafe {
        raw::Export_RedisModule_Init(
            ctx.cast(),
            api::NAME.as_ptr(),
            VERSION,
            raw::REDISMODULE_APIVER_1 as c_int,
        )
    };
    if status != raw::REDISMODULE_OK as c_int {
        return status;
    }
    let loaded = std::panic::catch_unwind(|| {
        // SAFETY: the server's arguments live as long as this call.
        let arguments = unsafe { Text::arguments(argv, argc) };
        load(&Context::new(ctx), arguments, server)
    });
    match loaded {
        Ok(Ok(())) => raw::REDISMODULE_OK as c_int,
        Ok(Err(_)) | Err(_) => {
            // SAFETY: the server calls nothing of a module that it refuses.
            unsafe { end() };
            raw::REDISMODULE_ERR as c_int
        }
    }
}

/// Frees all memory: the server forgets the statics.
///
/// # Safety
///
/// The server calls no function of the module any more.
unsafe fn end() {
    state::State::end();
    settings::end();
    // SAFETY: what was got from them was for the length of a call.
    unsafe {
        store::CONSTANTS.end();
        delivery::ZERO.end();
    }
}

/// The entry point for Valkey, which also accepts the other name but logs that.
///
/// # Safety
///
/// As for [`RedisModule_OnLoad`].
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn ValkeyModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { on_load(ctx, argv, argc, Server::Valkey) }
}

/// Refuses to be unloaded, always. The server keeps the address of a command in
/// transactions that are not executed yet and in calls that `CLIENT PAUSE` holds
/// back, and its name in ACL rules. Redis and Valkey up to 8.1 crash of these
/// when the module is gone. Waiters and watches exist only in memory, too.
///
/// # Safety
///
/// Called by the server.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    entry::callback(ctx, |ctx| {
        ctx.log(
            c"warning",
            "MODULE UNLOAD rlock is refused, because the server could crash: clients may have \
             queued commands of the module. Restart the server, or fail over, to replace or \
             remove it",
        );
    });
    raw::REDISMODULE_ERR as c_int
}

/// The same under Valkey's name.
///
/// # Safety
///
/// As for [`RedisModule_OnUnload`].
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn ValkeyModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: the same call under another name.
    unsafe { RedisModule_OnUnload(ctx) }
}

/// The commands that report changes to replicas and the AOF.
const REPLICATED: [&std::ffi::CStr; 6] = [
    c"HSET",
    c"HDEL",
    c"DEL",
    c"PEXPIREAT",
    c"PUBLISH",
    c"SPUBLISH",
];

fn load(ctx: &Context, arguments: &[Text], server: Server) -> Result<(), ()> {
    if let Some(function) = raw::missing() {
        let text = format!("this server has no {function}, which the module needs: too old");
        ctx.log(c"warning", &text);
        return Err(());
    }
    if let Some(command) = REPLICATED
        .into_iter()
        .find(|command| !ctx.has_command(command))
    {
        let command = command.to_string_lossy();
        let text = format!(
            "this server has no command {command} (see rename-command), which replicas and the \
             AOF need"
        );
        ctx.log(c"warning", &text);
        return Err(());
    }
    entry::log_panics();
    let options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD
        | OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | match server {
            Server::Redis => 0,
            Server::Valkey => OPTION_ATOMIC_SLOT_MIGRATION,
        };
    // SAFETY: the context is the one of loading.
    unsafe { raw::set_module_options(ctx.raw(), options as c_int) };
    settings::load(ctx, arguments)
        .and_then(|()| commands::register(ctx))
        .and_then(|()| events::start(ctx))
        .map_err(|text| ctx.log(c"warning", &text))?;
    if ctx.flags().may_evict() {
        ctx.log(
            c"warning",
            "maxmemory-policy may evict locks when memory is full, and then two owners hold one; \
             set it to noeviction",
        );
    }
    events::subscribe(ctx);
    // `build.rs` determines the commit.
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("RLOCK_COMMIT"));
    ctx.log(c"notice", &format!("version {version} ({commit})"));
    Ok(())
}

/// A key that was opened for writing but not changed is not reported as
/// changed. Otherwise a refused request would abort other clients'
/// transactions.
const OPTION_NO_IMPLICIT_SIGNAL_MODIFIED: u32 = 1 << 1;

/// For Valkey, since 9: one module without it prevents the whole cluster from
/// moving slots by `CLUSTER MIGRATESLOTS`. It is safe because the hash contains
/// all that a lock needs, and waiters are turned away. In Redis the flag may
/// have another meaning.
const OPTION_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;
