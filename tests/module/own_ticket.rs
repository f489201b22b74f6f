//! A holder that is queued for the key that it holds, because its lock was renamed or its database was swapped.

use crate::replication::await_in_step;
use rlock_testkit::client::Client;
use rlock_testkit::{Server, replicated};

/// How an owner that already holds the key gets its next hold.
const CHANGES: [&str; 6] = [
    "RLOCK.RELEASE k owner-a ALL",
    "RLOCK.DOWNGRADE k owner-a",
    "RLOCK.FORCE k",
    "RLOCK.RENEW k owner-a 5",
    "RLOCK.MRELEASE owner-a 1 k",
    "PEXPIRE k 5",
];

/// `owner-a` holds the key and is queued for it.
fn holds_and_waits(server: &Server, held: &str, asked: &str, swaps: bool) -> Client {
    let (a, b) = (server.client(), server.client());
    b.number("RLOCK.ACQUIRE k owner-b 60000");
    if swaps {
        a.ask("SELECT 1");
    }
    let key = if swaps { "k" } else { "k2" };
    a.number(&format!("RLOCK.ACQUIRE {key} owner-a 60000{held}"));
    a.ask("SELECT 0");
    let queue = format!("RLOCK.ACQUIRE k owner-a 60000{asked} WAIT 0 NOTIFY c");
    assert_eq!(a.ask(&queue), "WAITING");
    server
        .client()
        .ask(if swaps { "SWAPDB 0 1" } else { "RENAME k2 k" });
    a
}

#[test]
fn grant_to_an_owner_that_held_the_key_stays() {
    let (primary, replica) = replicated();
    for change in CHANGES {
        for (held, asked) in [
            ("", ""),
            ("", " SHARED"),
            (" SHARED", ""),
            (" SHARED", " SHARED"),
        ] {
            for swaps in [false, true] {
                let what = format!("{change}, held{held}, asked{asked}, swaps {swaps}");
                primary.ask("FLUSHALL");
                let mut subscriber = primary.listen(&["c"]);
                let a = holds_and_waits(&primary, held, asked, swaps);
                a.ask(change);
                // A shared hold that is requested in shared mode may be granted before the change.
                let mut received = subscriber.message();
                while received.starts_with("lost ") {
                    // From the previous round.
                    received = subscriber.message();
                }
                assert!(
                    received.starts_with("grant ") && received.ends_with(" owner-a k"),
                    "{what}: {received}"
                );
                await_in_step(&primary, &replica);
                let fence = received.split(' ').nth(1).unwrap_or_default();
                let renewed = a.ask("RLOCK.RENEW k owner-a 60000");
                // The only shared holder is granted before the change, which then ends all holds.
                if renewed == "nil" && !held.is_empty() {
                    assert_eq!(primary.ask("EXISTS k"), "0", "{what}");
                    continue;
                }
                assert_eq!(renewed, fence, "{what}");
                assert_eq!(primary.owners("k"), ["owner-a"], "{what}");
                assert_eq!(a.ask("RLOCK.RELEASE k owner-a ALL"), "0", "{what}");
                assert_eq!(primary.ask("EXISTS k"), "0", "{what}");
                await_in_step(&primary, &replica);
            }
        }
    }
}
