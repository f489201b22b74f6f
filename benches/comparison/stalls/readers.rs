//! Many readers who wait for one lock, and then hold it together.

use std::time::{Duration, Instant};

use redis::Value;

use crate::connection::{Connection, PING, message};
use crate::report::{Form, grouped};
use rlock_testkit::client::{request, words};

use super::{Scene, Stall, as_many_keys};

const MANY: usize = 10_000;
const MANY_QUICK: usize = 300;

/// Readers who wait for one lock by messages, and the connection that hears
/// these.
struct Readers {
    scene: Scene,
    hearing: Connection,
    count: usize,
}

impl Readers {
    fn new(form: Form) -> Self {
        let scene = Scene::new();
        Self {
            hearing: Connection::listening(scene.server.port(), "c"),
            scene,
            count: form.of(MANY, MANY_QUICK),
        }
    }

    /// Queues them behind a writer.
    fn queue(&mut self) {
        let readers = (0..self.count)
            .map(|it| format!("RLOCK.ACQUIRE lock reader-{it} 3600000 SHARED WAIT 0 NOTIFY c"));
        let writer = ["RLOCK.ACQUIRE lock writer 3600000".into()];
        self.scene
            .connection
            .call_lines(writer.into_iter().chain(readers));
    }

    /// A command of which every reader hears.
    fn stall(&mut self, what: &str, command: &str, outcome: &str) -> Stall {
        let what = format!("{} readers {what}", grouped(self.count));
        self.scene.stall(what, |connection| {
            connection.call(command);
            for _ in 0..self.count {
                let message = message(&self.hearing.reply());
                assert!(message.starts_with(outcome), "no {outcome}: {message}");
            }
        })
    }

    fn let_in(&mut self) -> Stall {
        self.stall("let in by RELEASE", "RLOCK.RELEASE lock writer", "grant")
    }
}

/// By messages; then by `FORCE`, and by `DEL`.
pub(super) fn many_are_let_in_and_lose_it(form: Form) -> Vec<Stall> {
    let mut readers = Readers::new(form);
    readers.queue();
    let let_in = readers.let_in();
    let forced = readers.stall("lose the lock by FORCE", "RLOCK.FORCE lock", "lost");
    readers.queue();
    readers.let_in();
    let deleted = readers.stall("lose the lock by DEL", "DEL lock", "lost");
    let [_, del] = as_many_keys(&mut readers.scene, readers.count);
    let [forced, deleted] = [forced, deleted].map(|it| it.beside("DEL of as many keys", del));
    vec![let_in, forced, deleted]
}

/// In the same millisecond, which `PEXPIRE` sets for all.
pub(super) fn leases_of_many_end_together(form: Form) -> Vec<Stall> {
    let mut readers = Readers::new(form);
    readers.queue();
    readers.let_in();
    let ended = readers.stall("whose leases end together", "PEXPIRE lock 100", "lost");
    let [mset, _] = as_many_keys(&mut readers.scene, readers.count);
    vec![ended.beside("MSET of as many keys", mset)]
}

/// All are blocked, and all connections are closed in the turn in which they
/// are let in. Beside them as many who are blocked in `BLPOP`.
pub(super) fn grants_are_undelivered(form: Form) -> Vec<Stall> {
    let count = form.of(3000, 50);
    let mut scene = Scene::new();
    let idle = after_a_standstill(&mut scene, "PING", Vec::new());
    let blocked = block(&scene, count, |_| "BLPOP list 0".into());
    let push: String = (0..count).map(|_| " it").collect();
    let native = after_a_standstill(&mut scene, &format!("RPUSH list{push}"), blocked);
    scene
        .connection
        .call_lines(["RLOCK.ACQUIRE lock writer 3600000".into()]);
    let blocked = block(&scene, count, |it| {
        format!("RLOCK.ACQUIRE lock reader-{it} 3600000 SHARED WAIT 0")
    });
    let busy = after_a_standstill(&mut scene, "RLOCK.RELEASE lock writer", blocked);
    let stall = Stall {
        what: format!("{} readers let in, whose connections close", grouped(count)),
        idle,
        busy,
        native: None,
    };
    vec![stall.beside("as many in BLPOP", native)]
}

/// Blocks this many connections.
fn block(scene: &Scene, count: usize, line: impl Fn(usize) -> String) -> Vec<Connection> {
    let connections: Vec<_> = (0..count)
        .map(|number| {
            let mut connection = Connection::new(scene.server.port());
            connection.send(&request(&words(&line(number))));
            connection
        })
        .collect();
    rlock_testkit::client::eventually("all are blocked", || {
        scene.server.info("clients", "blocked_clients") == count.to_string()
    });
    connections
}

/// A command, the end of some connections, and a PING come while the server is
/// stopped, so that all of them meet in one turn: how long the PING takes from
/// when it goes on.
fn after_a_standstill(scene: &mut Scene, line: &str, closing: Vec<Connection>) -> Duration {
    let mut pinging = Connection::new(scene.server.port());
    scene.server.signal("STOP");
    scene.connection.send(&request(&words(line)));
    drop(closing);
    pinging.send(PING);
    let start = Instant::now();
    scene.server.signal("CONT");
    pinging.await_arrival();
    let time = start.elapsed();
    pinging.reply();
    let reply = scene.connection.reply();
    assert!(!matches!(reply, Value::ServerError(_)), "{reply:?}");
    time
}
