//! Locks on several servers, some of which fail.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rlock_client::{Client, Error, Loss, Quorum, QuorumMutex, Terms};

use crate::calm::on_a_calm_machine;
use crate::connects::Connects;
use crate::quorum::{GRACE_MS, Members, all_hold, mutex, with_grace};
use rlock_testkit::asynchronous::{PATIENCE, eventually, url};
use rlock_testkit::proxy::{Proxy, Weather};

type Seen = Arc<Mutex<Vec<(Instant, Instant, u64)>>>;

/// Has contenders hold the lock in turn; each time it notes when, and under
/// which fence.
async fn contend(mutex: QuorumMutex, rounds: usize, seen: Seen) {
    for _ in 0..rounds {
        let guard = mutex.lock().await.unwrap();
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_millis(2)).await;
        if guard.is_valid() {
            let entry = (begun, Instant::now(), guard.fence());
            seen.lock().unwrap().push(entry);
        }
        drop(guard.release().await);
    }
}

fn check(seen: &Seen) {
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    for pair in seen.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two held at once");
        assert!(pair[0].2 < pair[1].2, "fences rise in the order of holding");
    }
}

fn brief() -> rlock_client::QuorumBuilder {
    let members = Client::builder().response_timeout(Duration::from_millis(400));
    Quorum::builder().members(members)
}

#[tokio::test]
async fn contenders_are_all_served_though_any_one_member_is_killed_midway() {
    for killed in 0..3 {
        let members = Members::start(3).await;
        let seen = Seen::default();
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let quorum = brief().connect(members.urls()).await.unwrap();
            let mutex = mutex(&quorum);
            tasks.push(tokio::spawn(contend(mutex, 20, Arc::clone(&seen))));
        }
        eventually("some have held it", async || {
            seen.lock().unwrap().len() > 40
        })
        .await;
        members.0[killed].signal("-KILL");
        for task in tasks {
            tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
        }
        assert!(
            seen.lock().unwrap().len() >= 158,
            "{:?}",
            seen.lock().unwrap().len()
        );
        check(&seen);
    }
}

#[tokio::test]
async fn clients_that_see_different_members_exclude_each_other() {
    let members = Members::start(3).await;
    let seen = Seen::default();
    let (mut tasks, mut proxies) = (Vec::new(), Vec::new());
    for cut in 0..3 {
        let mut urls = Vec::new();
        for (number, server) in members.0.iter().enumerate() {
            let proxy = Proxy::to(server.port()).await;
            urls.push(proxy.url());
            proxies.push((number == cut, proxy));
        }
        let quorum = brief().connect(urls).await.unwrap();
        let mutex = mutex(&quorum);
        tasks.push(tokio::spawn(contend(mutex, 30, Arc::clone(&seen))));
    }
    eventually("some have held it", async || seen.lock().unwrap().len() > 9).await;
    for (_, proxy) in proxies.iter().filter(|(is_cut, _)| *is_cut) {
        proxy.set(Weather::Swallow);
    }
    for task in tasks {
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
    }
    check(&seen);
}

#[test]
fn a_holder_keeps_its_lock_while_a_minority_stands_still() {
    on_a_calm_machine(async || {
        let members = Members::start(3).await;
        let quorum = brief().connect(members.urls()).await.unwrap();
        let guard = mutex(&quorum).lock().await.unwrap();
        members.0[1].signal("-STOP");
        tokio::time::sleep(Duration::from_millis(3 * GRACE_MS)).await;
        assert!(guard.is_valid());
        assert_eq!(guard.members().len(), 2);
        members.0[1].signal("-CONT");
        eventually("it takes part again", async || guard.members().len() == 3).await;
        guard.release().await.unwrap();
    });
}

#[test]
fn the_loss_of_a_majority_is_told_in_time() {
    on_a_calm_machine(async || {
        let members = Members::start(3).await;
        let quorum = brief().connect(members.urls()).await.unwrap();
        let guard = mutex(&quorum).lock().await.unwrap();
        let loss = guard.loss();
        let begun = Instant::now();
        for server in &members.0[..2] {
            server.signal("-STOP");
        }
        assert_eq!(
            tokio::time::timeout(PATIENCE, loss).await.unwrap(),
            Loss::LeaseEnded
        );
        assert!(begun.elapsed() < Duration::from_millis(GRACE_MS));
        assert!(!guard.is_valid() && guard.remaining().is_zero());
        for server in &members.0[..2] {
            server.signal("-CONT");
        }
        drop(guard);
        members.untouched("k").await;
    });
}

/// Its connections may have ended long ago, and it sees that only when it runs again.
#[tokio::test]
async fn a_stopped_holder_of_a_bound_lock_is_not_sure_of_it_after_its_grace() {
    let members = Members::start(3).await;
    let grace = Duration::from_secs(1);
    let bound = Terms::new().bound(grace).unwrap();
    let mutex = members.lasting().await.mutex("k").with(bound);
    let guard = mutex.lock().await.unwrap();
    all_hold(&guard).await;
    // Nothing of the client runs meanwhile.
    std::thread::sleep(grace);
    assert!(!guard.is_valid() && guard.remaining().is_zero());
}

#[tokio::test]
async fn a_member_that_was_flushed_is_taken_again_and_two_lose_the_lock() {
    let members = Members::start(3).await;
    let mutex = members.lasting().await.mutex("k");
    let guard = mutex.lock().await.unwrap();
    all_hold(&guard).await;
    let () = members.0[0].admin().await.run("DEL k").await;
    eventually("it is held again", async || {
        let is_held: bool = members.0[0].admin().await.run("EXISTS k").await;
        is_held && guard.members().len() == 3
    })
    .await;
    assert!(guard.is_valid());
    let info = members.0[0].client().await.mutex("k").info().await.unwrap();
    assert!(info.fence >= Some(guard.fence()));
    let loss = guard.loss();
    let mut admins = (members.0[0].admin().await, members.0[1].admin().await);
    let ((), ()) = tokio::join!(admins.0.run("DEL k"), admins.1.run("DEL k"));
    // Unless the first was taken again before the second was lost.
    let told = tokio::time::timeout(Duration::from_millis(GRACE_MS), loss).await;
    assert!(matches!(told, Ok(Loss::EndedByServer) | Err(_)), "{told:?}");
}

#[tokio::test]
async fn the_release_of_a_quorum_lock_says_what_became_of_it() {
    let mut members = Members::start(3).await;
    let settings = Client::builder().retry_timeout(Duration::from_millis(300));
    let builder = || Quorum::builder().any_grace();
    let quorum = builder().members(settings);
    let quorum = quorum.connect(members.urls()).await.unwrap();
    let held = async || {
        let guard = quorum.mutex("k").lock().await.unwrap();
        all_hold(&guard).await;
        guard
    };
    // One may be stopped, two may not.
    for (stopped, is_released) in [(1, true), (2, false)] {
        let guard = held().await;
        let (stopped, _) = members.0.split_at(stopped);
        stopped.iter().for_each(|server| server.signal("-STOP"));
        let released = guard.release().await;
        stopped.iter().for_each(|server| server.signal("-CONT"));
        assert_eq!(released.is_ok(), is_released, "{released:?}");
        let is_silent = matches!(released, Ok(()) | Err(Error::Unavailable { .. }));
        assert!(is_silent, "{released:?}");
        members.untouched("k").await;
    }
    // Two have ended it, and it is released before they have told that.
    let proxies = members.0.iter().map(|server| Proxy::to(server.port()));
    let proxies = futures_util::future::join_all(proxies).await;
    let late = builder().connect(proxies.iter().map(Proxy::url)).await;
    let guard = late.unwrap().mutex("k").lock().await.unwrap();
    all_hold(&guard).await;
    proxies.iter().for_each(|proxy| proxy.set(Weather::Fog));
    for server in &members.0[..2] {
        let _: u64 = server.admin().await.run("RLOCK.FORCE k").await;
    }
    let told = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        proxies.iter().for_each(|proxy| proxy.set(Weather::Fair));
    };
    let (released, ()) = tokio::join!(guard.release(), told);
    assert!(matches!(released, Err(Error::Lost(_))), "{released:?}");
    members.untouched("k").await;
    // Nobody is there.
    let guard = held().await;
    members.0.iter_mut().for_each(|server| server.kill());
    let released = guard.release().await;
    assert!(
        matches!(released, Err(Error::Unavailable { .. })),
        "{released:?}"
    );
}

#[tokio::test]
async fn a_refused_extension_keeps_no_member_from_being_taken_again() {
    let members = Members::start(3).await;
    let mutex = members.lasting().await.mutex("k");
    let guard = mutex.lock().await.unwrap();
    all_hold(&guard).await;
    let day = Duration::from_secs(25 * 60 * 60);
    let refused = guard.extend(day).await.unwrap_err();
    assert!(matches!(refused, Error::Refused(_)), "{refused}");
    let mut admin = members.0[0].admin().await;
    let () = admin.run("DEL k").await;
    eventually("it is taken again", async || {
        admin.run::<u64>("EXISTS k").await == 1
    })
    .await;
    guard.release().await.unwrap();
}

/// All stall for longer than a member is waited for, and then go on.
#[tokio::test]
async fn a_short_stall_of_all_members_is_over_when_they_go_on() {
    let members = Members::start(3).await;
    // The default response limit is 5 s.
    let quorum = members.quorum().await;
    let mutex = mutex(&quorum);
    mutex.lock().await.unwrap().release().await.unwrap();
    for server in &members.0 {
        server.signal("-STOP");
    }
    let locking = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let begun = Instant::now();
    for server in &members.0 {
        server.signal("-CONT");
    }
    locking.await.unwrap().unwrap().release().await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
}

/// One may not lock, and another one is unreachable for a moment.
#[tokio::test]
async fn a_wait_goes_on_while_a_majority_may_come_back() {
    let mut members = Members::start(3).await;
    let mut admin = members.0[0].admin().await;
    let () = admin.run("ACL SETUSER default -rlock.acquire").await;
    let quorum = brief().connect(members.urls()).await.unwrap();
    mutex(&quorum)
        .lock()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    members.0[2].kill();
    let locking = tokio::spawn({
        let mutex = mutex(&quorum);
        async move { mutex.lock().await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!locking.is_finished());
    members.0[2].restart().await;
    let guard = tokio::time::timeout(PATIENCE, locking)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    guard.release().await.unwrap();
    let mut admin = members.0[1].admin().await;
    let () = admin.run("ACL SETUSER default -rlock.acquire").await;
    let denied = mutex(&quorum).lock().await.unwrap_err();
    assert!(matches!(denied, Error::Denied(_)), "{denied}");
}

/// Each is the gate of some of the keys.
#[tokio::test]
async fn a_member_without_room_for_waiters_is_not_waited_at() {
    let members = Members::start(3).await;
    let mut admin = members.0[0].admin().await;
    let () = admin.run("CONFIG SET rlock.max-waiters 1").await;
    let _: u64 = admin.run("RLOCK.ACQUIRE other x 600000").await;
    let _: redis::Value = admin
        .run("RLOCK.ACQUIRE other y 600000 WAIT 600000 NOTIFY nobody")
        .await;
    let (holder, waiter) = (members.quorum().await, members.quorum().await);
    for key in ["a", "b", "c", "d", "e", "f"] {
        let mutex = |quorum: &Quorum| quorum.mutex(key).with(crate::quorum::terms());
        let guard = mutex(&holder).lock().await.unwrap();
        let brief = mutex(&waiter).lock_timeout(Duration::from_millis(50)).await;
        assert!(brief.unwrap().is_none());
        let waits = mutex(&waiter);
        let waiting = tokio::spawn(async move { waits.lock().await });
        guard.release().await.unwrap();
        let waited = tokio::time::timeout(PATIENCE, waiting).await;
        drop(waited.unwrap().unwrap().unwrap());
    }
}

/// A holder may have all members but the gate, which has just restarted.
#[tokio::test]
async fn a_try_that_gets_the_gate_alone_ends_soon() {
    let members = Members::start(3).await;
    for server in &members.0 {
        let _: u64 = server.admin().await.run("RLOCK.ACQUIRE k x 600000").await;
    }
    let mutex = mutex(&members.quorum().await);
    let waits = mutex.clone();
    let waiting = tokio::spawn(async move { waits.lock().await });
    let gate = gate_of(&members, 1).await;
    waiting.abort();
    let _: u64 = members.0[gate].admin().await.run("RLOCK.RELEASE k x").await;
    let begun = Instant::now();
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert!(begun.elapsed() < Duration::from_secs(5), "{begun:?}");
    eventually("it leaves the gate", async || {
        !members.0[gate].admin().await.run::<bool>("EXISTS k").await
    })
    .await;
}

/// The member with that number of waiters.
async fn gate_of(members: &Members, waiters: u64) -> usize {
    let mut gate = None;
    eventually("all wait at the gate", async || {
        for (number, server) in members.0.iter().enumerate() {
            if server.admin().await.gauge("waiters").await == waiters {
                gate = Some(number);
            }
        }
        gate.is_some()
    })
    .await;
    gate.unwrap()
}

/// The gate still stands then, and somebody holds the lock there.
#[tokio::test]
async fn a_wait_that_ends_with_too_few_members_says_so() {
    let members = Members::start(3).await;
    for server in &members.0 {
        let _: u64 = server.admin().await.run("RLOCK.ACQUIRE k x 600000").await;
    }
    let waits = mutex(&members.quorum().await);
    let waiting = tokio::spawn(async move { waits.lock_timeout(Duration::from_secs(3)).await });
    let gate = gate_of(&members, 1).await;
    for (number, server) in members.0.iter().enumerate() {
        if number != gate {
            server.signal("-KILL");
        }
    }
    let ended = waiting.await.unwrap();
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
}

/// Those who wait at a gate that hangs go on at the others.
#[tokio::test]
async fn a_gate_that_hangs_keeps_nobody_waiting_for_long() {
    let members = Members::start(3).await;
    let (holder, waiter) = (members.quorum().await, members.quorum().await);
    let guard = mutex(&holder).lock().await.unwrap();
    let waits = mutex(&waiter);
    let limited = waits.clone();
    let waits = tokio::spawn(async move { drop(waits.lock().await.unwrap()) });
    let limit = Duration::from_secs(8);
    let limited = async move { limited.lock_timeout(limit).await.unwrap().is_some() };
    let limited = tokio::spawn(limited);
    let gate = &members.0[gate_of(&members, 2).await];
    gate.signal("-STOP");
    let begun = Instant::now();
    guard.release().await.unwrap();
    waits.await.unwrap();
    assert!(limited.await.unwrap(), "it was free");
    gate.signal("-CONT");
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn a_member_that_is_down_joins_later() {
    let members = Members::start(2).await;
    let port = rlock_testkit::asynchronous::free_port();
    let urls = [members.urls(), vec![url(port)]].concat();
    let quorum = brief().connect(&urls).await.unwrap();
    let guard = mutex(&quorum).lock().await.unwrap();
    assert_eq!(guard.members().len(), 2);
    let begun = Instant::now();
    let late = with_grace(GRACE_MS).at(port).start_async().await;
    eventually("it takes part", async || guard.members().len() == 3).await;
    assert!(
        begun.elapsed() > Duration::from_millis(GRACE_MS / 2),
        "not within its grace"
    );
    guard.release().await.unwrap();
    drop(late);
}

/// A server grants above the largest fence of a key, as one does whose clock is
/// an hour ahead.
#[tokio::test]
async fn fences_rise_though_the_clocks_of_members_are_an_hour_apart() {
    let members = Members::start(3).await;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let ahead = now.as_micros() + 3_500_000_000;
    let mut admin = members.0[0].admin().await;
    let _: u64 = admin.run("RLOCK.ACQUIRE k o 600").await;
    let raised: u128 = admin
        .run(&format!("RLOCK.RENEW k o 600 FENCE {ahead}"))
        .await;
    assert_eq!(raised, ahead);
    let _: u64 = admin.run("RLOCK.RELEASE k o").await;
    let quorum = brief().connect(members.urls()).await.unwrap();
    let mutex = mutex(&quorum);
    let mut fences = Vec::new();
    // The first may be granted by the two others.
    while fences
        .last()
        .is_none_or(|fence| u128::from(*fence) <= ahead)
    {
        assert!(fences.len() < 100, "{fences:?}");
        let guard = mutex.lock().await.unwrap();
        fences.push(guard.fence());
        guard.release().await.unwrap();
    }
    for away in [0, 1, 2, 0] {
        members.0[away].signal("-STOP");
        let guard = tokio::time::timeout(PATIENCE, mutex.lock())
            .await
            .unwrap()
            .unwrap();
        fences.push(guard.fence());
        guard.release().await.unwrap();
        members.0[away].signal("-CONT");
        eventually("it answers again", async || {
            members.0[away].admin().await.gauge("grants").await > 0
        })
        .await;
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

/// The gate is another member for each key, the one that is ahead too.
#[tokio::test]
async fn a_member_whose_clock_is_hours_ahead_keeps_nobody_from_a_lock() {
    let mut members = Members::start(3).await;
    let ahead = &mut members.0[0];
    let (library, offset) = (ahead.file("clock.so"), ahead.file("offset"));
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/module/wall_clock.c"
    );
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library);
    assert!(compiler.args([source, "-ldl"]).status().unwrap().success());
    std::fs::write(&offset, i64::to_ne_bytes(2 * 3_600_000_000)).unwrap();
    ahead.kill();
    ahead.set_environment("LD_PRELOAD", library.as_os_str());
    ahead.set_environment("RLOCK_CLOCK", offset.as_os_str());
    ahead.restart().await;
    let mut admin = ahead.admin().await;
    eventually("it grants", async || {
        admin.gauge("grace_left_ms").await == 0
    })
    .await;
    let (quorum, other) = (members.lasting().await, members.lasting().await);
    let mut fence = 0;
    for key in ["a", "b", "c", "d", "e", "f"] {
        let guard = quorum.mutex(key).lock().await.unwrap();
        assert!(guard.is_valid() && guard.fence() > fence);
        fence = guard.fence();
        all_hold(&guard).await;
        assert!(other.mutex(key).try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn of_five_members_two_may_die() {
    let mut members = Members::start(5).await;
    let seen = Seen::default();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let quorum = brief().connect(members.urls()).await.unwrap();
        let mutex = mutex(&quorum);
        tasks.push(tokio::spawn(contend(mutex, 15, Arc::clone(&seen))));
    }
    for (killed, held) in [(1, 10), (3, 25)] {
        eventually("some have held it", async || {
            seen.lock().unwrap().len() > held
        })
        .await;
        members.0[killed].kill();
    }
    for task in tasks {
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
    }
    check(&seen);
}

#[tokio::test]
async fn a_member_that_restarts_empty_while_others_contend_grants_nothing_twice() {
    let mut members = Members::start(3).await;
    let seen = Seen::default();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let quorum = brief().connect(members.urls()).await.unwrap();
        let mutex = mutex(&quorum);
        tasks.push(tokio::spawn(contend(mutex, 150, Arc::clone(&seen))));
    }
    for (restarted, held) in [(0, 20), (1, 120), (2, 220)] {
        eventually("some have held it", async || {
            seen.lock().unwrap().len() > held
        })
        .await;
        members.0[restarted].kill();
        members.0[restarted].restart().await;
        let mut admin = members.0[restarted].admin().await;
        eventually("it grants again", async || admin.gauge("grants").await > 0).await;
    }
    for task in tasks {
        tokio::time::timeout(3 * PATIENCE, task)
            .await
            .unwrap()
            .unwrap();
    }
    check(&seen);
}
