//! Many clients at once. The benchmarks measure the speed.

use rlock_testkit::Server;
use rlock_testkit::client::{Client, eventually, request};

const CROWD: usize = 10_000;

/// Queues `CROWD` requests for `k` that wait by the channel `c`.
fn queue_crowd(client: &Client, wait_ms: u64) {
    let wait = wait_ms.to_string();
    for number in 0..CROWD {
        let owner = format!("owner-{number}");
        let words = [
            "RLOCK.ACQUIRE",
            "k",
            &owner,
            "60000",
            "WAIT",
            &wait,
            "NOTIFY",
            "c",
        ];
        client.send_bytes(&request(&words));
    }
    for _ in 0..CROWD {
        assert_eq!(client.answer(), "WAITING");
    }
}

#[test]
fn ten_thousand_waiters_in_one_queue_leak_no_memory() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    let used = || {
        server
            .info("memory", "used_memory")
            .parse::<i64>()
            .expect("a number")
    };
    let n = server.client();
    let before = used();
    queue_crowd(&n, 0);
    assert_eq!(server.queued("k"), CROWD);
    assert!(
        server.ask("RLOCK.INFO k").matches("waited-ms").count() == 100,
        "the first hundred"
    );
    let full = n.ask("RLOCK.ACQUIRE k owner-late 60000 WAIT 0 NOTIFY c");
    assert!(full.starts_with("QUEUEFULL "), "{full}");
    let during = used();
    assert!(
        during - before < 1024 * CROWD as i64,
        "{} bytes each",
        (during - before) / CROWD as i64
    );
    // The requests are granted one by one, in order.
    a.ask("RLOCK.RELEASE k owner-a");
    for number in 0..100 {
        assert!(
            subscriber
                .message()
                .ends_with(&format!(" owner-{number} k"))
        );
        assert_eq!(a.ask(&format!("RLOCK.RELEASE k owner-{number}")), "0");
    }
    n.close();
    server.await_queued("k", 0);
    assert_eq!(server.counter("watches"), 0);
    eventually("the memory is freed", || {
        used() < before + (during - before) / 4
    });
}

#[test]
fn ten_thousand_waits_that_end_together_are_all_reported() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 600000");
    let n = server.client();
    queue_crowd(&n, 2000);
    // All leases are overdue when the server wakes.
    a.ask("DEBUG SLEEP 2.1");
    for _ in 0..CROWD {
        assert!(subscriber.message().starts_with("timeout 0 "));
        assert!(server.ask("PING") == "PONG");
    }
    assert_eq!(server.counter("waiters"), 0);
    assert_eq!(server.counter("wait_timeouts"), CROWD as u64);
    assert_eq!(server.ask("HGET k owner-a"), "1");
}

#[test]
fn ten_thousand_leases_that_end_together_are_all_reported() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let n = server.client();
    for number in 0..CROWD {
        n.send(&format!("RLOCK.ACQUIRE k{number} owner-n 2000 NOTIFY c"));
    }
    (0..CROWD).for_each(|_| _ = n.fence());
    server.ask("DEBUG SLEEP 2.1");
    for _ in 0..CROWD {
        assert!(subscriber.message().starts_with("lost "));
    }
    assert_eq!(server.counter("watches"), 0);
    eventually("the keys are gone", || server.ask("DBSIZE") == "0");
}

#[test]
fn hundreds_of_blocked_clients_are_served_in_order() {
    let server = Server::start();
    let a = server.client();
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    let waiters = (0..300)
        .map(|number| {
            let client = server.client();
            client.send(&format!("RLOCK.ACQUIRE k owner-{number} 60000 WAIT 0"));
            server.await_queued("k", number + 1);
            client
        })
        .collect::<Vec<_>>();
    a.ask("RLOCK.RELEASE k owner-a");
    let mut last = 0;
    for (number, waiter) in waiters.iter().enumerate() {
        let fence = waiter.fence();
        assert!(fence > last);
        last = fence;
        assert_eq!(waiter.ask(&format!("RLOCK.RELEASE k owner-{number}")), "0");
    }
    assert_eq!(server.ask("EXISTS k"), "0");
    assert_eq!(server.counter("handoffs"), 300);
}

#[test]
fn one_command_grants_few_of_many_requests_for_many_keys() {
    const REQUESTS: usize = 8;
    const KEYS: usize = 300;
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let (a, n) = (server.client(), server.client());
    let firsts: Vec<_> = (0..REQUESTS).map(|it| format!("first{it}")).collect();
    let firsts = firsts.join(" ");
    a.number(&format!("RLOCK.MACQUIRE owner-a 60000 {REQUESTS} {firsts}"));
    for request in 0..REQUESTS {
        let others: Vec<_> = (1..KEYS).map(|it| format!("{request}-{it}")).collect();
        let keys = format!("{KEYS} first{request} {}", others.join(" "));
        let asked = format!("RLOCK.MACQUIRE owner-{request} 60000 {keys} WAIT 0 NOTIFY c");
        assert_eq!(n.ask(&asked), "WAITING");
    }
    // The transaction sees what happened during the release.
    let release = format!("RLOCK.MRELEASE owner-a {REQUESTS} {firsts}");
    for line in ["MULTI", &release, "INFO rlock"] {
        a.ask(line);
    }
    let done = a.ask("EXEC");
    assert!(done.contains("rlock_handoffs:1\r"), "{done}");
    for request in 0..REQUESTS {
        assert!(
            subscriber
                .message()
                .ends_with(&format!(" owner-{request} first{request}"))
        );
    }
    assert_eq!(server.counter("handoffs"), REQUESTS as u64);
    assert_eq!(server.counter("waiters"), 0);
}

#[test]
fn server_idles_while_a_long_lease_runs() {
    let server = Server::start();
    let (a, b) = (server.client(), server.client());
    a.number("RLOCK.ACQUIRE k owner-a 3600000");
    b.send("RLOCK.ACQUIRE k owner-b 3600000 WAIT 0");
    server.await_queued("k", 1);
    // Once a near deadline has passed, the next deadline is far ahead: some servers spin in this case.
    assert_eq!(server.ask("RLOCK.ACQUIRE k owner-c 1000 WAIT 20"), "nil");
    let seconds = |field| server.info("cpu", field).parse::<f64>().expect("a number");
    let used = || seconds("used_cpu_user_main_thread") + seconds("used_cpu_sys_main_thread");
    let before = used();
    let start = std::time::Instant::now();
    // This sleep is the measured interval.
    eventually("a second passes", || start.elapsed().as_millis() >= 1000);
    let spent = used() - before;
    assert!(spent < 0.2, "{spent} s of processor time in a second");
}
