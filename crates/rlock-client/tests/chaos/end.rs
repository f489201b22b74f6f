//! What has to be true when all have left.

use std::time::Duration;

use rlock_client::Terms;
use tokio::time::{Instant, sleep, timeout};

use crate::contender::{KEYS, Process};
use crate::locks::{Mode, Waiting, Wish};
use crate::log::Log;
use crate::network::Network;
use crate::world::World;

/// The longest lease, and some more.
const LIMIT: Duration = Duration::from_secs(12);

/// Waits for the processes; a call that does not end is seen in the history.
pub(crate) async fn all_have_left(processes: Vec<Process>, log: &Log) {
    let threads = processes.into_iter().map(|process| process.thread);
    for (number, thread) in threads.enumerate().collect::<Vec<_>>() {
        let joined = tokio::task::spawn_blocking(move || thread.join().is_ok());
        let outcome = timeout(Duration::from_secs(60), joined).await;
        if !matches!(outcome, Ok(Ok(true))) {
            let text = format!("process {number} did not end, or panicked");
            log.read().remains.push(text);
        }
    }
}

/// No key, no place in a queue, and a free lock.
pub(crate) async fn nothing_is_left(world: &impl World, network: &Network, log: &Log) {
    let begun = Instant::now();
    let mut remains = what_is_left(world).await;
    while !remains.is_empty() && begun.elapsed() < LIMIT {
        sleep(Duration::from_millis(100)).await;
        remains = what_is_left(world).await;
    }
    for key in KEYS {
        if let Err(text) = newcomer_gets(world, network, key).await {
            remains.push(text);
        }
    }
    log.read().remains.extend(remains);
}

async fn what_is_left(world: &impl World) -> Vec<String> {
    let mut remains = Vec::new();
    for master in world.masters().await {
        let mut admin = world.servers()[master].admin().await;
        let keys: Vec<String> = admin.run("KEYS *").await;
        remains.extend(
            keys.into_iter()
                .map(|key| format!("`{key}` is still held at server {master}")),
        );
        let (waiters, watches) = (admin.gauge("waiters").await, admin.gauge("watches").await);
        if waiters + watches > 0 {
            remains.push(format!(
                "server {master} still has {waiters} places in queues and {watches} watches"
            ));
        }
    }
    remains
}

async fn newcomer_gets(
    world: &impl World,
    network: &Network,
    key: &'static str,
) -> Result<(), String> {
    let door = world.address(network, 0).connect().await;
    let door = door.map_err(|error| format!("a new client cannot connect: {error}"))?;
    let wish = Wish {
        key,
        mode: Mode::Exclusive,
        lease: Duration::from_secs(2),
        terms: Terms::new().lease(Duration::from_secs(2)).unwrap(),
        waiting: Waiting::AtMost(Duration::from_secs(5)),
    };
    match door.ask(wish, None).await {
        Ok(Some(held)) => held
            .release()
            .await
            .map_err(|error| format!("a new client cannot release `{key}`: {error}")),
        Ok(None) => Err(format!("a new client does not get `{key}`")),
        Err(error) => Err(format!("a new client does not get `{key}`: {error}")),
    }
}
