//! What time it is, and the one timer of the module.
//!
//! The server's timers fire by the wall clock but sleep by the monotonic one, so
//! they are looked after ten times a second: when the wall clock jumps, or a
//! suspended machine goes on, ends are late by no more than that.
//!
//! One timer is armed at the earliest deadline there is. It may fire early,
//! for a deadline that has moved; then it is armed again. It is never armed
//! far ahead: Redis 7.0 keeps a processor busy while the next timer is more
//! than about 35 minutes away.

use std::{
    cell::Cell,
    os::raw::c_int,
    ptr,
    time::{SystemTime, UNIX_EPOCH},
};

use rlock_core::Timestamp;

use crate::api::{Context, MainThread, raw};

/// The furthest that the timer is armed ahead, in milliseconds.
const AHEAD_MAX_MS: u64 = 20 * 60 * 1000;

/// How late the timer may be before it is taken to be astray, in milliseconds.
const OVERDUE_MS: u64 = 200;

/// The server's wall clock, which the expiry of keys goes by. Where the server
/// looks at the clock only now and then it is asked: a key that is given an end
/// by another clock could have expired at once.
pub(crate) fn now() -> Timestamp {
    servers().unwrap_or_else(wall_clock)
}

/// The wall clock if that is later than the server's, which stalls within a
/// script or a transaction: what concerns other clients than the caller begins
/// when they get their messages. It is looked at only when somebody waits, as
/// that costs as much as a twentieth of a command.
pub(crate) fn latest() -> Timestamp {
    let wall_clock = wall_clock();
    servers().map_or(wall_clock, |servers| servers.max(wall_clock))
}

fn servers() -> Option<Timestamp> {
    let micros = raw::cached_microseconds()?;
    Some(Timestamp::from_micros(u64::try_from(micros).unwrap_or(0)))
}

fn wall_clock() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_micros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
}

/// The timer: not armed, or armed for a point in time.
pub(crate) struct Timer {
    /// What the server calls when it fires.
    on_ring: raw::RedisModuleTimerProc,
    /// What it calls when the event loop was woken.
    on_wake: raw::RedisModuleEventLoopOneShotFunc,
    armed: Option<(Timestamp, raw::RedisModuleTimerID)>,
    held_off: bool,
    at_once: bool,
}

impl Timer {
    /// A timer that is not armed. Its callbacks have to begin with
    /// [`Timer::rung`] and [`woken`].
    pub(crate) const fn new(
        on_ring: raw::RedisModuleTimerProc,
        on_wake: raw::RedisModuleEventLoopOneShotFunc,
    ) -> Self {
        Self {
            on_ring,
            on_wake,
            armed: None,
            held_off: false,
            at_once: false,
        }
    }

    /// Makes sure that the timer fires at `deadline`, or before.
    pub(crate) fn arm(&mut self, ctx: &Context, now: Timestamp, deadline: Timestamp) {
        let deadline = deadline.min(now.plus_millis(AHEAD_MAX_MS));
        match self.armed {
            Some((armed, _)) if !self.is_astray(now) && (armed <= deadline || self.held_off) => {
                return;
            }
            Some((_, id)) => {
                // SAFETY: this timer is ours and has not rung: `rung` would
                // have forgotten its id, which may be used again after that.
                unsafe { raw::stop_timer(ctx.raw(), id, ptr::null_mut()) };
            }
            None => {}
        }
        let delay_ms = deadline.millis_from(now);
        // SAFETY: the callback takes no data.
        let id = unsafe {
            raw::create_timer(
                ctx.raw(),
                i64::try_from(delay_ms).unwrap_or(0),
                self.on_ring,
                ptr::null_mut(),
            )
        };
        self.armed = Some((deadline, id));
        self.at_once = delay_ms == 0;
        if self.at_once {
            wake_event_loop(self.on_wake);
        }
    }

    /// Makes sure that the timer fires in the next turn of the event loop.
    pub(crate) fn arm_at_once(&mut self, ctx: &Context) {
        if !self.at_once {
            let now = now();
            self.arm(ctx, now, now);
        }
    }

    /// Arms the timer for a time before which it need not fire.
    pub(crate) fn hold_off(&mut self, ctx: &Context, now: Timestamp, until: Timestamp) {
        self.arm(ctx, now, until);
        self.held_off = true;
    }

    /// Whether the timer cannot be relied on, as the wall clock has jumped: it
    /// should have fired, or was held off for longer than it ever is. The server
    /// sleeps by another clock.
    pub(crate) fn is_astray(&self, now: Timestamp) -> bool {
        self.armed.is_some_and(|(armed, _)| {
            armed.plus_millis(OVERDUE_MS) < now
                || (self.held_off && now.plus_millis(OVERDUE_MS) < armed)
        })
    }

    /// Makes sure that the timer does not fire. A module whose timer is armed
    /// cannot be unloaded.
    pub(crate) fn disarm(&mut self, ctx: &Context) {
        if let Some((_, id)) = self.armed.take() {
            // SAFETY: as in `arm`.
            unsafe { raw::stop_timer(ctx.raw(), id, ptr::null_mut()) };
        }
        self.rung();
    }

    /// Rearms the timer, whatever it was armed for.
    pub(crate) fn set_right(&mut self, ctx: &Context) {
        self.held_off = false;
        self.at_once = false;
        if let Some((_, id)) = self.armed.take() {
            // SAFETY: as in `arm`.
            unsafe { raw::stop_timer(ctx.raw(), id, ptr::null_mut()) };
        }
        self.arm_at_once(ctx);
    }

    /// Takes note that the timer fires. Must come first in its callback.
    pub(crate) const fn rung(&mut self) {
        self.armed = None;
        self.held_off = false;
        self.at_once = false;
    }
}

/// Whether a one-shot event is pending. The server does not keep count of them,
/// and would call into a module that it has unloaded.
static IS_WAKING: MainThread<Cell<bool>> = MainThread::new(Cell::new(false));

/// Whether the server will call back without having been asked for anything.
pub(crate) fn is_waking() -> bool {
    IS_WAKING.get().get()
}

/// Takes note that the one-shot event has come.
pub(crate) fn woken() {
    IS_WAKING.get().set(false);
}

/// Redis 7.0 computes how long it will sleep before it runs what may create a
/// timer, so a timer for "now" would fire only after that sleep. A one-shot
/// event ends the sleep; it does nothing else, as it has no context to act in.
fn wake_event_loop(on_wake: raw::RedisModuleEventLoopOneShotFunc) {
    if IS_WAKING.get().replace(true) {
        return;
    }
    // SAFETY: the function lives as long as the module, which is not unloaded
    // before the event has come.
    let added = unsafe { raw::event_loop_add_one_shot(on_wake, ptr::null_mut()) };
    IS_WAKING.get().set(added == raw::REDISMODULE_OK as c_int);
}
