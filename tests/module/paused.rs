//! Writes are paused in the same transaction as a request for a lock: the server still runs that request.

use rlock_testkit::Server;

/// The lease has ended, but a server without active expiry still has the key. While writes are paused, it does not
/// delete the key on access either. An assertion of the server then fails if the key is written.
#[test]
fn transaction_that_pauses_writes_is_refused_an_expired_lock() {
    let server = Server::start();
    let client = server.client();
    client.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    client.number("RLOCK.ACQUIRE k owner-a 1");
    // Longer than the lease. Any access to the key would delete it.
    client.ask("DEBUG SLEEP 0.02");
    assert_eq!(client.ask("DBSIZE"), "1");
    for command in ["MULTI", "CLIENT PAUSE 100 WRITE"] {
        client.ask(command);
    }
    client.ask("RLOCK.ACQUIRE k owner-b 60000");
    client.ask("RLOCK.RELEASE k owner-a");
    let answers = client.ask("EXEC");
    assert_eq!(answers.matches("TRYAGAIN").count(), 2, "{answers}");

    client.ask("CLIENT UNPAUSE");
    client.number("RLOCK.ACQUIRE k owner-b 60000");
}

#[test]
fn what_is_left_of_a_lock_and_its_queue_stay_while_writes_are_paused() {
    let server = Server::start();
    let (client, waiter) = (server.client(), server.client());
    client.number("RLOCK.ACQUIRE k owner-a 60000");
    waiter.send("RLOCK.ACQUIRE k owner-b 60000 WAIT 0");
    server.await_queued("k", 1);
    client.ask("PERSIST k");
    for command in ["MULTI", "CLIENT PAUSE 100 WRITE", "RLOCK.FORCE k QUEUE"] {
        client.ask(command);
    }
    let answers = client.ask("EXEC");
    assert!(answers.contains("TRYAGAIN"), "{answers}");
    client.ask("CLIENT UNPAUSE");
    assert_eq!(client.ask("RLOCK.FORCE k"), "1");
    assert!(matches!(waiter.reply(), redis::Value::Int(_)));
}
