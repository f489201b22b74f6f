//! Waits that could never end are refused, with an error that names the cycle; other waits are not.

use redis::Value;

use rlock_testkit::Server;
use rlock_testkit::client::{Client, eventually, text};

/// A client for each owner that takes part.
fn clients<const N: usize>(server: &Server) -> [Client; N] {
    std::array::from_fn(|_| server.client())
}

/// Sends a request that must wait, and returns once it waits.
#[track_caller]
fn block(server: &Server, client: &Client, line: &str) {
    let before = server.counter("waiters");
    client.send(line);
    eventually(&format!("{line} waits"), || {
        server.counter("waiters") > before
    });
}

#[track_caller]
fn refused(client: &Client, line: &str, error: &str) {
    assert_eq!(client.ask(line), error, "{line}");
}

#[test]
fn names_are_quoted_so_that_the_error_stays_one_line() {
    let server = Server::start();
    let [a, b] = clients(&server);
    let (key, owner): (&[u8], &[u8]) = (b"k\r\n'\xff", "b\u{fc}rger'".as_bytes());
    let acquire: fn(_, _) -> [&'static [u8]; 4] =
        |key, owner| [b"RLOCK.ACQUIRE", key, owner, b"60000"];
    assert!(matches!(a.call(&acquire(key, b"owner-a")), Value::Int(_)));
    assert!(matches!(b.call(&acquire(b"k2", owner)), Value::Int(_)));
    block(&server, &a, "RLOCK.ACQUIRE k2 owner-a 60000 WAIT 0");
    let wait: [&[u8]; 2] = [b"WAIT", b"0"];
    let error = text(&b.call(&[&acquire(key, owner)[..], &wait].concat()));
    assert!(
        error.starts_with("DEADLOCK waiting for key 'k\\r\\n"),
        "{error}"
    );
    assert!(error.ends_with("'owner-a'"), "{error}");
    assert_eq!(b.ask("PING"), "PONG");
}

#[test]
fn third_of_three_owners_is_refused_across_databases_and_kinds() {
    let server = Server::start();
    let [a, b, c, d] = clients(&server);
    d.ask("SELECT 1");
    a.number("RLOCK.MACQUIRE owner-a 60000 2 k1 k2");
    b.number("RLOCK.ACQUIRE k3 owner-b 60000 SHARED LIMIT 2 PERMITS 2");
    d.number("RLOCK.ACQUIRE k1 owner-c 60000");
    // Owner b waits in another database.
    let other = server.client();
    other.ask("SELECT 1");
    block(
        &server,
        &a,
        "RLOCK.ACQUIRE k3 owner-a 60000 SHARED LIMIT 2 WAIT 0",
    );
    block(&server, &other, "RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0");
    let cycle = "would close a cycle of owners: 'owner-c' 'owner-a' 'owner-b'";
    refused(
        &c,
        "RLOCK.ACQUIRE k2 owner-c 60000 WAIT 0",
        &format!("DEADLOCK waiting for key 'k2' {cycle}"),
    );
    let error = c.ask("RLOCK.MACQUIRE owner-c 60000 3 free k1 k2 WAIT 0");
    assert!(
        error.starts_with("DEADLOCK waiting for key '") && error.ends_with(cycle),
        "{error}"
    );
    // A free lock is not a part of the cycle, and the request has taken nothing.
    assert_eq!(server.ask("EXISTS free"), "0");
    assert_eq!(server.queued("free") + server.queued("k2"), 0);
    d.ask("RLOCK.RELEASE k1 owner-c");
    other.fence();
    block(&server, &c, "RLOCK.ACQUIRE k2 owner-c 60000 WAIT 0");
}

#[test]
fn long_chain_of_owners_is_followed_to_its_end() {
    let server = Server::start();
    let mut subscriber = server.listen(&["c"]);
    let a = server.client();
    let length = 500;
    for number in 0..length {
        a.number(&format!("RLOCK.ACQUIRE k{number} owner-{number} 60000"));
    }
    for number in 1..length {
        let line = format!(
            "RLOCK.ACQUIRE k{} owner-{number} 60000 WAIT 0 NOTIFY c",
            number - 1
        );
        assert_eq!(a.ask(&line), "WAITING");
    }
    let last = length - 1;
    let error = a.ask(&format!(
        "RLOCK.ACQUIRE k{last} owner-0 60000 WAIT 0 NOTIFY c"
    ));
    assert!(error.starts_with("DEADLOCK "), "{error}");
    assert!(error.len() < 5000, "{} bytes", error.len());
    assert_eq!(
        a.ask(&format!(
            "RLOCK.ACQUIRE k{last} newcomer 60000 WAIT 0 NOTIFY c"
        )),
        "WAITING"
    );
    assert_eq!(subscriber.messages(), [""; 0]);
}

/// The server's shortest time to queue one of many requests for `S`, in microseconds. It ends with the first one below
/// the limit, because the machine may be busy.
fn queueing_usec(server: &Server, client: &Client, limit: u64) -> u64 {
    let mut shortest = u64::MAX;
    for _ in 0..200 {
        client.ask("CONFIG RESETSTAT");
        let asked = client.ask("RLOCK.ACQUIRE S asker 60000 WAIT 1 NOTIFY c");
        assert_eq!(asked, "WAITING");
        server.await_queued("S", 0);
        let stats = server.info("commandstats", "cmdstat_rlock.acquire");
        let usec = stats.split(',').find_map(|it| it.strip_prefix("usec="));
        let usec: Option<u64> = usec.and_then(|it| it.parse().ok());
        shortest = shortest.min(usec.expect("a number"));
        if shortest < limit {
            break;
        }
    }
    shortest
}

#[test]
fn deadlock_search_among_thousands_of_waiters_ends_within_a_turn() {
    let server = Server::start();
    let _subscriber = server.listen(&["c"]);
    let a = server.client();
    a.ask("CONFIG SET rlock.deadlock-detection no");
    a.number("RLOCK.ACQUIRE y owner-y 60000");
    for number in 0..9000 {
        a.send(&format!("RLOCK.ACQUIRE S h{number} 60000 SHARED"));
        a.send(&format!("RLOCK.ACQUIRE y h{number} 60000 WAIT 0 NOTIFY c"));
    }
    (0..18_000).for_each(|_| _ = a.reply());
    a.ask("CONFIG SET rlock.deadlock-detection yes");
    let limit = 3000;
    let shortest = queueing_usec(&server, &a, limit);
    assert!(shortest < limit, "{shortest} µs");
}
