//! The steps of docs/operating.md to upgrade and restore servers, as an
//! operator takes them.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::program::{Running, finished, rlock_at};
use super::server::Asks;
use super::several::{Cluster, replica_of, sentinel_of};
use rlock_testkit::{Server, Setup, eventually};

/// The page's command that promotes a replica.
fn command(servers_have: &str) -> &'static str {
    let page = include_str!("../../../../docs/operating.md");
    let row = format!("| {servers_have} | `");
    let (_, cell) = page.split_once(&row).expect(servers_have);
    cell.split('`').next().unwrap()
}

/// Runs a command under a lock at these servers, until its input ends.
fn holder(url: &str, key: &str) -> Running {
    let script = "echo ready; read line";
    let mut command = rlock_at(url);
    let command = command.args(["exec", key, "--lease", "10s", "-c", script]);
    let mut holder = Running::start(command.stdin(Stdio::piped()));
    holder.until_says("ready");
    holder
}

fn is_master(server: &Server) -> bool {
    let client = redis::Client::open(server.url()).unwrap();
    // An error is possible, because Sentinels let a new master close its
    // connections.
    let role = client.get_connection();
    let role = role.and_then(|mut it| redis::cmd("ROLE").query(&mut it));
    let Ok(redis::Value::Array(role)) = role else {
        return false;
    };
    role.first() == Some(&redis::Value::BulkString(b"master".to_vec()))
}

/// Checks that the new master keeps the hold, and grants locks.
fn assert_goes_on(url: &str, mut holder: Running, key: &str, master: &Server) {
    eventually("it is the master", || is_master(master));
    let mut admin = master.admin();
    let renewals = admin.gauge("renewals");
    eventually("the hold is renewed there", || {
        admin.gauge("renewals") > renewals
    });
    let mut exec = rlock_at(url);
    let other = format!("{{{key}}}other");
    finished(exec.args(["exec", &other, "--", "true"])).assert_code(0);
    assert!(admin.is_held(key));
    holder.close_stdin();
    // This is the code of a `read` without input. A loss would be 121.
    holder.finish().assert_code(1);
    assert!(!admin.is_held(key));
}

#[test]
fn with_sentinels_a_hold_outlives_the_upgrade() {
    let master = Server::start();
    let replica = replica_of(&master);
    let sentinel = sentinel_of(&master, "");
    let url = format!("redis+sentinel://127.0.0.1:{}/locks", sentinel.port());
    let holder = holder(&url, "k");
    let order = command("Sentinels");
    eventually("the Sentinel knows the replica, and obeys", || {
        let mut words = order.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        let sentinel = redis::Client::open(format!("redis://127.0.0.1:{}", sentinel.port()));
        let mut connection = sentinel.unwrap().get_connection().unwrap();
        command.query::<String>(&mut connection).is_ok()
    });
    assert_goes_on(&url, holder, "k", &replica);
}

#[test]
fn in_a_cluster_a_hold_outlives_the_upgrade() {
    let cluster = Cluster::replicated(1);
    let replica = &cluster.replicas[0];
    let key = cluster.keys()[0];
    let holder = holder(&cluster.url(), key);
    eventually("the replica knows the hold", || {
        // It counts keys, because a replica in a cluster does not answer for a
        // key.
        replica.admin().run::<u64>("DBSIZE") == 1
    });
    // The fail-over may fail after 5 s. Then the test asks again.
    let mut asked = None::<Instant>;
    eventually("it is promoted", || {
        if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(6)) {
            asked = Some(Instant::now());
            let _: String = replica.admin().run(command("a cluster"));
        }
        is_master(replica)
    });
    assert_goes_on(&cluster.url(), holder, key, replica);
}

#[test]
fn with_a_fixed_url_a_hold_outlives_the_upgrade_if_the_master_comes_back() {
    let master = Server::start();
    let replica = replica_of(&master);
    let holder = holder(&master.url(), "k");
    let _: String = master.admin().run(command("neither"));
    eventually("the old master has caught up", || {
        master.info("replication", "master_link_status") == "up"
    });
    let mut refused = redis::cmd("RLOCK.ACQUIRE");
    let refused = master.query(refused.arg(&["other", "ann", "1000"]));
    assert_eq!(refused.unwrap_err().code(), Some("READONLY"));
    let _: String = replica.admin().run(command("neither"));
    assert_goes_on(&master.url(), holder, "k", &master);
}

#[test]
fn a_fail_over_is_refused_before_the_replica_has_caught_up() {
    let master = Server::start();
    let replica = replica_of(&master);
    replica.signal("STOP");
    let _: () = master.admin().run("CLIENT KILL TYPE replica");
    let refused = master.query(&redis::cmd(command("neither")));
    replica.signal("CONT");
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("FAILOVER "), "{refused}");
}

#[test]
fn a_backup_brings_back_released_holds_and_forgets_those_since() {
    let server = Server::start();
    let mut admin = server.admin();
    let ann = server.held_by("k", "ann");
    let _: () = admin.run("SAVE");
    let _: u64 = admin.run("RLOCK.RELEASE k ann");
    let bob = server.held_by("k", "bob");
    let (_, directory): (String, String) = admin.run("CONFIG GET dir");
    let copy = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .arg(format!("{directory}/dump.rdb"))
        .arg(copy.path())
        .status();
    assert!(copied.unwrap().success());
    let restored = Setup::new().line(&format!("dir {}", copy.path().display()));
    let restored = restored.start();
    let mut admin = restored.admin();
    assert_eq!(admin.run::<Option<u64>>("RLOCK.RENEW k bob 60000"), None);
    assert_eq!(
        admin.run::<Option<u64>>("RLOCK.RENEW k ann 60000"),
        Some(ann)
    );
    assert_eq!(admin.run::<u64>("RLOCK.FORCE k"), 1);
    assert!(restored.held_by("k", "cid") > bob);
}
