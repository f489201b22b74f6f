//! Whether this server may grant anything now. The server checks that itself
//! before a command, but not for the timer or for other keys than a command's.

use std::time::{Duration, Instant};

use rlock_core::{Locks, Setting, Timestamp};

use crate::{
    api::Context,
    operation::{Failure, Operation},
    settings,
};

/// How long to wait before the next check.
pub(crate) const AGAIN: Duration = Duration::from_millis(100);
/// A gap of the server's cron that means a stalled process, beside the usual one.
const STALLED: Duration = Duration::from_millis(1000);
/// How long the server takes to recount its replicas, beside the usual gap of its
/// cron: it does so once a second.
const COUNTED: Duration = Duration::from_millis(1000);

/// The role of this server, until when it grants nothing, and the replicas that
/// it has and needs. Durations are counted by the monotonic clock, because the
/// wall clock may be set back.
pub(crate) struct Serving {
    is_master: bool,
    /// Nothing is granted before this.
    granting_from: Option<Instant>,
    /// When the grace after the start ends.
    grace_ends: Option<Instant>,
    /// `min-replicas-to-write`; `None` if `CONFIG` does not report it.
    replicas_needed: Option<u64>,
    replicas_are_too_few: bool,
    /// When the replicas were last counted.
    asked: Option<Instant>,
    /// The usual gap of the server's cron, by the setting `hz`.
    cron: Duration,
    /// The last tick of the server's cron, by both clocks: one stops while the
    /// machine is suspended, the other may be set.
    ticked: Option<(Timestamp, Instant)>,
    /// Until when the server's count may date from before a pause.
    stale_until: Option<Instant>,
}

impl Serving {
    pub(crate) fn new(ctx: &Context) -> Self {
        let mut serving = Self {
            is_master: ctx.flags().is_master(),
            granting_from: None,
            grace_ends: None,
            replicas_needed: Some(0),
            replicas_are_too_few: false,
            asked: None,
            cron: Duration::ZERO,
            ticked: None,
            stale_until: None,
        };
        serving.read_config(ctx);
        serving
    }

    /// Reads how many replicas the server needs, and how often its cron ticks.
    pub(crate) fn read_config(&mut self, ctx: &Context) {
        self.replicas_needed = ctx.config_number(c"min-replicas-to-write");
        self.asked = None;
        // Once a second is the least that the server allows.
        let hz = ctx.config_number(c"hz").unwrap_or(1).max(1);
        self.cron = Duration::from_millis(1000 / hz);
    }

    /// The server has become a master, or a replica.
    pub(crate) const fn change_role(&mut self, is_master: bool) {
        self.is_master = is_master;
    }

    /// Records a tick of the server's cron.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        let monotonic = Instant::now();
        self.note_stall(now, monotonic);
        self.ticked = Some((now, monotonic));
    }

    /// Whether anything may be changed now.
    pub(crate) fn check_writable(
        &mut self,
        locks: &mut Locks,
        op: &Operation<'_>,
    ) -> Result<(), Failure> {
        if !self.is_master {
            return Err(Failure::Replica);
        }
        // A command in the same transaction as `CLIENT PAUSE` still runs. The
        // server would not delete an expired key then, and would crash if it is
        // written again.
        if op.ctx.avoids_writes() {
            return Err(Failure::Paused);
        }
        if self.replicas_needed != Some(0) {
            self.count_replicas(locks, op.ctx, op.now);
        }
        Ok(())
    }

    /// Grants nothing for a while if this server has fewer replicas than it
    /// needs: it may have been cut off, and another server may have replaced
    /// it.
    #[cold]
    fn count_replicas(&mut self, locks: &mut Locks, ctx: &Context, now: Timestamp) {
        let monotonic = Instant::now();
        self.note_stall(now, monotonic);
        let is_new = |asked: Instant| monotonic.saturating_duration_since(asked) < AGAIN;
        if !self.asked.is_some_and(is_new) {
            let needed = self.replicas_needed.unwrap_or(1);
            self.replicas_are_too_few = ctx.good_replicas().is_some_and(|good| good < needed);
            self.asked = Some(monotonic);
        }
        if self.replicas_are_too_few || self.stale_until > Some(monotonic) {
            self.grant_after(locks, now, AGAIN);
        }
    }

    fn note_stall(&mut self, now: Timestamp, monotonic: Instant) {
        let has_stalled = |(at, since): (Timestamp, Instant)| {
            let passed = monotonic.saturating_duration_since(since);
            passed.max(now.since(at)) > self.cron + STALLED
        };
        if self.ticked.is_some_and(has_stalled) {
            self.stale_until = Some(monotonic + self.cron + COUNTED);
        }
    }

    /// Grants nothing for the time in the setting.
    pub(crate) fn begin_grace(&mut self, locks: &mut Locks, now: Timestamp) {
        let grace = Duration::from_millis(settings::number(Setting::StartupGraceMs));
        if !grace.is_zero() {
            self.grace_ends = Some(Instant::now() + grace);
            self.grant_after(locks, now, grace);
            locks.settle_all_later(None);
        }
    }

    /// The rest of the grace after the start.
    pub(crate) fn grace_left(&self) -> Duration {
        let left = |ends: Instant| ends.saturating_duration_since(Instant::now());
        self.grace_ends.map(left).unwrap_or_default()
    }

    /// Grants nothing for this long, nor before any later end set earlier.
    pub(crate) fn grant_after(&mut self, locks: &mut Locks, now: Timestamp, wait: Duration) {
        self.granting_from = self.granting_from.max(Some(Instant::now() + wait));
        self.follow_clock(locks, now);
    }

    /// Sets when the locks may be granted again, by the current wall clock.
    pub(crate) fn follow_clock(&mut self, locks: &mut Locks, now: Timestamp) {
        let Some(from) = self.granting_from else {
            return;
        };
        let left = from.saturating_duration_since(Instant::now());
        let left_ms = u64::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        if left_ms == 0 {
            self.granting_from = None;
            locks.grant_from(None);
        } else {
            locks.grant_from(Some(now.plus_millis(left_ms)));
        }
    }
}
