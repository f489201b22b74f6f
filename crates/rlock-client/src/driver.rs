//! The background task of a client: it keeps the connection, renews what is
//! due, and does what dropped guards and dropped calls left to be done.
//!
//! It decides nothing about locks. It is one task for all locks of a client,
//! and starts a short one for each renewal and each clean-up, so that none
//! waits for another.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::hold::Hold;
use crate::link::{Link, keep_connected};
use crate::pulse;
use crate::release::{self, Withdrawal};
use crate::state::{Connection, State};
use crate::watchdog;

/// Work for the background.
#[derive(Debug)]
pub(crate) enum Order {
    /// The last guard of this hold is gone.
    Release(Arc<Hold>),
    /// A call for a lock was dropped, or gave up.
    Withdraw(Withdrawal),
    /// Somebody wants to know when nothing is left to clean up.
    Flush(oneshot::Sender<()>),
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
    }
}

async fn work(state: &State, mut inbox: mpsc::UnboundedReceiver<Order>) {
    let mut cleanups = JoinSet::new();
    let mut renewals = JoinSet::new();
    let mut flushes = Vec::new();
    loop {
        let underway = renewals.len();
        tokio::select! {
            order = inbox.recv() => match order {
                Some(Order::Release(hold)) => drop(cleanups.spawn(release::unused(hold))),
                Some(Order::Withdraw(withdrawal)) => drop(cleanups.spawn(withdrawal.carry_out())),
                Some(Order::Flush(done)) => flushes.push(done),
                None => break,
            },
            Some(_) = cleanups.join_next() => {}
            Some(_) = renewals.join_next() => {}
            hold = state.schedule.due(underway) => drop(renewals.spawn(watchdog::look(hold))),
        }
        if cleanups.is_empty() {
            for done in flushes.drain(..) {
                let _: Result<(), ()> = done.send(());
            }
        }
    }
    // Nobody sends orders any more; what was ordered is finished.
    while cleanups.join_next().await.is_some() {}
}
