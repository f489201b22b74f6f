//! The time, and the module's one timer.
//!
//! The server's timers fire by the wall clock but sleep by the monotonic clock,
//! so the timer is checked ten times a second. When the wall clock jumps, or a
//! suspended machine resumes, deadlines are late by at most that interval.
//!
//! One timer is armed for the earliest deadline. It may fire early, for a
//! deadline that has moved; then it is armed again. It is never armed far
//! ahead: Redis 7.0 keeps a processor busy while the next timer is more than
//! about 35 minutes ahead.

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

/// How late the timer may be before it counts as wrong, in milliseconds.
const OVERDUE_MS: u64 = 200;

/// The server's wall clock, which decides when keys expire. A server that reads
/// the clock only now and then is asked for its time: a key with an expiry by
/// another clock could have expired already.
pub(crate) fn now() -> Timestamp {
    servers().unwrap_or_else(wall_clock)
}

/// The wall clock if it is later than the server's, which does not advance
/// within a script or a transaction. Deadlines of other clients begin when they
/// get their messages. The wall clock is read only when a client waits, because
/// that costs up to a twentieth of a command.
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
    /// The server's callback when the timer fires.
    on_timer: raw::RedisModuleTimerProc,
    /// The callback after the event loop was woken.
    on_wake: raw::RedisModuleEventLoopOneShotFunc,
    armed: Option<(Timestamp, raw::RedisModuleTimerID)>,
    is_postponed: bool,
    at_once: bool,
}

impl Timer {
    /// An unarmed timer. Its callbacks must begin with [`Timer::fired`] and
    /// [`woken`].
    pub(crate) const fn new(
        on_timer: raw::RedisModuleTimerProc,
        on_wake: raw::RedisModuleEventLoopOneShotFunc,
    ) -> Self {
        Self {
            on_timer,
            on_wake,
            armed: None,
            is_postponed: false,
            at_once: false,
        }
    }

    /// Makes sure that the timer fires at `deadline`, or before.
    pub(crate) fn arm(&mut self, ctx: &Context, now: Timestamp, deadline: Timestamp) {
        let deadline = deadline.min(now.plus_millis(AHEAD_MAX_MS));
        match self.armed {
            Some((armed, _)) if !self.is_stale(now) && (armed <= deadline || self.is_postponed) => {
                return;
            }
            Some((_, id)) => {
                // SAFETY: this timer belongs to the module and has not fired:
                // `fired` would have cleared its id, which the server may reuse
                // after that.
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
                self.on_timer,
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
    pub(crate) fn postpone(&mut self, ctx: &Context, now: Timestamp, until: Timestamp) {
        self.arm(ctx, now, until);
        self.is_postponed = true;
    }

    /// Whether the timer is wrong because the wall clock has jumped: it should
    /// have fired, or was delayed for longer than it ever is. The server sleeps
    /// by another clock.
    pub(crate) fn is_stale(&self, now: Timestamp) -> bool {
        self.armed.is_some_and(|(armed, _)| {
            armed.plus_millis(OVERDUE_MS) < now
                || (self.is_postponed && now.plus_millis(OVERDUE_MS) < armed)
        })
    }

    /// Disarms the timer.
    pub(crate) fn disarm(&mut self, ctx: &Context) {
        if let Some((_, id)) = self.armed.take() {
            // SAFETY: as in `arm`.
            unsafe { raw::stop_timer(ctx.raw(), id, ptr::null_mut()) };
        }
        self.fired();
    }

    /// Rearms the timer, whatever it was armed for.
    pub(crate) fn rearm(&mut self, ctx: &Context) {
        self.is_postponed = false;
        self.at_once = false;
        if let Some((_, id)) = self.armed.take() {
            // SAFETY: as in `arm`.
            unsafe { raw::stop_timer(ctx.raw(), id, ptr::null_mut()) };
        }
        self.arm_at_once(ctx);
    }

    /// Records that the timer fires. It must come first in the callback.
    pub(crate) const fn fired(&mut self) {
        self.armed = None;
        self.is_postponed = false;
        self.at_once = false;
    }
}

/// Whether a one-shot event is pending.
static IS_WAKING: MainThread<Cell<bool>> = MainThread::new(Cell::new(false));

/// Records that the one-shot event has come.
pub(crate) fn woken() {
    IS_WAKING.get().set(false);
}

/// Redis 7.0 computes how long it will sleep before it runs code that may
/// create a timer, so a timer for "now" would fire only after that sleep. A
/// one-shot event ends the sleep. It does nothing else, because it has no
/// context.
fn wake_event_loop(on_wake: raw::RedisModuleEventLoopOneShotFunc) {
    if IS_WAKING.get().replace(true) {
        return;
    }
    // SAFETY: the function lives as long as the module, which is never unloaded.
    let added = unsafe { raw::event_loop_add_one_shot(on_wake, ptr::null_mut()) };
    IS_WAKING.get().set(added == raw::REDISMODULE_OK as c_int);
}
