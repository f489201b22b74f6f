//! A holder whose process is stopped for longer than its lease.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rlock_client::Terms;

use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server};
use rlock_testkit::signal;

const URL: &str = "RLOCK_TEST_HOLDER_URL";
const LEASE: Duration = Duration::from_millis(500);

/// Not a test of its own: what the holder's process runs. It says what the
/// guard says, whenever it is asked by a line.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn holder_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let client = rlock_client::Client::connect(&url).await.unwrap();
    let mutex = client.mutex("k").with(Terms::new().lease(LEASE).unwrap());
    let guard = mutex.lock().await.unwrap();
    println!("fence {}", guard.fence());
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "valid" => println!("valid {}", guard.is_valid()),
            _ => break,
        }
    }
    println!("release {}", guard.release().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_stopped_past_its_lease_finds_its_guard_lost() {
    let server = Server::start().await;
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "stopped::holder_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(URL, server.url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut questions = holder.stdin.take().unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let mut answer = |word: &str| {
        let mut values = lines
            .by_ref()
            .filter_map(|line| line.split_once(word).map(|found| found.1.trim().to_owned()));
        values.next().unwrap()
    };
    let fence: u64 = answer("fence ").parse().unwrap();
    writeln!(questions, "valid").unwrap();
    assert_eq!(answer("valid "), "true");

    signal::send(holder.id(), "STOP");
    let stopped = Instant::now();
    let client = server.client().await;
    let next = client
        .mutex("k")
        .lock_timeout(PATIENCE)
        .await
        .unwrap()
        .unwrap();
    assert!(next.fence() > fence);
    assert!(
        stopped.elapsed() >= LEASE / 2,
        "not before the lease was over"
    );
    signal::send(holder.id(), "CONT");

    writeln!(questions, "valid").unwrap();
    assert_eq!(answer("valid "), "false");
    writeln!(questions, "end").unwrap();
    assert_eq!(answer("release "), "false");
    holder.wait().unwrap();
    assert!(next.is_valid() && client.mutex("k").is_held_by(next.owner()).await.unwrap());
    next.release().await.unwrap();
}
