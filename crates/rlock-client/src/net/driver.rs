//! The background task of a client: it keeps the connections, awaits the replies
//! that no caller awaits, and tells the engine that time has passed.
//!
//! It decides nothing. It is one task for all locks of a client.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rlock_engine::engine::lane::Node;
use rlock_engine::engine::{Event, Id};
use tokio::sync::mpsc;

use crate::net::clock::timer;
use crate::net::keeping::keep_connected;
use crate::net::link::Link;
use crate::net::sending::Asking;
use crate::net::state::State;

/// Work for the background.
pub(crate) enum Order {
    /// Await the reply to a request that has been sent.
    Await(Id, Asking),
    /// Keep a connection to a server, beginning with this one if there is one.
    Connect(Node, Option<Arc<Link>>),
    /// The last client, lock and guard is gone.
    Close,
}

/// Runs until the last client, lock and guard is gone, and nothing is left to
/// clean up.
pub(crate) async fn drive(state: Arc<State>, inbox: mpsc::UnboundedReceiver<Order>) {
    let _closing = Closing(Arc::clone(&state));
    let follow = async {
        match state.source.as_cluster() {
            Some(cluster) => cluster.follow(&state).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = work(&state, inbox) => {}
        () = follow => {}
    }
}

/// Tells everybody that there is no background any more, also when the
/// runtime is shut down under it.
struct Closing(Arc<State>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn work(state: &Arc<State>, mut inbox: mpsc::UnboundedReceiver<Order>) {
    let mut asked = FuturesUnordered::new();
    let mut kept = FuturesUnordered::new();
    let mut is_open = true;
    while is_open || !state.is_clean() {
        let alarm = state.alarm();
        let rings = async {
            match alarm {
                Some(alarm) => tokio::time::sleep_until(timer(alarm)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(order) = inbox.recv() => match order {
                Order::Await(request, asking) => {
                    asked.push(async move { (request, asking.await) });
                }
                Order::Connect(node, link) => kept.push(keep_connected(state, node, link)),
                // What was ordered is finished.
                Order::Close => is_open = false,
            },
            Some((request, result)) = asked.next() => {
                state.answered(None, request, result);
            }
            Some(()) = kept.next() => {}
            () = rings => state.handle(Event::Tick),
            () = state.alarm_is_earlier() => {}
        }
    }
}
