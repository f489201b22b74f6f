//! Many places in queues.

use std::ops::Range;

use crate::connection::Connection;
use crate::report::{Form, grouped};
use rlock_testkit::client::eventually;

use super::{Scene, Stall};

/// Queued requests of many keys each.
struct Requests {
    count: usize,
    key_count: usize,
    keys: String,
}

impl Requests {
    /// Takes the keys, so that they can be queued.
    fn prepare(scene: &mut Scene, count: usize, key_count: usize) -> Self {
        let keys: String = (0..key_count).map(|it| format!(" lock:{it}")).collect();
        let held = format!("RLOCK.MACQUIRE holder 3600000 {key_count}{keys}");
        scene.connection.call_lines([held]);
        Self {
            count,
            key_count,
            keys,
        }
    }

    fn request(&self, owner: &str) -> String {
        let (count, keys) = (self.key_count, &self.keys);
        format!("RLOCK.MACQUIRE {owner} 3600000 {count}{keys} WAIT 0 NOTIFY c")
    }

    /// Queues them all on a connection.
    fn queue(&self, connection: &mut Connection) {
        // One by one: each is some 20 KB.
        for number in 0..self.count {
            connection.call_lines([self.request(&format!("waiter-{number}"))]);
        }
    }

    fn text(&self) -> String {
        format!(
            "{} MACQUIREs of {} keys",
            self.count,
            grouped(self.key_count)
        )
    }
}

/// By the end of their connection, and when the server becomes a replica.
pub(super) fn requests_of_many_keys_end(form: Form) -> Vec<Stall> {
    let mut scene = Scene::new();
    let port = scene.server.port();
    let _hearing = Connection::listening(port, "c");
    let (count, keys) = form.of((97, 1024), (9, 64));
    let requests = Requests::prepare(&mut scene, count, keys);
    let queued = || {
        let mut connection = Connection::new(port);
        requests.queue(&mut connection);
        connection
    };
    let connection = queued();
    let what = format!("the connection of {} closes", requests.text());
    let closing = scene.stall(what, |control| {
        drop(connection);
        await_no_waiters(control);
    });
    let _connection = queued();
    let what = format!("REPLICAOF with {} queued", requests.text());
    let demoting = scene.stall(what, |control| {
        control.call("REPLICAOF 127.0.0.1 1");
        await_no_waiters(control);
    });
    vec![closing, demoting]
}

/// Waits until nobody is queued any more.
fn await_no_waiters(control: &mut Connection) {
    eventually("nobody is queued", || {
        let info = control.call("INFO rlock");
        rlock_testkit::client::text(&info).contains("rlock_waiters:0\r")
    });
}

/// A request that has to search for deadlocks among them, as its owner holds
/// something else.
pub(super) fn one_more_beside_requests_of_many_keys(form: Form) -> Vec<Stall> {
    let mut scene = Scene::new();
    let _hearing = Connection::listening(scene.server.port(), "c");
    let (count, keys) = form.of((95, 1024), (9, 64));
    let requests = Requests::prepare(&mut scene, count, keys);
    requests.queue(&mut scene.connection);
    let own = owners().map(|owner| format!("RLOCK.ACQUIRE own:{owner} {owner} 3600000"));
    scene.connection.call_lines(own);
    let what = format!("one more MACQUIRE beside {}", requests.text());
    let all = scene.stall(what, |connection| {
        for owner in owners() {
            connection.call_lines([requests.request(&owner)]);
            connection.call(&format!("RLOCK.CANCEL lock:0 {owner}"));
        }
    });
    let what = format!("ACQUIRE beside {}", requests.text());
    let one = scene.stall(what, |connection| {
        for owner in owners() {
            let wait = format!("RLOCK.ACQUIRE lock:7 {owner} 3600000 WAIT 0 NOTIFY c");
            connection.call_lines([wait]);
            connection.call(&format!("RLOCK.CANCEL lock:7 {owner}"));
        }
    });
    vec![all, one]
}

/// Who asks, one after the other.
fn owners() -> impl Iterator<Item = String> {
    const ASKING: Range<usize> = 0..10;
    ASKING.map(|number| format!("busy-{number}"))
}

/// Somebody queues for a lock that it holds.
pub(super) fn one_owner_waits_for_many_locks(form: Form) -> Vec<Stall> {
    let counts = form.of([9_990, 100_000], [100, 1000]);
    counts.map(queue_behind_one_who_waits).into()
}

fn queue_behind_one_who_waits(count: usize) -> Stall {
    let mut scene = Scene::new();
    let _hearing = Connection::listening(scene.server.port(), "c");
    let connection = &mut scene.connection;
    // Each of the many waits would be searched, too, which is not what is
    // measured here.
    connection.call("CONFIG SET rlock.deadlock-detection no");
    let wait = "3600000 WAIT 0 NOTIFY c";
    let held = (0..count).map(|it| format!("RLOCK.ACQUIRE lock:{it} h{it} 3600000"));
    connection.call_lines(held);
    let waits = (0..count).map(|it| format!("RLOCK.ACQUIRE lock:{it} owner {wait}"));
    connection.call_lines(waits);
    let own = owners().map(|owner| format!("RLOCK.ACQUIRE own:{owner} {owner} 3600000"));
    connection.call_lines(own.chain(["RLOCK.ACQUIRE lock owner 3600000".into()]));
    connection.call("CONFIG SET rlock.deadlock-detection yes");
    let what = format!(
        "its owner waits for {} locks: queue for a lock",
        grouped(count)
    );
    scene.stall(what, |connection| {
        for owner in owners().chain(["idle".into()]) {
            connection.call_lines([format!("RLOCK.ACQUIRE lock {owner} {wait}")]);
        }
    })
}
