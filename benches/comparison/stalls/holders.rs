//! Many shared locks, and locks of many shared holders.

use redis::Value;

use crate::connection::Connection;
use crate::report::{Form, grouped};

use super::{Scene, Stall, as_many_keys};

fn shared(lock: &str, owner: usize) -> String {
    format!("RLOCK.ACQUIRE {lock} holder-{owner} 3600000 SHARED")
}

/// Requests that take locks, each for two holders: what has one is not worth
/// remembering. The limit of holders is raised before.
fn of_two(count: usize) -> impl Iterator<Item = String> {
    let limit = format!("CONFIG SET rlock.max-shared-holders {}", 2 * count);
    let locks = (0..count).flat_map(|it| [0, 1].map(|owner| shared(&format!("lock:{it}"), owner)));
    std::iter::once(limit).chain(locks)
}

/// Others, and those with the locks.
pub(super) fn databases_are_swapped(form: Form) -> Vec<Stall> {
    let count = form.of(300_000, 1000);
    let mut scene = Scene::new();
    scene.connection.call_lines(of_two(count));
    let with = format!("with {} shared locks", grouped(count));
    let swap = |line: &'static str| {
        move |connection: &mut Connection| assert_eq!(connection.call(line), Value::Okay)
    };
    let elsewhere = scene.stall(
        format!("SWAPDB of two empty databases, {with} elsewhere"),
        swap("SWAPDB 8 9"),
    );
    // The module may have forgotten them; asking again reminds it.
    scene.connection.call_lines(of_two(count));
    let there = scene.stall(format!("SWAPDB of the database {with}"), swap("SWAPDB 0 9"));
    vec![elsewhere, there]
}

/// One after the other, beside as many hashes of the same kind.
pub(super) fn locks_become_many(form: Form) -> Vec<Stall> {
    let count = form.of(1_000_000, 2000);
    let mut scene = Scene::new();
    let what = format!("growth: {} shared locks are taken", grouped(count));
    let stall = scene.stall(what, |connection| {
        connection.call_lines(of_two(count));
    });
    let mut scene = Scene::new();
    let hashes = scene.longest_ping(|connection| {
        connection.call_lines((0..count).flat_map(|it| {
            let fields =
                "rlock:mode shared a 1 rlock:a 1790000000000000 b 1 rlock:b 1790000000000000";
            [
                format!("HSET hash:{it} {fields}"),
                format!("PEXPIRE hash:{it} 3600000"),
            ]
        }));
    });
    vec![stall.beside("as many hashes", hashes)]
}

/// By others, so that all of it has to be read again; then all are dropped.
pub(super) fn a_lock_of_many_holders_is_changed(form: Form) -> Vec<Stall> {
    let count = form.of(100_000, 500);
    let mut scene = Scene::new();
    scene
        .connection
        .call_lines((0..count).map(|it| shared("lock", it)));
    let with = format!("a lock of {} holders", grouped(count));
    let read = scene.longest_ping(|connection| drop(connection.call("HGETALL lock")));

    let swapped = scene.stall(format!("{with}: SWAPDB, next commands"), |connection| {
        connection.call("SWAPDB 0 1");
        connection.call("SELECT 1");
        look_anew(connection);
    });
    let changed = scene.stall(format!("{with}: HSET, next commands"), |connection| {
        connection.call("HSET lock stranger 1");
        look_anew(connection);
    });
    let expiring = scene.stall(format!("{with}: EXPIRE, next commands"), |connection| {
        connection.call("EXPIRE lock 3000");
        look_anew(connection);
    });

    let [_, dropped] = as_many_keys(&mut scene, count);
    let forced = scene.stall(format!("{with}: FORCE"), |connection| {
        let ended = connection.call("RLOCK.FORCE lock");
        assert!(matches!(ended, Value::Int(ended) if ended > 0), "{ended:?}");
    });
    let read_anew = [swapped, changed, expiring].map(|stall| stall.beside("HGETALL", read));
    let forced = forced.beside("DEL of as many keys", dropped);
    read_anew.into_iter().chain([forced]).collect()
}

/// The commands that find that everything has changed: of a holder, and of
/// somebody for whom all permits are counted.
fn look_anew(connection: &mut Connection) {
    let fence = connection.call("RLOCK.RENEW lock holder-0 3600000");
    assert!(matches!(fence, Value::Int(_)), "it holds it: {fence:?}");
    let refused = connection.call("RLOCK.ACQUIRE lock other 3600000 SHARED LIMIT 1");
    assert_eq!(refused, Value::Nil, "all permits are taken");
}
