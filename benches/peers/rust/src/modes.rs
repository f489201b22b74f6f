//! The workloads, the same for each peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
// Tokio's own timers count whole milliseconds, and round up: 1 ms would be 2.
use futures_timer::Delay;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::lines::{self, Acquisition, now};
use crate::peers::{Caller, Peer};
use crate::{Mode, Workload};

/// A loop ends early after this many: more would say nothing more.
const MOST_ACQUISITIONS: u64 = 200_000;
/// How long a caller rests after an error: one that comes at once must not
/// become a busy loop.
const AFTER_ERROR: Duration = Duration::from_millis(10);

/// What the callers of one run have in common.
struct Run {
    workload: Workload,
    taken: AtomicU64,
    errors: AtomicU64,
}

impl Run {
    fn error(&self, error: &anyhow::Error) {
        if self.errors.fetch_add(1, Ordering::Relaxed) == 0 {
            eprintln!("contestant: the first error: {error:#}");
        }
    }

    /// Acquires, holds and releases.
    async fn once<C: Caller>(&self, id: u32, caller: &mut C, key: &str) -> Option<Acquisition> {
        let asked = now();
        if let Err(error) = caller.acquire(key).await {
            self.error(&error);
            Delay::new(AFTER_ERROR).await;
            return None;
        }
        let granted = now();
        if !self.workload.hold().is_zero() {
            Delay::new(self.workload.hold()).await;
        }
        let releasing = now();
        let released = caller.release().await;
        let row = [u64::from(id), asked, granted, releasing, now()];
        released.map_err(|error| self.error(&error)).ok()?;
        Some(row)
    }
}

pub(crate) async fn run<P: Peer>(workload: Workload) -> anyhow::Result<()> {
    let callers = warm_up::<P>(&workload).await?;
    let run = Arc::new(Run {
        workload,
        taken: AtomicU64::new(0),
        errors: AtomicU64::new(0),
    });
    match run.workload.mode {
        Mode::Loop => looped(run, callers).await,
        Mode::Crowd => crowd(run, callers).await,
        Mode::Hold => hold(run, callers).await,
        Mode::Wait => wait(run, callers).await,
    }
}

/// Lets each caller acquire and release once on a key of its own, so that its
/// connection is open.
async fn warm_up<P: Peer>(workload: &Workload) -> anyhow::Result<Vec<P::Caller>> {
    let peer = P::open(workload).await?;
    let mut callers = Vec::new();
    for id in 0..workload.all_callers() {
        let mut caller = peer.caller(workload).await?;
        let key = format!("{}:warm:{id}", workload.key);
        caller.prepare(&key).await?;
        caller.acquire(&key).await?;
        caller.release().await?;
        callers.push(caller);
    }
    Ok(callers)
}

async fn looped<C: Caller>(run: Arc<Run>, mut callers: Vec<C>) -> anyhow::Result<()> {
    for (id, caller) in (0..).zip(&mut callers) {
        caller.prepare(&run.workload.key_of(id)).await?;
    }
    lines::event("ready");
    lines::await_line().await?;
    let end = Instant::now() + Duration::from_secs_f64(run.workload.seconds);
    let mut tasks = JoinSet::new();
    for (id, caller) in (0..).zip(callers) {
        tasks.spawn(turns(Arc::clone(&run), id, caller, end));
    }
    finish(&run, tasks.join_all().await.concat());
    Ok(())
}

async fn turns<C: Caller>(run: Arc<Run>, id: u32, mut caller: C, end: Instant) -> Vec<Acquisition> {
    let key = run.workload.key_of(id);
    let rounds = run.workload.rounds;
    let mut rows = Vec::new();
    while Instant::now() < end
        && run.taken.load(Ordering::Relaxed) < MOST_ACQUISITIONS
        && (rounds == 0 || rows.len() < rounds)
    {
        if let Some(row) = run.once(id, &mut caller, &key).await {
            rows.push(row);
            run.taken.fetch_add(1, Ordering::Relaxed);
        }
    }
    rows
}

/// All others ask for what caller 0 holds, one after the other.
async fn crowd<C: Caller>(run: Arc<Run>, callers: Vec<C>) -> anyhow::Result<()> {
    let per_ms = asked_per_ms(callers.len());
    let mut callers = (0..).zip(callers);
    let (_, mut first) = callers.next().context("a crowd has a caller 0")?;
    first.prepare(&run.workload.key).await?;
    let asked = now();
    first.acquire(&run.workload.key).await?;
    let granted = now();
    let mut tasks = JoinSet::new();
    for (id, caller) in callers {
        let (asking, asks) = oneshot::channel();
        tasks.spawn(ask(Arc::clone(&run), id, caller, asking));
        asks.await?;
        if (id as usize).is_multiple_of(per_ms) {
            Delay::new(Duration::from_millis(1)).await;
        }
    }
    Delay::new(run.workload.settle()).await;
    lines::event("settled");
    lines::await_line().await?;
    let releasing = now();
    let released = first.release().await;
    let mut rows = vec![[0, asked, granted, releasing, now()]];
    if let Err(error) = released {
        run.error(&error);
    }
    rows.extend(tasks.join_all().await.into_iter().flatten());
    finish(&run, rows);
    Ok(())
}

async fn ask<C: Caller>(
    run: Arc<Run>,
    id: u32,
    mut caller: C,
    asking: oneshot::Sender<()>,
) -> Option<Acquisition> {
    // Who started this task may have gone only with the whole program.
    let _ = asking.send(());
    run.once(id, &mut caller, &run.workload.key).await
}

/// One up to a crowd of 1,000; a larger one asks within a second.
fn asked_per_ms(callers: usize) -> usize {
    (callers / 1_000).max(1)
}

fn finish(run: &Run, rows: Vec<Acquisition>) {
    lines::finish(&rows, run.errors.load(Ordering::Relaxed));
}

async fn hold<C: Caller>(run: Arc<Run>, mut callers: Vec<C>) -> anyhow::Result<()> {
    let caller = callers.first_mut().context("there is one caller")?;
    caller.prepare(&run.workload.key).await?;
    caller.acquire(&run.workload.key).await?;
    lines::event_at("held");
    // Until it is killed. It must not outlive the driver either.
    lines::await_line().await
}

async fn wait<C: Caller>(run: Arc<Run>, mut callers: Vec<C>) -> anyhow::Result<()> {
    let caller = callers.first_mut().context("there is one caller")?;
    lines::event_at("asked");
    caller.acquire(&run.workload.key).await?;
    lines::event_at("granted");
    caller.release().await
}
