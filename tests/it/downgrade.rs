//! `DOWNGRADE` and `FORCE` with waiters of every kind.

use crate::client::{Client, Subscriber};
use crate::contest::wait_for;
use crate::server::Server;

/// `owner-a` holds `k`; behind it wait readers of every kind, then those that exclude them.
struct Crowd {
    holder: Client,
    heard: Subscriber,
    reader: Client,
    limited: Client,
    writer: Client,
    late_reader: Client,
    several: Client,
}

impl Crowd {
    fn on(server: &Server) -> Self {
        let heard = server.listen(&["c"]);
        let holder = server.client();
        holder.number("RLOCK.ACQUIRE k owner-a 60000");
        let wait = |line: &str, queued: usize| {
            let client = server.client();
            client.send(line);
            server.await_queued("k", queued);
            client
        };
        let reader = wait("RLOCK.ACQUIRE k reader 60000 SHARED WAIT 0", 1);
        let notified = "RLOCK.ACQUIRE k notified 60000 SHARED WAIT 0 NOTIFY c";
        assert_eq!(holder.ask(notified), "WAITING");
        let limited = wait(
            "RLOCK.ACQUIRE k limited 60000 SHARED LIMIT 5 PERMITS 2 WAIT 0",
            3,
        );
        let writer = wait("RLOCK.ACQUIRE k writer 60000 WAIT 0", 4);
        let late_reader = wait("RLOCK.ACQUIRE k late 60000 SHARED WAIT 0", 5);
        let several = wait("RLOCK.MACQUIRE several 60000 2 k free WAIT 0", 6);
        Self {
            holder,
            heard,
            reader,
            limited,
            writer,
            late_reader,
            several,
        }
    }

    /// The readers at the front have been let in, and nobody else.
    fn assert_readers_are_in(&mut self) {
        self.reader.fence();
        assert!(self.heard.message().starts_with("grant "));
        self.limited.fence();
        for waiting in [&self.writer, &self.late_reader, &self.several] {
            assert!(waiting.reply_by_now().is_none());
        }
    }
}

#[test]
fn downgrade_lets_in_the_readers_at_the_front_and_nobody_else() {
    let server = Server::start();
    let mut crowd = Crowd::on(&server);
    let fence = crowd.holder.number("RLOCK.ACQUIRE k owner-a 60000 REENTER");
    assert_eq!(crowd.holder.number("RLOCK.DOWNGRADE k owner-a"), fence);
    assert_eq!(
        server.owners("k"),
        ["limited", "notified", "owner-a", "reader"]
    );
    crowd.assert_readers_are_in();
    let lock = server.lock("k");
    assert_eq!(lock.waiting(), ["writer", "late", "several"]);
    let holder = lock.holder("owner-a").expect("it holds the lock");
    assert_eq!(
        (holder.count, holder.permits, holder.fence),
        (2, 1, Some(fence))
    );
    // One of them may be upgraded when it is alone again, before the others.
    crowd.holder.send("RLOCK.ACQUIRE k owner-a 60000 WAIT 0");
    server.await_queued("k", 4);
    for owner in ["reader", "notified", "limited"] {
        assert_eq!(server.ask(&format!("RLOCK.RELEASE k {owner}")), "0");
    }
    assert!(crowd.holder.fence() > fence);
    assert_eq!(crowd.holder.ask("RLOCK.RELEASE k owner-a ALL"), "0");
    crowd.writer.fence();
}

#[test]
fn force_ends_all_holds_and_the_queue_goes_on_in_its_order() {
    let server = Server::start();
    let mut crowd = Crowd::on(&server);
    assert_eq!(server.ask("RLOCK.FORCE k"), "1");
    crowd.assert_readers_are_in();
    assert_eq!(server.ask("RLOCK.FORCE k"), "3");
    assert!(crowd.heard.message().starts_with("lost "));
    crowd.writer.fence();
    assert!(crowd.late_reader.reply_by_now().is_none());
    assert_eq!(server.ask("RLOCK.FORCE k"), "1");
    crowd.late_reader.fence();
    assert!(crowd.several.reply_by_now().is_none());
    assert_eq!(server.ask("RLOCK.FORCE k"), "1");
    crowd.several.fence();
    assert_eq!(server.owners("free"), ["several"]);
    assert_eq!(server.ask("RLOCK.FORCE k"), "1");
    assert_eq!(server.ask("EXISTS k"), "0");
    assert_eq!(server.owners("free"), ["several"]);
    assert_eq!(server.counter("force_releases"), 7);
    drop(crowd);
}

#[test]
fn downgrade_is_for_the_exclusive_holder_alone() {
    let server = Server::start();
    let a = server.client();
    assert_eq!(a.ask("RLOCK.DOWNGRADE k owner-a"), "nil");
    a.number("RLOCK.ACQUIRE k owner-a 60000");
    let before = server.hash("k");
    assert_eq!(a.ask("RLOCK.DOWNGRADE k owner-b"), "nil");
    assert_eq!(server.hash("k"), before);
    let waiter = wait_for(&server, "k", "owner-b", 1);
    assert_eq!(a.ask("RLOCK.DOWNGRADE k owner-b"), "nil");
    a.number("RLOCK.DOWNGRADE k owner-a");
    let before = server.hash("k");
    assert_eq!(a.ask("RLOCK.DOWNGRADE k owner-a"), "nil");
    assert_eq!(server.hash("k"), before);
    assert!(waiter.reply_by_now().is_none());
    server.ask("SET text 1");
    let answer = a.ask("RLOCK.DOWNGRADE text owner-a");
    assert!(answer.starts_with("WRONGTYPE "), "{answer}");
}

#[test]
fn downgrade_keeps_the_lease_and_the_channel() {
    let server = Server::start();
    let mut heard = server.listen(&["c"]);
    let a = server.client();
    let fence = a.number("RLOCK.ACQUIRE k owner-a 60000 NOTIFY c");
    let end = a.number("PEXPIRETIME k");
    a.number("RLOCK.DOWNGRADE k owner-a");
    assert_eq!(a.number("PEXPIRETIME k"), end);
    a.number("RLOCK.ACQUIRE k owner-b 90000 SHARED");
    assert!(server.hash("k")["rlock:holder:owner-a"].starts_with(&end.to_string()));
    assert_eq!(heard.messages(), [""; 0]);
    assert_eq!(server.counter("watches"), 1);
    server.ask("RLOCK.FORCE k");
    assert_eq!(heard.message(), format!("lost {fence} owner-a k"));
}

#[test]
fn hold_of_a_foreign_client_can_be_downgraded() {
    let server = Server::start();
    let a = server.client();
    a.ask("HSET k 5f0e:1 2");
    a.ask("PEXPIRE k 60000");
    let reader = server.client();
    reader.send("RLOCK.ACQUIRE k reader 60000 SHARED WAIT 0");
    server.await_queued("k", 1);
    let fence = a.ask("RLOCK.DOWNGRADE k 5f0e:1");
    reader.fence();
    assert_eq!(server.owners("k"), ["5f0e:1", "reader"]);
    let lock = server.lock("k");
    let holder = lock.holder("5f0e:1").expect("it holds the lock");
    assert_eq!(holder.count, 2);
    assert_eq!(
        holder.fence.map_or("nil".into(), |it| it.to_string()),
        fence
    );
}
