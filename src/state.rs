//! All that the module remembers, and how callbacks reach it.
//!
//! The server may call back while a command of this module runs: a key event
//! for a key that it opens, a client that disconnects. Such a callback only
//! leaves a note, which is read when the command is done. So the state is
//! borrowed once at a time, and its user never sees it change.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use rlock_core::{Locks, Name, Setting, Timestamp};

use crate::{
    api::{Context, MainThread, Serves, Text},
    clock::{self, Timer},
    delivery::Deliveries,
    notes::{self, KeyChange, Note},
    operation::{Failure, Operation},
    serving::{AGAIN, Serving},
    settings,
    store::SharedCache,
};

/// How many tickets are handled in one turn of the event loop: about a
/// millisecond of work. The rest follows in later turns.
const TURN_TICKETS: usize = 256;
/// How long one turn of the event loop may take, if it does not handle that
/// number of tickets before.
pub(crate) const TURN_MAX: Duration = Duration::from_millis(1);
/// How far the wall clock must fall behind the monotonic clock between two
/// ticks to count as set back.
const STEP_BACK: Duration = Duration::from_millis(100);

pub(crate) struct State {
    pub(crate) locks: Locks,
    /// What is known of shared locks without a scan.
    pub(crate) shared_cache: SharedCache,
    pub(crate) deliveries: Deliveries,
    pub(crate) serving: Serving,
    pub(crate) evicted_locks: u64,
    pub(crate) timer: Timer,
    /// Subscribes to key events, which is done once.
    subscribe_to_keys: Option<fn(&Context)>,
    /// Subscribes to the turns of the event loop, which is done once.
    subscribe_to_turns: Option<fn(&Context)>,
    /// The last tick of the server's cron, by both clocks.
    last_tick: (Timestamp, Instant),
}

static STATE: MainThread<RefCell<Option<State>>> = MainThread::new(RefCell::new(None));

impl State {
    /// The state of a server that has just loaded the module.
    ///
    /// # Errors
    ///
    /// The histogram's error text if it refuses the bounds.
    pub(crate) fn start(
        ctx: &Context,
        timer: Timer,
        subscribe_to_keys: fn(&Context),
        subscribe_to_turns: fn(&Context),
    ) -> Result<(), String> {
        let mut state = Self {
            locks: Locks::default(),
            shared_cache: SharedCache::default(),
            deliveries: Deliveries::new()?,
            serving: Serving::new(ctx),
            evicted_locks: 0,
            timer,
            subscribe_to_keys: Some(subscribe_to_keys),
            subscribe_to_turns: Some(subscribe_to_turns),
            last_tick: (clock::latest(), Instant::now()),
        };
        state.serving.begin_grace(&mut state.locks, clock::now());
        *STATE.get().borrow_mut() = Some(state);
        Ok(())
    }

    /// Frees the memory of the state, as the module could not be loaded.
    pub(crate) fn end() {
        if let Ok(mut state) = STATE.get().try_borrow_mut() {
            *state = None;
        }
    }

    /// Whether anything may be changed now.
    pub(crate) fn check_writable(&mut self, op: &Operation<'_>) -> Result<(), Failure> {
        self.serving.check_writable(&mut self.locks, op)
    }

    /// Whether this server may change the lock. In a cluster the key may be
    /// gone because its slot has moved: then its waiters must ask elsewhere. If
    /// the cluster is down, they keep waiting, and nothing is granted for a
    /// while.
    pub(crate) fn is_ours(&mut self, op: &Operation<'_>) -> bool {
        if !op.ctx.flags().is_cluster() {
            return true;
        }
        match op.ctx.serves(op.key) {
            Serves::Yes => true,
            Serves::ClusterIsDown => {
                let locks = &mut self.locks;
                self.serving.grant_after(locks, op.now, AGAIN);
                true
            }
            Serves::No => {
                self.turn_all_away(op);
                false
            }
        }
    }

    /// Turns away the waiters of the lock, and notifies the watches that this
    /// server will report no more losses of it.
    fn turn_all_away(&mut self, op: &Operation<'_>) {
        while !self.locks.turn_is_over() {
            let Some(ended) = self.locks.withdraw_one(op.name()) else {
                return;
            };
            self.deliveries.turn_away(op.ctx, &ended);
        }
        self.locks.settle_later(op.name());
    }

    /// Schedules a check of all locks if the wall clock was set back: the
    /// deadlines that they wait for may be too far ahead.
    fn note_step_back(&mut self) {
        let (wall, monotonic) = (clock::latest(), Instant::now());
        let (last_wall, last_monotonic) = self.last_tick;
        let passed = monotonic.saturating_duration_since(last_monotonic);
        let passed = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
        let expected = Timestamp::from_micros(last_wall.micros().saturating_add(passed));
        if expected.since(wall) > STEP_BACK {
            self.locks.settle_all_later(None);
        }
        self.last_tick = (wall, monotonic);
    }

    /// Handles the notes of callbacks, in memory only: the timer does all
    /// writes.
    fn handle_notes(&mut self, ctx: &Context, now: Timestamp) {
        loop {
            let notes = notes::take();
            if notes.is_empty() {
                break;
            }
            for note in notes {
                self.handle_note(ctx, note, now);
            }
        }
        if let Some(subscribe) = self.subscribe_to_keys
            && (self.locks.has_contended() || !self.shared_cache.is_empty())
        {
            self.subscribe_to_keys = None;
            subscribe(ctx);
        }
        if let Some(subscribe) = self.subscribe_to_turns
            && self.deliveries.grants.has_published()
        {
            self.subscribe_to_turns = None;
            subscribe(ctx);
        }
        if let Some(deadline) = self.next_deadline(now) {
            self.timer.arm(ctx, now, deadline);
        }
    }

    /// The next deadline without a command.
    fn next_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        if self.deliveries.grants.has_undelivered() {
            return Some(now);
        }
        self.locks.next_deadline(now)
    }

    fn handle_note(&mut self, ctx: &Context, note: Note, now: Timestamp) {
        match note {
            Note::KeyChanged { db, key, change } => {
                self.note_key(ctx, Name { db, key: &key }, change);
            }
            Note::KeysChanged(db) => {
                self.shared_cache.clear(db);
                self.locks.settle_all_later(db);
            }
            Note::CallerGone(handle) => {
                if let Some(ticket) = self.deliveries.end_call(handle) {
                    self.locks.caller_gone(now, ticket, handle);
                }
            }
            Note::SessionClosed(session) => {
                self.deliveries.grants.session_closed(session);
                self.locks.session_closed(now, session);
            }
            Note::GrantEnded { handle, gone } => self.deliveries.grants.call_ended(handle, gone),
            Note::RoleChanged { is_master } => {
                self.shared_cache.clear(None);
                self.serving.change_role(is_master);
                if !is_master {
                    self.deliveries.grants.forget_undelivered();
                    self.locks.demote();
                }
            }
            Note::Loaded => {
                self.shared_cache.clear(None);
                self.serving.begin_grace(&mut self.locks, now);
            }
            Note::ConfigChanged => self.serving.read_config(ctx),
        }
    }

    /// Makes the timer settle a lock, because its key has changed.
    fn note_key(&mut self, ctx: &Context, name: Name<'_>, change: KeyChange) {
        match change {
            // Only the ends of leases have changed, which the next read of the
            // key shows.
            KeyChange::TimeToLive => {}
            KeyChange::RenamedFrom => self.shared_cache.rename_from(name),
            KeyChange::RenamedTo => self.shared_cache.rename_to(name),
            KeyChange::Evicted | KeyChange::Other => self.shared_cache.forget(name),
        }
        if self.locks.is_contended(name) {
            self.evicted_locks += u64::from(change == KeyChange::Evicted);
            self.locks.settle_later(name);
            self.timer.arm_at_once(ctx);
        }
    }

    /// The connection to which a hold may have to be bound; relevant only if
    /// anything is remembered of the lock.
    pub(crate) fn session_for(&self, op: &Operation<'_>) -> Option<u64> {
        let remembered = self.locks.is_contended(op.name());
        remembered.then(|| op.ctx.session()).flatten()
    }

    /// The same for holds of several locks.
    pub(crate) fn session_for_any(&self, op: &Operation<'_>, keys: &[Text]) -> Option<u64> {
        let is_remembered = |key: &Text| {
            let (db, key) = (op.db, key.bytes());
            self.locks.is_contended(Name { db, key })
        };
        let any = keys.iter().any(is_remembered);
        any.then(|| op.ctx.session()).flatten()
    }
}

/// Runs `act` on the state, then handles the notes of callbacks and arms the
/// timer. `None` if the state is in use: another module has called a command of
/// this module from within one of its callbacks.
pub(crate) fn with<R>(ctx: &Context, act: impl FnOnce(&mut State, Timestamp) -> R) -> Option<R> {
    let mut state = STATE.get().try_borrow_mut().ok()?;
    let state = state.as_mut()?;
    let contended = state.locks.has_contended();
    let now = if contended {
        clock::latest()
    } else {
        clock::now()
    };
    state.serving.follow_clock(&mut state.locks, now);
    state
        .locks
        .yield_after(settings::number(Setting::YieldAfter));
    state.locks.begin_turn(TURN_TICKETS);
    let result = act(state, now);
    let is_first = !contended && state.locks.has_contended();
    state.handle_notes(ctx, if is_first { clock::latest() } else { now });
    Some(result)
}

/// Reads the state. `None` if the state is in use.
pub(crate) fn inspect<R>(act: impl FnOnce(&State) -> R) -> Option<R> {
    let state = STATE.get().try_borrow().ok()?;
    state.as_ref().map(act)
}

/// Records that the server has written the output of a turn of its event loop.
pub(crate) fn turn_ended() {
    if let Ok(mut state) = STATE.get().try_borrow_mut()
        && let Some(state) = state.as_mut()
    {
        state.deliveries.grants.turn_ended();
    }
}

/// Records that a grant has reached its blocked call, unless the state is in use.
pub(crate) fn grant_arrived(handle: u64) -> bool {
    let Ok(mut state) = STATE.get().try_borrow_mut() else {
        return false;
    };
    if let Some(state) = state.as_mut() {
        state.deliveries.grants.call_ended(handle, false);
    }
    true
}

/// Adds a note, which is handled at once if the state is free.
pub(crate) fn add_note(ctx: &Context, note: Note) {
    notes::push(note);
    with(ctx, |_, _| ());
}

/// Records a key event. Ten thousand keys may expire in one millisecond, so
/// this is short: it costs almost nothing if nobody waits for the key.
pub(crate) fn key_changed(ctx: &Context, key: Text, change: KeyChange) {
    let db = ctx.db();
    let Ok(mut state) = STATE.get().try_borrow_mut() else {
        if !notes::is_changing(key) {
            let key = key.bytes().into();
            notes::push(Note::KeyChanged { db, key, change });
        }
        return;
    };
    if let Some(state) = state.as_mut() {
        state.note_key(
            ctx,
            Name {
                db,
                key: key.bytes(),
            },
            change,
        );
    }
}

/// Rearms the timer if the wall clock has jumped, stops it if there is no
/// deadline, and drops what is known of locks that have ended.
pub(crate) fn tick(ctx: &Context) {
    let Ok(mut state) = STATE.get().try_borrow_mut() else {
        return;
    };
    let Some(state) = state.as_mut() else { return };
    state.serving.tick(clock::latest());
    state.note_step_back();
    let now = clock::now();
    let began = Instant::now();
    while state.shared_cache.drop_ended(now) && began.elapsed() < TURN_MAX {}
    match state.next_deadline(now) {
        None => state.timer.disarm(ctx),
        Some(_) if state.timer.is_stale(now) => state.timer.rearm(ctx),
        // A panic in the timer has left it unarmed.
        Some(deadline) => state.timer.arm(ctx, now, deadline),
    }
}
