//! How a connection comes back when it breaks.

use std::sync::Arc;
use std::time::Duration;

use rlock_engine::engine::lane::Node;
use rlock_engine::error::Failure;

use crate::net::clock::now;
use crate::net::deadline::Backoff;
use crate::net::link::Link;
use crate::net::servers::Connection;
use crate::net::source::none_of_them;
use crate::net::state::State;
use crate::wire::failure::failure;

/// After how long a connection counts as one that works.
const SETTLED: Duration = Duration::from_secs(5);

/// Connects to a server, and again whenever the connection breaks. Ends with
/// its task, or when the server has left the cluster.
pub(crate) async fn keep_connected(state: &Arc<State>, node: Node, first: Option<Arc<Link>>) {
    // One that connects, and is given up at once, is as bad as one that does
    // not: a demoted server, for example.
    let mut backoff = Backoff::default();
    let mut link = first;
    loop {
        let current = match link.take() {
            Some(link) => link,
            None => match connect(state, node, &mut backoff).await {
                Some(link) => link,
                None => return state.link_down(node, None, true),
            },
        };
        let since = now();
        tokio::select! {
            () = current.life.retired() => {}
            () = state.source.moved(&current.address) => {
                tracing::info!("the Sentinels name another server");
                current.retire();
            }
        }
        if now() - since >= SETTLED {
            backoff = Backoff::default();
        }
        tracing::warn!(address = current.address, "connection to the server lost");
        state.server(node).has_lost(current.identity.clone());
        state.link_down(node, Some(current.number), false);
        drop(current);
        pause(state, &mut backoff).await;
    }
}

async fn pause(state: &State, backoff: &mut Backoff) {
    let pause = backoff.next().min(state.source.pause_max());
    tokio::time::sleep(pause).await;
}

/// None if the server has left the cluster.
async fn connect(state: &Arc<State>, node: Node, backoff: &mut Backoff) -> Option<Arc<Link>> {
    let server = state.server(node);
    loop {
        let earlier = server.earlier();
        match Link::open(state, node, &earlier).await {
            Ok(link) => {
                server.has_closed(earlier.len());
                let (number, address) = (link.number, &link.address);
                tracing::info!(number, address, "connected to the server");
                state.link_up(node, &link);
                return Some(link);
            }
            Err(error) => {
                tracing::debug!(%error, "no connection to the server yet");
                let failure = failure(error.clone());
                if let Failure::Server(error) = &failure {
                    state.redirected(error, Some(node));
                }
                let failure = match state.source.as_cluster() {
                    Some(cluster) => self::failure(none_of_them(
                        "a master cannot be reached",
                        vec![(cluster.address(node), error)],
                    )),
                    None => failure,
                };
                server.set(Connection::Down(Some(failure)));
            }
        }
        if let Some(cluster) = state.source.as_cluster() {
            cluster.doubt();
            if !state.routed(|routes| routes.has(node)) {
                return None;
            }
        }
        pause(state, backoff).await;
    }
}
