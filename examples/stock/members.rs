//! The servers that hold the lock together, and the death of one of them.

use std::time::Duration;

use rlock_client::Client;
use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;
use crate::buyers::LOCK;

/// Kills the member in whose queue the buyers stand, once `is_time`.
pub(crate) async fn kill_the_gate(members: &[String], is_time: impl Fn() -> bool) -> Outcome<()> {
    let patience = Duration::from_secs(30);
    let killing = async {
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if !is_time() {
                continue;
            }
            for member in members {
                let client = Client::connect(member).await?;
                if client.mutex(LOCK).info().await?.queued > 0 {
                    return kill(member).await;
                }
            }
        }
    };
    tokio::time::timeout(patience, killing).await?
}

async fn kill(member: &str) -> Outcome<()> {
    let mut redis = redis::Client::open(member)?
        .get_multiplexed_async_connection()
        .await?;
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query_async(&mut redis)
        .await?;
    let process = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    let process = process.and_then(|number| number.trim().parse().ok());
    let process = process.and_then(Pid::from_raw);
    Ok(kill_process(
        process.ok_or("the server names no process")?,
        Signal::KILL,
    )?)
}
