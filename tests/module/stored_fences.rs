//! Fences that are stored with a lock. Any user who may write the key can have set them.

use std::time::{SystemTime, UNIX_EPOCH};

use rlock_testkit::Server;
use rlock_testkit::client::Client;

const HOUR_USEC: i64 = 3_600_000_000;
/// The first number that a client may not be able to store exactly.
const TOO_LARGE: i64 = 1 << 53;

fn clock_usec() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.ok()
        .and_then(|now| i64::try_from(now.as_micros()).ok())
        .expect("the clock is past 1970")
}

/// A connection of a user who may write only certain keys.
pub(crate) fn somebody(server: &Server) -> Client {
    server.ask(
        "ACL SETUSER eve on >x ~eve:* resetchannels -@all +hset +del +pexpire +rlock.renew \
         +rlock.acquire +rlock.macquire +rlock.release",
    );
    let eve = server.client();
    assert_eq!(eve.ask("AUTH eve x"), "OK");
    eve
}

fn store(eve: &Client, fence: i64, shared: bool) {
    eve.ask("DEL eve:1");
    eve.ask(&format!("HSET eve:1 e 1 rlock:fence {fence}"));
    if shared {
        let terms = format!("{} {fence} 1", clock_usec() / 1000 + 60_000);
        eve.call(&[
            "HSET",
            "eve:1",
            "rlock:mode",
            "shared",
            "rlock:holder:e",
            &terms,
        ]);
    }
    eve.ask("PEXPIRE eve:1 60000");
}

#[test]
fn stored_fence_is_below_all_that_follow_in_its_key_up_to_an_hour_ahead() {
    let server = Server::start();
    let (a, eve) = (server.client(), somebody(&server));
    for ahead in [HOUR_USEC / 2, 2 * HOUR_USEC] {
        for shared in [false, true] {
            let fence = clock_usec() + ahead;
            store(&eve, fence, shared);
            assert_eq!(eve.number("RLOCK.RENEW eve:1 e 60000"), fence);
            eve.ask("DEL eve:1");
            let next = a.number("RLOCK.ACQUIRE eve:1 owner-a 60000");
            assert!(
                next > fence.min(clock_usec() + HOUR_USEC * 59 / 60),
                "{next}"
            );
            assert!(next < clock_usec() + HOUR_USEC * 61 / 60, "{next}");
            assert_eq!(a.ask("RLOCK.RELEASE eve:1 owner-a"), "0");
        }
    }
}

/// For a shared lock it may be smaller than the holders' fences.
#[test]
fn next_shared_holder_is_above_all_others_whatever_is_stored() {
    let server = Server::start();
    let (a, eve) = (server.client(), somebody(&server));
    let fence = clock_usec() + HOUR_USEC / 2;
    store(&eve, fence, true);
    eve.ask("HSET eve:1 rlock:fence 1");
    assert!(a.number("RLOCK.ACQUIRE eve:1 owner-a 60000 SHARED") > fence);
}

#[test]
fn number_out_of_range_is_not_a_fence() {
    let server = Server::start();
    let eve = somebody(&server);
    for number in [0, TOO_LARGE, TOO_LARGE + 1, i64::MAX] {
        store(&eve, number, false);
        let fence = eve.number("RLOCK.RENEW eve:1 e 60000");
        assert!(
            (1..TOO_LARGE).contains(&fence) && fence != number,
            "{fence}"
        );
        assert_eq!(eve.number("RLOCK.RENEW eve:1 e 60000"), fence);
    }
}
