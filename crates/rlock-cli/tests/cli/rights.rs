//! The users of docs/operating.md: their commands work, and need no further
//! rights.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use rlock_client::{Client, Terms};

use super::exporter::Exporter;
use super::program::{Running, finished, rlock_at};
use super::server::{Admin, Asks};
use super::several::{Cluster, MASTERS, replica_of, sentinel_of};
use rlock_testkit::{Server, eventually};

const PAGE: &str = include_str!("../../../../docs/operating.md");
const OTHERS: [&str; 4] = [
    include_str!("../../../../redis.conf.example"),
    include_str!("../../../../docs/commands.md"),
    include_str!("../../../../docs/cli.md"),
    include_str!("../../../../deploy/rlock-exporter.default"),
];
/// The beginning of every rule, behind the user's name.
const PASSWORD: &str = " on >a-password ";

/// The rules of a text, by user: lines of redis.conf and calls of ACL SETUSER.
fn rules(text: &'static str) -> Vec<(&'static str, String)> {
    let rules = text.match_indices(PASSWORD).map(|(at, _)| {
        let user = text[..at].rsplit([' ', '`']).next().unwrap();
        let rule = &text[at + PASSWORD.len()..];
        let rule = rule.split(['\n', '`']).next().unwrap();
        // In a table it is escaped.
        (user, rule.replace("\\|", "|"))
    });
    rules.collect()
}

/// The addition to a rule in the row of the page that begins like this.
fn added(row: &str) -> String {
    let row = PAGE.lines().find(|line| line.starts_with(row));
    let cell = row.unwrap().split('`').rfind(|cell| !cell.starts_with(' '));
    format!(" {}", cell.unwrap().replace("\\|", "|"))
}

/// Creates the users that need locks, with an addition to their rules.
pub(crate) fn admit(server: &Server, more: &str) {
    let mut admin = server.admin();
    for (user, rule) in BTreeMap::from_iter(rules(PAGE)) {
        let _: () = admin.run(format!("ACL SETUSER {user}{PASSWORD}{rule}{more}").trim_end());
    }
}

/// Checks that the server has refused nothing.
pub(crate) fn assert_nothing_refused(server: &Server) {
    let log: Vec<BTreeMap<String, redis::Value>> = server.admin().run("ACL LOG");
    assert!(log.is_empty(), "{log:?}");
}

pub(crate) fn url(server: &Server, user: &str) -> String {
    format!("redis://{user}:a-password@127.0.0.1:{}/", server.port())
}

#[test]
fn all_files_show_the_same_rights() {
    let page = BTreeMap::from_iter(rules(PAGE));
    let users: Vec<_> = page.keys().copied().collect();
    let all = ["application", "exporter", "operator", "replica", "sentinel"];
    assert_eq!(users, all);
    for (user, rule) in OTHERS.into_iter().chain([PAGE]).flat_map(rules) {
        assert_eq!(page.get(user), Some(&rule), "{user}");
    }
    let counts = OTHERS.map(|text| rules(text).len());
    assert_eq!(counts, [5, 1, 0, 1]);
    // No other user is shown, and the page on commands leads to the table.
    for text in OTHERS {
        assert_eq!(text.matches(" on >").count(), rules(text).len());
    }
    assert!(OTHERS[2].contains("(operating.md#access-rights)"));
}

#[test]
fn exec_needs_no_more_than_the_application_has() {
    let server = Server::start();
    let _replica = replica_of(&server);
    admit(&server, "");
    let url = url(&server, "application");
    for options in [
        &[][..],
        &["--shared"],
        &["--limit", "1"],
        &["--bind", "1s"],
        &["--replicas", "1"],
        &["--lease", "200ms"],
    ] {
        let start = |script: &str| {
            let mut command = rlock_at(&url);
            let command = command.arg("exec").args(options);
            Running::start(command.args(["lock:k", "-c", script]).stdin(Stdio::piped()))
        };
        let mut first = start("echo ready; read line");
        first.until_says("ready");
        let second = start("echo ran");
        if !options.contains(&"--shared") {
            server.admin().queued(1);
        }
        first.close_stdin();
        first.finish().assert_code(1);
        let second = second.finish();
        second.assert_code(0);
        assert_eq!(second.stdout, "ran\n");
    }
    let ended = finished(rlock_at(&url).args(["exec", "lock:k", "-n", "--", "true"]));
    ended.assert_code(0);
    assert_nothing_refused(&server);
    let mut elsewhere = rlock_at(&url);
    let ended = finished(elsewhere.args(["exec", "other", "--", "true"]));
    ended.assert_code(123);
    ended.assert_says("not permitted");
}

#[test]
fn a_refusal_names_what_was_refused_the_user_and_the_rule_to_add() {
    let server = Server::start();
    let cases: [(&str, &str, &[&str], &str); 8] = [
        (
            "application",
            "",
            &["exec", "other", "--", "true"],
            "the key 'other', such as ~other",
        ),
        (
            "application",
            "",
            &["info", "other"],
            "the key 'other', such as ~other",
        ),
        ("application", "", &["bench"], "such as ~rlock-bench:*"),
        ("application", "", &["list"], "needs +rlock.list"),
        (
            "operator",
            "",
            &["exec", "k", "--", "true"],
            "needs +rlock.acquire",
        ),
        ("operator", "", &["observe", "k"], "&rlock:value:*"),
        ("operator", "-subscribe", &["info", "k"], "needs +subscribe"),
        ("operator", "resetchannels", &["list"], "&rlock:client:*"),
    ];
    for (user, less, arguments, rule) in cases {
        admit(&server, &format!(" {less}"));
        let ended = finished(rlock_at(&url(&server, user)).args(arguments));
        ended.assert_code(123);
        ended.assert_says(rule);
        ended.assert_says("docs/operating.md, section Access rights");
        ended.assert_says(&format!("the user is {user}: `ACL SETUSER {user} RULE`"));
        let _: () = server.admin().run(&format!("ACL DELUSER {user}"));
    }
    // A user without a name is the default user.
    let _: () = server.admin().run("ACL SETUSER default -rlock.list");
    let ended = finished(rlock_at(&server.url()).arg("list"));
    ended.assert_says("the user is default: ");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_needs_no_more_than_the_application_has() {
    let server = Server::start();
    admit(&server, "");
    let url = url(&server, "application");
    let (client, other) = tokio::join!(Client::connect(&url), Client::connect(&url));
    let (client, other) = (client.unwrap(), other.unwrap());
    let guard = client.mutex("lock:k").lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = other.mutex("lock:k");
        async move { mutex.lock().await.unwrap() }
    });
    server.admin().queued(1);
    let mutex = other.mutex("lock:k");
    let left = mutex.lock_timeout(Duration::from_millis(20));
    assert!(left.await.unwrap().is_none());
    guard.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    let lock = client.rwlock("lock:k");
    let writer = lock.write().await.unwrap();
    writer.downgrade().await.unwrap().release().await.unwrap();
    let units = client.semaphore("lock:units", 3);
    units
        .acquire_many(2)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let both = client.multi(["lock:a", "lock:b"]);
    both.lock().await.unwrap().release().await.unwrap();
    let terms = Terms::new().lease(Duration::from_millis(200)).unwrap();
    let mutex = client
        .mutex("lock:k")
        .with(terms.bound(Duration::ZERO).unwrap());
    let bound = mutex.lock().await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(bound.is_valid(), "it was renewed");
    bound.release().await.unwrap();
    assert!(!client.mutex("lock:k").is_locked().await.unwrap());
    client.flush().await.unwrap();
    assert_nothing_refused(&server);
}

#[test]
fn each_question_needs_no_more_than_the_operator_has() {
    let server = Server::start();
    admit(&server, "");
    server.held_by("any", "ann");
    let mut waiter = server.admin();
    waiter.enqueue("any", "bob", "");
    let url = url(&server, "operator");
    for arguments in [
        &["info", "any"][..],
        &["list"],
        &["top", "--json", "--count", "1", "--interval", "100ms"],
        &["force", "any", "--yes"],
    ] {
        finished(rlock_at(&url).args(arguments)).assert_code(0);
    }
    assert_nothing_refused(&server);
    let mut exec = rlock_at(&url);
    finished(exec.args(["exec", "any", "--", "true"])).assert_code(123);
}

#[test]
fn an_observer_of_an_election_needs_one_more_channel_and_a_candidate_does_not() {
    let server = Server::start();
    admit(&server, "");
    let elected = || {
        let mut command = rlock_at(&url(&server, "application"));
        let says = ["-c", "echo $RLOCK_FENCE"];
        let ended = finished(
            command
                .args(["elect", "lock:k", "--value", "a:1"])
                .args(says),
        );
        ended.assert_code(0);
        ended.stdout
    };
    elected();
    assert_nothing_refused(&server);
    let observe = |user: &str| {
        let mut command = rlock_at(&url(&server, user));
        command.args(["observe", "lock:k"]);
        command
    };
    let refused = finished(&mut observe("operator"));
    refused.assert_code(123);
    refused.assert_says("Access rights");
    let _: () = server.admin().run("ACL LOG RESET");
    admit(&server, &added("| observers of an"));
    let users = ["application", "operator"];
    let mut observers = users.map(|user| Running::start(&mut observe(user)));
    for observer in &mut observers {
        observer.until_says("nobody leads");
    }
    let fence = elected();
    for mut observer in observers {
        observer.until_says(&format!("{} a:1", fence.trim()));
        observer.until_says("nobody leads");
    }
    assert_nothing_refused(&server);
}

#[test]
fn the_exporter_needs_no_more_than_its_user_has_and_says_what_it_lacks() {
    let server = Server::start();
    admit(&server, "");
    server.held_by("k", "ann");
    let mut waiter = server.admin();
    waiter.enqueue("k", "bob", "");
    let exporter = Exporter::start(&url(&server, "exporter"), &[]);
    let master = format!("master=\"127.0.0.1:{}\"", server.port());
    let up = format!("rlock_up{{{master}}}");
    let waiters = format!("rlock_lock_waiters{{key=\"k\",{master}}}");
    assert_eq!(exporter.value(&up), Some(1.0));
    assert_eq!(exporter.value(&waiters), Some(1.0));
    assert_nothing_refused(&server);

    let change = |rule: &str| {
        let _: () = server.admin().run(&format!("ACL SETUSER exporter {rule}"));
    };
    change("-rlock.list");
    assert_eq!(exporter.value(&waiters), None);
    assert_eq!(exporter.value(&up), Some(1.0));
    exporter.says("no contended locks of ");
    exporter.says("`ACL SETUSER exporter RULE`");
    change("-info");
    assert_eq!(exporter.value(&up), Some(0.0));
    exporter.says("needs +info");
    change("+info +rlock.list");
    assert_eq!(exporter.value(&up), Some(1.0));
    exporter.says("answers again");
    for (rule, words) in [
        ("-subscribe", "needs +subscribe"),
        ("+subscribe resetchannels", "needs &rlock:client:*"),
        ("&rlock:client:* resetpass", "password"),
    ] {
        change(rule);
        let another = Exporter::start(&url(&server, "exporter"), &[]);
        assert_eq!(another.value(&up), Some(0.0), "{rule}");
        another.says(words);
    }
}

/// The users of the example of a configuration, as the arguments of `ACL SETUSER`.
fn users_of_the_example() -> Vec<&'static str> {
    let lines = OTHERS[0].lines();
    lines
        .filter_map(|line| line.strip_prefix("#     user "))
        .collect()
}

#[test]
fn without_the_default_user_all_others_work() {
    let master = Server::start();
    let replica = replica_of(&master);
    let root = "ACL SETUSER root on >a-password ~* &* +@all";
    // A fail-over closes connections, so each use opens a new one.
    let admin = |server: &Server| Admin::at(&url(server, "root"));
    let users = users_of_the_example();
    assert_eq!(users.last(), Some(&"default reset off"));
    for server in [&master, &replica] {
        let mut admin = server.admin();
        let _: () = admin.run(root);
        let _: () = admin.run("CONFIG SET masteruser replica masterauth a-password");
        for user in &users {
            let _: () = admin.run(&format!("ACL SETUSER {user}"));
        }
    }
    finished(rlock_at(&master.url()).arg("list")).assert_says("NOAUTH");
    let _: u64 = admin(&master).run("CLIENT KILL TYPE replica");
    let has_replica = |server: &Server| {
        let client = redis::Client::open(url(server, "root")).unwrap();
        let mut info = redis::cmd("INFO");
        let info = client
            .get_connection()
            .and_then(|mut it| info.arg("replication").query::<String>(&mut it));
        info.is_ok_and(|info| info.contains(",state=online,"))
    };
    eventually("the replica is linked", || has_replica(&master));

    let lines = "sentinel auth-user locks sentinel\nsentinel auth-pass locks a-password\n";
    let sentinel = sentinel_of(&master, lines);
    let url = |user| {
        format!(
            "redis+sentinel://{user}:a-password@127.0.0.1:{}/locks",
            sentinel.port()
        )
    };
    let mut of_sentinel = Admin::at(&sentinel.url());
    eventually("the Sentinel knows the replica", || {
        of_sentinel
            .run::<Vec<redis::Value>>("SENTINEL REPLICAS locks")
            .len()
            == 1
    });
    let works = || {
        let mut exec = rlock_at(&url("application"));
        finished(exec.args(["exec", "lock:k", "--", "true"])).assert_code(0);
        for question in ["list", "doctor"] {
            finished(rlock_at(&url("operator")).arg(question)).assert_code(0);
        }
    };
    works();
    eventually("the Sentinel obeys", || {
        of_sentinel.ask::<String>("SENTINEL FAILOVER locks").is_ok()
    });
    eventually("the replica is the master", || has_replica(&replica));
    works();
    for server in [&master, &replica] {
        let log: Vec<BTreeMap<String, redis::Value>> = admin(server).run("ACL LOG");
        assert!(log.is_empty(), "{log:?}");
    }
}

#[test]
fn in_a_cluster_a_few_rights_more_are_enough() {
    let cluster = Cluster::start();
    let more = added("| a cluster:");
    for master in &cluster.masters {
        admit(master, &more);
        let _: () = master.admin().run("ACL SETUSER application ~*");
    }
    let url = |user: &str| format!("redis+cluster://{user}:a-password@{}", cluster.hosts());
    for key in cluster.keys() {
        let mut exec = rlock_at(&url("application"));
        finished(exec.args(["exec", key, "--", "true"])).assert_code(0);
        finished(rlock_at(&url("operator")).args(["info", key])).assert_code(0);
    }
    for question in [&["list"][..], &["force", "a", "--yes"]] {
        finished(rlock_at(&url("operator")).args(question)).assert_code(0);
    }
    let doctor = finished(rlock_at(&url("operator")).arg("doctor"));
    doctor.assert_code(0);
    assert!(!doctor.stdout.contains("not looked at"), "{doctor:?}");
    let exporter = Exporter::start(&url("exporter"), &[]);
    let metrics = exporter.metrics();
    let up = metrics.lines().filter(|line| line.starts_with("rlock_up{"));
    assert_eq!(up.filter(|line| line.ends_with(" 1")).count(), MASTERS);
    for master in &cluster.masters {
        assert_nothing_refused(master);
    }
}
