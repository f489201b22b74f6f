//! Whether this server may grant anything now. The server itself asks before a
//! command; of what a timer does, and of other keys than a command's, it knows
//! nothing.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use rlock_core::Timestamp;

use crate::{
    api::{Context, MainThread, Serves},
    site::{Failure, Site},
    state::State,
    tell,
};

/// How long to wait before asking again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the server's own clock-work stands still when the whole process
/// does, in milliseconds; it ticks ten times a second.
const STALLED_MS: u64 = 1000;
/// How long the server takes to count its replicas anew: it does so once a
/// second.
const COUNTED: Duration = Duration::from_millis(1100);

/// The replicas that the server has, and those that it needs. All that has to
/// pass is counted by the monotonic clock, as the wall clock may be set back.
#[derive(Clone, Copy)]
struct Replicas {
    /// `min-replicas-to-write`; `None` if `CONFIG` does not tell.
    needed: Option<u64>,
    are_too_few: bool,
    asked: Option<Instant>,
    /// When the server's clock-work has last ticked, by both clocks: one stands
    /// still while the machine is suspended, the other may be set.
    ticked: Option<(Timestamp, Instant)>,
    /// Until when the server's count is one from before a pause.
    stale_until: Option<Instant>,
}

static REPLICAS: MainThread<Cell<Replicas>> = MainThread::new(Cell::new(Replicas {
    needed: Some(0),
    are_too_few: false,
    asked: None,
    ticked: None,
    stale_until: None,
}));

/// Reads how many replicas the server needs.
pub(crate) fn read_config(ctx: &Context) {
    let mut replicas = REPLICAS.get().get();
    replicas.needed = ctx.config_number(c"min-replicas-to-write");
    replicas.asked = None;
    REPLICAS.get().set(replicas);
}

/// Takes note that the server's clock-work ticks.
pub(crate) fn tick(now: Timestamp) {
    let mut replicas = REPLICAS.get().get();
    let monotonic = Instant::now();
    note_stall(&mut replicas, now, monotonic);
    replicas.ticked = Some((now, monotonic));
    REPLICAS.get().set(replicas);
}

/// Whether anything may be changed now.
pub(crate) fn check_writable(state: &mut State, site: &Site<'_>) -> Result<(), Failure> {
    if !state.is_master {
        return Err(Failure::Replica);
    }
    // A command that is in one transaction with `CLIENT PAUSE` still runs. The
    // server would not delete a key that has expired, and then not bear that
    // it is written again.
    if site.ctx.avoids_writes() {
        return Err(Failure::Paused);
    }
    check_replicas(state, site.ctx, site.now);
    Ok(())
}

/// Grants nothing for a while if this server has fewer replicas than it needs:
/// it may have been cut off, and another one have taken its place.
fn check_replicas(state: &mut State, ctx: &Context, now: Timestamp) {
    if REPLICAS.get().get().needed != Some(0) {
        count_replicas(state, ctx, now);
    }
}

#[cold]
fn count_replicas(state: &mut State, ctx: &Context, now: Timestamp) {
    let mut replicas = REPLICAS.get().get();
    let monotonic = Instant::now();
    note_stall(&mut replicas, now, monotonic);
    let is_new = |asked: Instant| monotonic.saturating_duration_since(asked) < AGAIN;
    if !replicas.asked.is_some_and(is_new) {
        let good = ctx.good_replicas();
        replicas.are_too_few = good.is_some_and(|good| good < replicas.needed.unwrap_or(1));
        replicas.asked = Some(monotonic);
    }
    REPLICAS.get().set(replicas);
    if replicas.are_too_few || replicas.stale_until > Some(monotonic) {
        state.grant_after(now, AGAIN);
    }
}

fn note_stall(replicas: &mut Replicas, now: Timestamp, monotonic: Instant) {
    let stood_still = |(at, since): (Timestamp, Instant)| {
        let passed = monotonic.saturating_duration_since(since);
        at.plus_millis(STALLED_MS) < now || passed > Duration::from_millis(STALLED_MS)
    };
    if replicas.ticked.is_some_and(stood_still) {
        replicas.stale_until = Some(monotonic + COUNTED);
    }
}

/// Whether anything may be done with the lock here. In a cluster the key may
/// have gone because its slot has: then its waiters have to ask elsewhere. If
/// the cluster is down they wait on, and nothing is granted for a while.
pub(crate) fn is_ours(state: &mut State, site: &Site<'_>) -> bool {
    if !site.ctx.flags().is_cluster() {
        return true;
    }
    match site.ctx.serves(site.key) {
        Serves::Yes => true,
        Serves::ClusterIsDown => {
            state.grant_after(site.now, AGAIN);
            true
        }
        Serves::No => {
            turn_all_away(state, site);
            false
        }
    }
}

/// Turns away those who wait for the lock, and tells those who asked to be told
/// of a loss that none will be told here any more.
fn turn_all_away(state: &mut State, site: &Site<'_>) {
    while !state.locks.turn_is_over() {
        let Some(ended) = state.locks.withdraw_one(site.name()) else {
            return;
        };
        tell::turn_away(state, site.ctx, &ended);
    }
    state.locks.settle_later(site.name());
}
