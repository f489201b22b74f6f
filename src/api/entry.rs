//! The entry points that the server calls. A panic stops here: it becomes an
//! error reply or a line in the log, and is counted in `INFO`. The server keeps
//! running.
//! That is safe because the key decides who holds a lock, and memory does not.
//! A queue that a panic left half changed can make an owner wait, but cannot
//! make two owners hold one lock.

use std::{
    cell::Cell,
    os::raw::c_int,
    panic::{self, AssertUnwindSafe},
};

use super::{Context, MainThread, raw};

static PANICS: MainThread<Cell<u64>> = MainThread::new(Cell::new(0));

/// How many panics have been caught.
pub(crate) fn panics() -> u64 {
    PANICS.get().get()
}

/// Runs a command, or a reply callback.
pub(crate) fn command(ctx: *mut raw::RedisModuleCtx, run: impl FnOnce(&Context)) -> c_int {
    let ctx = Context::of_command(ctx);
    if panic::catch_unwind(AssertUnwindSafe(|| run(&ctx))).is_err() {
        caught(&ctx);
        ctx.reply_error("ERR internal error of the rlock module, see the server's log");
    }
    raw::REDISMODULE_OK as c_int
}

/// Runs a callback that sends no reply.
pub(crate) fn callback(ctx: *mut raw::RedisModuleCtx, run: impl FnOnce(&Context)) {
    let ctx = Context::new(ctx);
    if panic::catch_unwind(AssertUnwindSafe(|| run(&ctx))).is_err() {
        caught(&ctx);
    }
}

fn caught(ctx: &Context) {
    PANICS.get().set(panics() + 1);
    ctx.log(
        c"warning",
        "a panic was caught; please report the line above as a defect",
    );
}

/// Writes the text of a panic to the server's log: a server in the background
/// has no standard error.
pub(crate) fn log_panics() {
    panic::set_hook(Box::new(|info| {
        Context::new(std::ptr::null_mut()).log(c"warning", &format!("rlock: {info}"));
    }));
}
