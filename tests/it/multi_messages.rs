//! Unlock messages of locks that a request for several takes, or could have taken.

use crate::server::Server;

#[test]
fn keys_released_together_to_a_request_for_them_are_not_told_to_be_free() {
    let server = Server::start();
    let mut heard = server.listen_to_unlocks();
    let (a, m) = (server.client(), server.client());
    a.number("RLOCK.MACQUIRE owner-a 60000 3 k1 k2 k3");
    m.send("RLOCK.MACQUIRE owner-m 60000 3 k3 k1 k2 WAIT 0");
    server.await_queued("k1", 1);
    assert_eq!(a.ask("RLOCK.MRELEASE owner-a 3 k1 k2 k3"), "3");
    m.fence();
    assert_eq!(heard.messages(), [""; 0]);
    // Those that nobody takes are.
    assert_eq!(m.ask("RLOCK.MRELEASE owner-m 2 k1 k2"), "2");
    let mut told = heard.messages();
    told.sort();
    assert_eq!(
        told,
        [
            "redisson_lock__channel:{k1}: 0",
            "redisson_lock__channel:{k2}: 0"
        ]
    );
}

#[test]
fn who_is_behind_a_request_for_several_that_nobody_hears_of_is_served_at_once() {
    let server = Server::start();
    let mut heard = server.listen_to_unlocks();
    let (a, m, b) = (server.client(), server.client(), server.client());
    a.number("RLOCK.ACQUIRE k1 owner-a 60000");
    let queue = "RLOCK.MACQUIRE owner-m 60000 2 k1 k2 WAIT 0 NOTIFY nobody";
    assert_eq!(m.ask(queue), "WAITING");
    b.send("RLOCK.ACQUIRE k1 owner-b 60000 WAIT 0");
    server.await_queued("k1", 2);
    // In one turn: nobody else can come in between.
    for line in ["MULTI", "RLOCK.RELEASE k1 owner-a", "RLOCK.INFO k1"] {
        a.ask(line);
    }
    let done = a.ask("EXEC");
    assert!(done.contains("mode exclusive"), "{done}");
    b.fence();
    assert_eq!(heard.messages(), [""; 0]);
}
