//! The wall clock is set while the server runs: `docs/operating.md` is true, exclusive locks stay exclusive, and fences
//! rise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use crate::contest::{Contest, wait_for};
use rlock_testkit::Server;
use rlock_testkit::Setup;
use rlock_testkit::client::{Client, PATIENCE, eventually};

const HOUR: Duration = Duration::from_secs(3600);

/// The largest delay of a deadline after a jump; the documents say half a second, the rest is for a slow machine.
const LATE: Duration = Duration::from_secs(3);

/// The direction in which the clock is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jump {
    Forward,
    Back,
}

/// A server whose wall clock can be set.
struct Clocked {
    server: Server,
    offset: PathBuf,
    at_usec: i64,
    _directory: TempDir,
}

impl Clocked {
    fn start() -> Self {
        Self::launch(Setup::new())
    }

    fn launch(setup: Setup) -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let library = build(directory.path());
        let offset = directory.path().join("offset");
        fs::write(&offset, 0_i64.to_ne_bytes()).expect("a file can be written");
        let setup = setup
            .environment("LD_PRELOAD", library.as_os_str())
            .environment("RLOCK_CLOCK", offset.as_os_str());
        Self {
            server: setup.start(),
            offset,
            at_usec: 0,
            _directory: directory,
        }
    }

    /// Moves the clock by this time.
    fn set(&mut self, jump: Jump, by: Duration) {
        let by = i64::try_from(by.as_micros()).expect("a short time");
        self.at_usec += if jump == Jump::Forward { by } else { -by };
        // Overwritten in place: the server has the file mapped.
        let file = fs::OpenOptions::new().write(true).open(&self.offset);
        let file = file.expect("the file exists");
        std::os::unix::fs::FileExt::write_all_at(&file, &self.at_usec.to_ne_bytes(), 0)
            .expect("it can be written");
        // Valkey 9.1 reads the wall clock only now and then.
        let real = || SystemTime::now().duration_since(UNIX_EPOCH);
        eventually("the server sees its new clock", || {
            let real = real().expect("it is after 1970").as_micros();
            let real = i64::try_from(real).expect("it is before the year 294000");
            ((real + self.at_usec) / 1_000_000).abs_diff(self.seconds()) <= 1
        });
    }

    /// The server's wall clock, in seconds.
    fn seconds(&self) -> i64 {
        let time = self.server.ask("TIME");
        let seconds = time.trim_matches(['[', ']']).split(' ').next();
        let seconds = seconds.and_then(|seconds| seconds.parse().ok());
        seconds.expect("TIME gives seconds")
    }
}

/// Builds the library that replaces the server's clock.
fn build(directory: &Path) -> PathBuf {
    let source = directory.join("wall_clock.c");
    fs::write(&source, include_str!("wall_clock.c")).expect("a file can be written");
    let library = directory.join("wall_clock.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output();
    let built = built.expect("cc, which links Rust programs, can be run");
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    library
}

/// The fence of a blocked call whose reply must come soon.
#[track_caller]
fn soon(client: &Client, what: &str) -> i64 {
    match client.reply_within(LATE) {
        Some(redis::Value::Int(fence)) => fence,
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn only_the_clock_of_the_server_is_set() {
    let mut clocked = Clocked::start();
    let (before, start) = (clocked.seconds(), Instant::now());
    clocked.set(Jump::Forward, HOUR);
    let after = clocked.seconds();
    let passed = i64::try_from(start.elapsed().as_secs()).expect("a short time");
    let jumped = after - before;
    assert!((3600..=3601 + passed).contains(&jumped), "{jumped}");
    clocked.set(Jump::Back, HOUR * 2);
    assert!(clocked.seconds() < before - 3500);
}

#[test]
fn leases_ended_by_a_forward_jump_are_handed_over_soon() {
    let mut clocked = Clocked::start();
    let mut subscriber = clocked.server.listen(&["c"]);
    let contest = Contest::on(&clocked.server);
    let long = clocked.server.client();
    let longer = long.number("RLOCK.ACQUIRE long owner-l 7200000 NOTIFY c");
    let shared = clocked.server.client();
    shared.number("RLOCK.ACQUIRE s owner-s 60000 SHARED NOTIFY c");
    let writer = wait_for(&clocked.server, "s", "owner-w", 1);
    let several = clocked.server.client();
    several.send("RLOCK.MACQUIRE owner-m 8000000 2 k2 s WAIT 0");
    clocked.server.await_queued("s", 2);
    clocked.set(Jump::Forward, HOUR);
    let fence = soon(&contest.waiter, "the lease is over");
    assert!(fence > contest.fence);
    soon(&writer, "the shared lease is over");
    assert!(subscriber.message().starts_with("lost ") && subscriber.messages().is_empty());
    // The new leases count from the new time; the lease that is longer than the jump continues.
    let left = clocked.server.lock("k").holders[0].lease_left_ms;
    assert!((1..=60_000).contains(&left), "{left}");
    assert_eq!(long.number("RLOCK.RENEW long owner-l 7200000"), longer);
    assert_eq!(contest.holder.ask("RLOCK.RENEW k owner-a 60000"), "nil");
    assert_eq!(writer.ask("RLOCK.RELEASE s owner-w"), "0");
    soon(&several, "both are free");
}

#[test]
fn waits_and_graces_ended_by_a_forward_jump_end_soon() {
    let mut clocked = Clocked::start();
    let contest = Contest::on(&clocked.server);
    contest.holder.number("RLOCK.RENEW k owner-a 86400000");
    let mut subscriber = clocked.server.listen(&["c"]);
    let (b, n, kept) = (
        clocked.server.client(),
        clocked.server.client(),
        clocked.server.client(),
    );
    b.send("RLOCK.ACQUIRE k owner-w 60000 WAIT 1000000");
    n.ask("RLOCK.ACQUIRE k owner-n 60000 WAIT 1000000 NOTIFY c");
    kept.send("RLOCK.ACQUIRE k owner-k 60000 WAIT 1 KEEP 600000");
    assert_eq!(kept.answer(), "nil");
    clocked.server.await_queued("k", 4);
    let bound = clocked.server.client();
    bound.number("RLOCK.ACQUIRE bound owner-a 86400000 BIND 600000");
    let next = wait_for(&clocked.server, "bound", "owner-b", 1);
    bound.close();
    eventually("the lease is cut", || {
        clocked.server.lock("bound").holders[0].lease_left_ms <= 600_000
    });
    clocked.set(Jump::Forward, HOUR);
    let ended = b.reply_within(LATE);
    assert!(matches!(ended, Some(redis::Value::Nil)), "{ended:?}");
    assert_eq!(subscriber.message(), "timeout 0 owner-n k");
    soon(&next, "the grace is over");
    // The kept place has ended, but not the wait without limit.
    clocked.server.await_queued("k", 1);
    assert_eq!(clocked.server.counter("places_kept"), 0);
    contest.holder.ask("RLOCK.RELEASE k owner-a");
    contest.assert_handed_over();
}

#[test]
fn backward_jump_delays_old_deadlines_and_no_new_ones() {
    let mut clocked = Clocked::start();
    let contest = Contest::on(&clocked.server);
    contest.holder.number("RLOCK.RENEW k owner-a 1000");
    let waiting = clocked.server.client();
    waiting.send("RLOCK.ACQUIRE k owner-w 60000 WAIT 1000");
    clocked.server.await_queued("k", 2);
    clocked.set(Jump::Back, HOUR);
    let left = clocked.server.lock("k").holders[0].lease_left_ms;
    assert!(left > 3_500_000, "{left}");
    // New waits end in time, although timers are armed for deadlines in an hour.
    let start = Instant::now();
    let other = clocked.server.client();
    other.number("RLOCK.ACQUIRE other owner-a 200");
    let next = wait_for(&clocked.server, "other", "owner-b", 1);
    let fence = soon(&next, "a lease of after the jump");
    assert!(start.elapsed() >= Duration::from_millis(190));
    assert_eq!(
        other.ask("RLOCK.ACQUIRE other owner-c 60000 WAIT 100"),
        "nil"
    );
    assert_eq!(
        other.ask("RLOCK.ACQUIRE other owner-c 60000 WAIT 1 KEEP 100"),
        "nil"
    );
    eventually("the grace is over", || {
        clocked.server.counter("places_kept") == 0
    });
    assert!(fence > contest.fence, "fences rise");
    // A renewal and the expiry that it sets count from the present time.
    contest.holder.number("RLOCK.RENEW k owner-a 200");
    assert!(soon(&contest.waiter, "the renewed lease") > fence);
    assert_eq!(clocked.server.ask("RLOCK.CANCEL k owner-w"), "1");
    assert_eq!(waiting.answer(), "nil");
}

#[test]
fn clock_set_forward_again_ends_delayed_deadlines() {
    let mut clocked = Clocked::start();
    let contest = Contest::on(&clocked.server);
    contest.holder.number("RLOCK.RENEW k owner-a 500");
    clocked.set(Jump::Back, HOUR);
    let start = Instant::now();
    eventually("the lease would have ended", || {
        start.elapsed() > Duration::from_millis(700)
    });
    assert!(contest.waiter.reply_by_now().is_none());
    clocked.set(Jump::Forward, HOUR);
    assert!(soon(&contest.waiter, "the lease is over") > contest.fence);
}

/// Takes the lock repeatedly, and asserts that no other client has it. A lease that ends early is not a fault of the
/// lock.
fn take_part(port: u16, number: usize, stop: &AtomicBool, lease: u64) -> Vec<i64> {
    let client = Client::connect(port);
    let mut fences = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        client.send(&format!(
            "RLOCK.ACQUIRE k owner-{number} {lease} WAIT 500 KEEP 200"
        ));
        if let Some(redis::Value::Int(fence)) = client.reply_within(PATIENCE) {
            fences.push(fence);
            client.ask(&format!("RLOCK.RELEASE k owner-{number}"));
        }
    }
    fences
}

#[test]
fn fences_rise_and_the_queue_moves_whatever_the_clock_does() {
    let mut clocked = Clocked::start();
    let stop = AtomicBool::new(false);
    let port = clocked.server.port();
    let fences = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|number| {
                let stop = &stop;
                // Some leases end with each jump, some never end.
                let lease = [60_000, 86_400_000][number % 2];
                scope.spawn(move || take_part(port, number, stop, lease))
            })
            .collect();
        let counted = |server: &Server| server.counter("grants");
        for round in 0..20 {
            let jump = [Jump::Forward, Jump::Back][round % 2];
            let by = [HOUR, HOUR * 30, Duration::from_secs(2)][round % 3];
            clocked.set(jump, by);
            let before = counted(&clocked.server);
            eventually("grants continue", || counted(&clocked.server) > before + 20);
        }
        stop.store(true, Ordering::SeqCst);
        let fences = clients
            .into_iter()
            .map(|it| it.join().expect("it ends in order"));
        fences.collect::<Vec<_>>()
    });
    let mut all = Vec::new();
    for of_one in fences {
        assert!(of_one.is_sorted_by(|one, next| one < next), "fences rise");
        all.extend(of_one);
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "no fence is given twice");
    eventually("nobody waits", || clocked.server.counter("waiters") == 0);
}

#[test]
fn startup_grace_has_its_length_whatever_the_clock_does() {
    const GRACE: Duration = Duration::from_secs(3);
    for jump in [Jump::Back, Jump::Forward] {
        let start = Instant::now();
        let setup = Setup::new().module_arguments("startup-grace-ms 3000");
        let mut clocked = Clocked::launch(setup);
        let waiter = clocked.server.client();
        waiter.send("RLOCK.ACQUIRE k owner-a 60000 WAIT 0");
        clocked.server.await_queued("k", 1);
        clocked.set(jump, HOUR);
        let left = clocked.server.counter("grace_left_ms");
        let left = Duration::from_millis(left);
        assert!(left <= GRACE, "{jump:?}: {left:?}");
        if start.elapsed() < GRACE {
            assert!(left + start.elapsed() >= GRACE, "{jump:?}: {left:?}");
        }
        waiter.fence();
        assert!(start.elapsed() >= GRACE, "{jump:?}");
        assert_eq!(clocked.server.counter("grace_left_ms"), 0);
        let a = clocked.server.client();
        a.number("RLOCK.ACQUIRE free owner-a 60000");
    }
}

#[test]
fn corrected_clock_prevents_no_master_from_granting() {
    let setup = Setup::new().line("min-replicas-to-write 1");
    let mut clocked = Clocked::launch(setup);
    let _replica = Setup::new().replica_of(&clocked.server).start();
    let a = clocked.server.client();
    let granted = || {
        let fence = a.ask("RLOCK.ACQUIRE k owner-a 60000");
        let is_granted = fence.parse::<i64>().is_ok();
        is_granted && a.ask("RLOCK.RELEASE k owner-a") == "0"
    };
    eventually("a replica is connected", granted);
    let c = clocked.server.client();
    for jump in [Jump::Forward, Jump::Back] {
        clocked.set(jump, HOUR);
        eventually("the replica is connected again", || {
            clocked.server.info("replication", "min_slaves_good_slaves") == "1"
        });
        eventually("locks are granted as before", granted);
        c.number("RLOCK.ACQUIRE held owner-c 60000");
        let waiter = wait_for(&clocked.server, "held", "owner-b", 1);
        assert_eq!(c.ask("RLOCK.RELEASE held owner-c"), "0");
        soon(&waiter, "the lock is free");
        assert_eq!(clocked.server.ask("RLOCK.FORCE held"), "1");
    }
}
