//! The background task of a client: it keeps the connection, renews what is
//! due, and does what dropped guards and dropped calls left to be done.
//!
//! It decides nothing about locks. It is one task for all locks of a client,
//! and starts a short one for each renewal and each clean-up, so that none
//! waits for another.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{self, JoinError, JoinSet};

use crate::engine::claims::Claims;
use crate::engine::hold::Hold;
use crate::net::link::{Link, keep_connected};
use crate::net::pulse;
use crate::net::release::{self, Releasing, Withdrawal};
use crate::net::state::{Connection, State};
use crate::net::watchdog;

/// Work for the background.
#[derive(Debug)]
pub(crate) enum Order {
    /// The last guard of this hold is gone.
    Release(Arc<Hold>),
    /// The same, and the request has been sent.
    AwaitRelease(Releasing),
    /// A call for a lock was dropped, or gave up.
    Withdraw(Withdrawal),
    /// The server has granted something, for so long, that nobody waits for.
    GiveBack(Claims, Duration),
    /// Somebody wants to know when nothing is left to clean up.
    Flush(oneshot::Sender<()>),
    /// The last client, lock and guard is gone.
    Close,
}

/// Runs until the last client, lock and guard is gone.
pub(crate) async fn drive(
    state: Arc<State>,
    inbox: mpsc::UnboundedReceiver<Order>,
    link: Arc<Link>,
) {
    let _closing = Closing(Arc::clone(&state));
    tokio::select! {
        () = work(&state, inbox) => {}
        () = keep_connected(&state, link) => {}
        () = pulse::keep(&state) => {}
    }
}

/// Tells everybody that there is no background any more, also when the
/// runtime is shut down under it.
struct Closing(Arc<State>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.set_connection(Connection::Closed);
        // Those who wait for a message ask for the connection then.
        for claim in self.0.wakeups.all() {
            claim.closed();
        }
    }
}

async fn work(state: &Arc<State>, mut inbox: mpsc::UnboundedReceiver<Order>) {
    let mut cleanups = Cleanups::default();
    let mut renewals = JoinSet::new();
    let mut is_open = true;
    while is_open || !cleanups.tasks.is_empty() {
        let underway = renewals.len();
        let state = Arc::clone(state);
        tokio::select! {
            Some(order) = inbox.recv() => match order {
                Order::Release(hold) => cleanups.spawn(release::unused(state, hold)),
                Order::AwaitRelease(releasing) => {
                    cleanups.spawn(release::await_release(state, releasing));
                }
                Order::Withdraw(withdrawal) => cleanups.spawn(withdrawal.carry_out(state)),
                Order::GiveBack(claims, lease) => {
                    cleanups.spawn(release::give_back(state, claims, lease));
                }
                Order::Flush(done) => cleanups.tell_when_done(done),
                // What was ordered is finished.
                Order::Close => is_open = false,
            },
            Some(ended) = cleanups.tasks.join_next_with_id() => cleanups.ended(&ended),
            Some(_) = renewals.join_next() => {}
            hold = state.schedule.due(underway) => {
                drop(renewals.spawn(watchdog::look(Arc::clone(&state), hold)));
            }
        }
    }
}

/// Clean-up that is under way, and those who wait for what was ordered before
/// they asked: not for what comes later, which might never end.
#[derive(Default)]
struct Cleanups {
    tasks: JoinSet<()>,
    running: HashSet<task::Id>,
    waiting: Vec<(HashSet<task::Id>, oneshot::Sender<()>)>,
}

impl Cleanups {
    fn spawn(&mut self, cleanup: impl Future<Output = ()> + Send + 'static) {
        let task = self.tasks.spawn(cleanup);
        self.running.insert(task.id());
    }

    fn tell_when_done(&mut self, done: oneshot::Sender<()>) {
        self.waiting.push((self.running.clone(), done));
        self.tell_those_who_are_done();
    }

    fn ended(&mut self, ended: &Result<(task::Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        self.running.remove(&id);
        for (awaited, _) in &mut self.waiting {
            awaited.remove(&id);
        }
        self.tell_those_who_are_done();
    }

    fn tell_those_who_are_done(&mut self) {
        for (_, done) in self
            .waiting
            .extract_if(.., |(awaited, _)| awaited.is_empty())
        {
            let _: Result<(), ()> = done.send(());
        }
    }
}
