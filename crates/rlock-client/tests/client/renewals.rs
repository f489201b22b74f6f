//! Many holds of one client: their renewals are even, few at a time, and do
//! not wait for each other.

use std::time::{Duration, Instant};

use rlock_client::{Client, Guard, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};

/// Takes `count` locks as fast as that goes, as `terms` has it.
async fn hold_many(client: &Client, name: &str, count: usize, terms: Terms) -> Vec<Guard> {
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..count {
        let mutex = client.mutex(format!("{name}{number}")).with(terms);
        calls.spawn(async move { mutex.lock().await.unwrap() });
    }
    calls.join_all().await
}

fn are_valid(guards: &[Guard]) -> bool {
    guards.iter().all(Guard::is_valid)
}

/// The keys of the renewals among the bytes that a client sent, in order.
fn renewed(sent: &[u8]) -> Vec<String> {
    let sent = String::from_utf8_lossy(sent).into_owned();
    let words: Vec<_> = sent.split("\r\n").collect();
    let names = words.windows(3).filter(|words| words[0] == "RLOCK.RENEW");
    names.map(|words| words[2].to_owned()).collect()
}

#[test]
fn renewals_of_holds_taken_together_are_even_and_few_at_a_time() {
    on_a_calm_machine(async || {
        const HOLDS: usize = 2000;
        const LEASE: Duration = Duration::from_secs(6);
        const SLICE: Duration = Duration::from_millis(200);
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let client = Client::connect(&proxy.url()).await.unwrap();
        let mut admin = server.admin().await;
        let guards = hold_many(&client, "k", HOLDS, Terms::new().lease(LEASE).unwrap()).await;
        // The first round is as even as those after it, once it has begun.
        eventually("the first renewal", async || {
            admin.gauge("renewals").await > 0
        })
        .await;
        proxy.forget();
        let (begun, mut before) = (Instant::now(), admin.gauge("renewals").await);
        let (first, mut slices) = (before, Vec::new());
        while begun.elapsed() < 2 * LEASE / 3 {
            tokio::time::sleep(SLICE).await;
            let now = admin.gauge("renewals").await;
            slices.push(now - before);
            before = now;
        }
        let rate = (before - first) as f64 / begun.elapsed().as_secs_f64();
        let expected = HOLDS as f64 / (LEASE / 3).as_secs_f64();
        assert!(
            rate > 0.8 * expected && rate < 1.2 * expected,
            "{rate} a second instead of {expected}"
        );
        let even = expected * SLICE.as_secs_f64();
        let most = slices.iter().max().copied().unwrap() as f64;
        assert!(most < 2.5 * even, "{slices:?}, {even} would be even");
        // One more for each that was late.
        let late = usize::try_from(client.metrics().late_renewals).unwrap();
        assert!(proxy.most_renewals() <= HOLDS.div_ceil(500) + late);
        assert!(are_valid(&guards));
    });
}

#[test]
fn after_a_new_connection_bound_holds_come_first_and_few_at_a_time() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let client = Client::connect(&proxy.url()).await.unwrap();
        let mut admin = server.admin().await;
        let (free, bound) = (1000, 50);
        let grace = Duration::from_secs(5);
        let unbound = hold_many(&client, "free", free, Terms::new()).await;
        let guards = hold_many(&client, "bound", bound, Terms::new().bound(grace).unwrap()).await;
        proxy.forget();
        let renewals = admin.gauge("renewals").await;
        admin.kill_lock_clients().await;
        eventually("all are renewed", async || {
            admin.gauge("renewals").await >= renewals + (free + bound) as u64
        })
        .await;
        assert!(are_valid(&guards) && are_valid(&unbound));
        assert!(proxy.most_renewals() <= (free + bound).div_ceil(500));
        let keys = renewed(&proxy.requests());
        // Those that are under way at the same time may pass each other.
        let last = keys
            .iter()
            .take(free)
            .rposition(|key| key.starts_with("bound"));
        assert!(
            last.unwrap() < bound + 10,
            "{last:?}: {:?}",
            &keys[..2 * bound]
        );
        assert!(keys.len() <= free + bound + 20, "once each: {}", keys.len());
    });
}

#[test]
fn renewals_that_fail_do_not_delay_the_others() {
    on_a_calm_machine(async || {
        const LEASE: Duration = Duration::from_secs(2);
        let server = Server::start().await;
        let mut admin = server.admin().await;
        let rules = "on >secret ~* &* -@all +@all";
        let _: () = admin.run(&format!("ACL SETUSER locker {rules}")).await;
        let url = format!("redis://locker:secret@127.0.0.1:{}/", server.port());
        let client = Client::connect(&url).await.unwrap();
        let good = hold_many(&client, "good", 300, Terms::new().lease(LEASE).unwrap()).await;
        let bad = hold_many(&client, "bad", 300, Terms::new().lease(LEASE).unwrap()).await;
        let wrong = hold_many(&client, "wrong", 20, Terms::new().lease(LEASE).unwrap()).await;
        let rules = "resetkeys ~good* ~wrong*";
        let _: () = admin.run(&format!("ACL SETUSER locker {rules}")).await;
        for number in 0..20 {
            let _: () = admin.run(&format!("SET wrong{number} value")).await;
        }
        let begun = Instant::now();
        eventually("the bad ones are lost", async || {
            [&bad, &wrong]
                .into_iter()
                .flatten()
                .all(|guard| !guard.is_valid())
        })
        .await;
        while begun.elapsed() < 3 * LEASE {
            assert!(are_valid(&good));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// One renewal at a time would be 20 a second; 300 a second are needed.
#[test]
fn a_slow_network_lets_more_renewals_be_under_way_rather_than_lose_holds() {
    on_a_calm_machine(async || {
        const LEASE: Duration = Duration::from_millis(1500);
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let client = Client::connect(&proxy.url()).await.unwrap();
        let guards = hold_many(&client, "k", 150, Terms::new().lease(LEASE).unwrap()).await;
        proxy.set(Weather::Slow(Duration::from_millis(50)));
        let begun = Instant::now();
        while begun.elapsed() < 3 * LEASE {
            assert!(are_valid(&guards), "after {:?}", begun.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn a_lock_that_is_held_for_long_costs_three_renewals_a_lease() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let (client, mut admin) = (server.client().await, server.admin().await);
        let lease = Duration::from_millis(900);
        let mutex = client.mutex("k").with(Terms::new().lease(lease).unwrap());
        let guard = mutex.lock().await.unwrap();
        assert!(mutex.lock_timeout(4 * lease).await.unwrap().is_none());
        let renewals = admin.gauge("renewals").await;
        assert!((11..=13).contains(&renewals), "{renewals}");
        let wait = tokio::time::timeout(PATIENCE, guard.release()).await;
        wait.unwrap().unwrap();
    });
}

/// One renewal at a time would take 30 s for all of them.
#[test]
fn a_short_lease_is_kept_among_many_at_a_slow_network() {
    on_a_calm_machine(async || {
        let server = Server::start().await;
        let proxy = Proxy::to(server.port()).await;
        let client = Client::connect(&proxy.url()).await.unwrap();
        let long = Duration::from_secs(12);
        let default = hold_many(&client, "default", 300, Terms::new().lease(long).unwrap()).await;
        let lease = Duration::from_secs(2);
        let short = hold_many(&client, "short", 3, Terms::new().lease(lease).unwrap()).await;
        proxy.set(Weather::Slow(Duration::from_millis(100)));
        let begun = Instant::now();
        while begun.elapsed() < 4 * lease {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(
                are_valid(&short),
                "{:?} after {:?}",
                client.metrics(),
                begun.elapsed()
            );
        }
        assert!(are_valid(&default));
        assert!(client.metrics().late_renewals > 0, "there was a queue");
    });
}
