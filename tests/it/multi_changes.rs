//! What others do to the keys of a request for several locks.

use crate::multi::{KEYS, Several, assert_all_held_by};
use crate::server::Server;

#[test]
fn loss_of_each_key_is_told_for_itself() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let a = server.client();
    for (take, key) in [
        ("DEL k1", "k1"),
        ("RLOCK.FORCE k2", "k2"),
        ("RENAME k3 elsewhere", "k3"),
    ] {
        let fence = a.number("RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3 NOTIFY c");
        server.ask(take);
        assert_eq!(heard.message(), format!("lost {fence} owner-m {key}"));
        assert_eq!(a.ask("RLOCK.MRENEW owner-m 60000 3 k1 k2 k3"), "2");
        assert_eq!(server.counter("watches"), 2);
        let part = a.ask("RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3 WAIT 0");
        assert!(
            part.starts_with("ERR ") && part.contains("key 'k"),
            "{part}"
        );
        assert_eq!(a.ask("RLOCK.MRELEASE owner-m 3 k1 k2 k3"), "2");
    }
    let fence = a.number("RLOCK.MACQUIRE owner-m 60000 3 k1 k2 k3 NOTIFY c");
    server.ask("FLUSHALL");
    let mut told = (0..3).map(|_| heard.message()).collect::<Vec<_>>();
    told.sort();
    assert_eq!(told, KEYS.map(|key| format!("lost {fence} owner-m {key}")));
    assert_eq!(heard.messages(), [""; 0]);
}

#[test]
fn whatever_frees_the_last_key_grants_all() {
    let server = Server::start();
    for change in [
        "DEL k2",
        "UNLINK k2",
        "FLUSHALL",
        "FLUSHDB ASYNC",
        "RENAME k2 elsewhere",
        "MOVE k2 5",
        "SWAPDB 0 6",
        "PEXPIRE k2 5",
        "HDEL k2 owner-a rlock:fence",
        "RLOCK.FORCE k2",
    ] {
        let several = Several::on(&server);
        server.client().ask(change);
        let fence = several.waiter.fence();
        assert!(fence > several.fence, "{change}");
        assert_all_held_by(&server, "owner-m", fence);
        server.ask("FLUSHALL");
    }
}

#[test]
fn key_taken_by_other_data_holds_up_a_request_for_several() {
    let server = Server::start();
    let several = Several::on(&server);
    server.ask("SET k3 text");
    several.holder.ask("RLOCK.RELEASE k2 owner-a");
    assert_eq!(server.ask("EXISTS k1 k2"), "0");
    assert_eq!(server.queued("k1"), 1);
    for line in [
        "RLOCK.MACQUIRE owner-x 60000 2 free k3",
        "RLOCK.MACQUIRE owner-x 60000 2 free k3 WAIT 0",
        "RLOCK.MRENEW owner-x 60000 2 free k3",
        "RLOCK.MRELEASE owner-x 2 free k3",
    ] {
        let answer = server.ask(line);
        assert!(
            answer.starts_with("WRONGTYPE ") && answer.contains("'k3'"),
            "{answer}"
        );
    }
    assert_eq!(server.ask("EXISTS free"), "0");
    server.ask("DEL k3");
    let fence = several.waiter.fence();
    assert_all_held_by(&server, "owner-m", fence);
}
