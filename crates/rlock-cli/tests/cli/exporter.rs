//! `exporter`, as Prometheus sees it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::program::{finished, rlock, rlock_at};
use super::server::Asks;
use super::several::Cluster;
use rlock_testkit::signal;
use rlock_testkit::{PATIENCE, Server, eventually};

/// An exporter that runs until the value is dropped.
pub(crate) struct Exporter {
    process: Child,
    pub(crate) address: String,
    /// Its lines on stderr.
    lines: mpsc::Receiver<String>,
}

impl Exporter {
    pub(crate) fn start(url: &str, options: &[&str]) -> Self {
        let mut command = rlock_at(url);
        let listen = ["exporter", "--listen", "127.0.0.1:0"];
        let mut process = command.args(listen).args(options).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = stderr.lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).all(|sent| sent.is_ok())
        });
        let line = lines.recv_timeout(PATIENCE).unwrap();
        let address = line.strip_prefix("rlock: http://");
        let address = address.and_then(|rest| rest.split_once('/'));
        let address = address
            .unwrap_or_else(|| panic!("it says {line}"))
            .0
            .to_owned();
        Self {
            process,
            address,
            lines,
        }
    }

    /// Waits for a line on stderr that has these words.
    pub(crate) fn says(&self, words: &str) {
        let has_them = |line: String| line.contains(words);
        while !has_them(self.lines.recv_timeout(PATIENCE).expect(words)) {}
    }

    pub(crate) fn metrics(&self) -> String {
        let (status, body) = get(&self.address, "/metrics");
        assert_eq!(status, 200, "{body}");
        body
    }

    /// The value of a series, named as Prometheus writes it.
    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        let metrics = self.metrics();
        let value = metrics.lines().find_map(|line| line.strip_prefix(series));
        value.map(|value| value.trim().parse().unwrap())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The status and the body of a page.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    request(address, &format!("GET {path} HTTP/1.0\r\n\r\n"))
}

fn request(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(15)))
        .unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[test]
fn every_number_of_the_server_is_shown() {
    let server = Server::start();
    let mut admin = server.admin();
    let exporter = Exporter::start(&server.url(), &[]);
    server.held_by("k", "ann");
    admin.enqueue("k", "bob", "");
    let master = format!("{{master=\"127.0.0.1:{}\"}}", server.port());
    let info: String = admin.run("INFO rlock");
    let metrics = exporter.metrics();
    let names = info.lines().filter_map(|line| line.split_once(':'));
    let numbers =
        names.filter(|(name, value)| *name != "rlock_commit" && value.parse::<u64>().is_ok());
    let names: Vec<_> = numbers.map(|(name, _)| name).collect();
    assert!(names.len() > 20, "{info}");
    for name in names {
        let as_counter = format!("\n{name}_total{master} ");
        let as_gauge = name.replace("wait_usec", "wait").replace("_ms", "");
        let seconds = format!("\n{as_gauge}_seconds{master} ");
        let shown = [as_counter, format!("\n{name}{master} "), seconds];
        assert!(
            shown.iter().any(|it| metrics.contains(it)),
            "{name}: {metrics}"
        );
    }
    assert_eq!(exporter.value(&format!("rlock_waiters{master}")), Some(1.0));
    let acquires = exporter.value(&format!("rlock_acquires_total{master}"));
    assert_eq!(acquires, Some(2.0));
    assert_eq!(exporter.value(&format!("rlock_up{master}")), Some(1.0));
}

#[test]
fn a_dump_that_failed_is_shown_until_one_succeeds() {
    let server = Server::start();
    let exporter = Exporter::start(&server.url(), &[]);
    let series = format!(
        "rlock_write_errors{{master=\"127.0.0.1:{}\"}}",
        server.port()
    );
    assert_eq!(exporter.value(&series), Some(0.0));
    let in_its_way = server.directory().join("dump.rdb");
    std::fs::create_dir(&in_its_way).unwrap();
    let mut admin = server.admin();
    let _: String = admin.run("BGSAVE");
    eventually("the failure is shown", || {
        exporter.value(&series) == Some(1.0)
    });
    std::fs::remove_dir(&in_its_way).unwrap();
    let _: String = admin.run("SAVE");
    assert_eq!(exporter.value(&series), Some(0.0));
}

#[test]
fn module_and_exporter_show_their_builds() {
    let server = Server::start();
    let exporter = Exporter::start(&server.url(), &[]);
    let build = |name: &str, labels: &str, version: &str, commit: &str| {
        let labels = format!("commit=\"{commit}\",{labels}version=\"{version}\"");
        exporter.value(&format!("{name}{{{labels}}}"))
    };
    let master = format!("master=\"127.0.0.1:{}\",", server.port());
    let [version, commit] = ["version", "commit"].map(|name| {
        let name = format!("rlock_{name}");
        server.info("rlock", &name)
    });
    assert_eq!(
        build("rlock_build_info", &master, &version, &commit),
        Some(1.0)
    );
    let shown = finished(rlock(&server).arg("--version")).stdout;
    let own = shown.trim_end().strip_prefix("rlock ");
    let (version, commit) = own.and_then(|own| own.split_once(" (")).unwrap();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let commit = commit.strip_suffix(')').unwrap();
    assert_ne!(commit, "");
    let shown = build("rlock_exporter_build_info", "", version, commit);
    assert_eq!(shown, Some(1.0), "{commit}");
}

#[test]
fn the_histogram_has_only_waits_that_ended_with_a_grant() {
    let server = Server::start();
    let exporter = Exporter::start(&server.url(), &[]);
    let master = format!("master=\"127.0.0.1:{}\"", server.port());
    let waits = |part: &str| exporter.value(&format!("rlock_wait_seconds_{part}"));
    let count = format!("count{{{master}}}");
    assert_eq!(waits(&count), Some(0.0), "a grant at once is no wait");
    server.held_by("k", "ann");
    let mut blocked = server.admin();
    let blocked =
        std::thread::spawn(move || blocked.run::<u64>("RLOCK.ACQUIRE k bob 60000 WAIT 60000"));
    let mut admin = server.admin();
    admin.queued(1);
    let over: Option<u64> = admin.run("RLOCK.ACQUIRE k cid 60000 WAIT 30");
    assert_eq!(over, None);
    let _: u64 = admin.run("RLOCK.RELEASE k ann");
    blocked.join().unwrap();
    let waited = server.info("rlock", "rlock_wait_usec_max");
    let waited: f64 = waited.parse::<f64>().unwrap() / 1e6;
    assert_eq!(waits(&count), Some(1.0));
    assert_eq!(waits(&format!("sum{{{master}}}")), Some(waited));
    let bounds = ["0.0001", "0.025", "30", "600", "+Inf"];
    let up_to = bounds.map(|bound| waits(&format!("bucket{{{master},le=\"{bound}\"}}")));
    assert_eq!(up_to, [0.0, 0.0, 1.0, 1.0, 1.0].map(Some));
}

#[test]
fn the_number_of_contended_locks_is_limited_and_any_name_is_shown() {
    let server = Server::start();
    let mut admin = server.admin();
    let long = "l".repeat(500);
    for (count, key) in [(1, "quiet"), (2, "a\"b\\c"), (3, &long)] {
        server.held_by(key, "ann");
        for number in 0..count {
            admin.enqueue(key, &format!("bob-{number}"), "");
        }
    }
    let exporter = Exporter::start(&server.url(), &["--locks", "2"]);
    let master = format!("master=\"127.0.0.1:{}\"", server.port());
    let waiters =
        |key: &str| exporter.value(&format!("rlock_lock_waiters{{key=\"{key}\",{master}}}"));
    assert_eq!(waiters("a\\\"b\\\\c"), Some(2.0));
    assert_eq!(waiters(&format!("{}…", "l".repeat(120))), Some(3.0));
    assert_eq!(waiters("quiet"), None);
    let none = Exporter::start(&server.url(), &["--locks", "0"]);
    assert!(!none.metrics().contains("rlock_lock_waiters{"));
}

#[test]
fn each_master_of_a_cluster_has_a_label() {
    let cluster = Cluster::start();
    let exporter = Exporter::start(&cluster.url(), &[]);
    for master in &cluster.masters {
        let up = format!("rlock_up{{master=\"127.0.0.1:{}\"}}", master.port());
        assert_eq!(exporter.value(&up), Some(1.0));
    }
}

#[test]
fn an_unreachable_server_is_shown_and_found_again() {
    let server = Server::start();
    let up = format!("rlock_up{{master=\"127.0.0.1:{}\"}}", server.port());
    server.signal("STOP");
    // It has never answered, and has its name anyway.
    let exporter = Exporter::start(&server.url(), &[]);
    for answers_first in [false, true] {
        let asked = Instant::now();
        assert_eq!(exporter.value(&up), Some(0.0), "{answers_first}");
        assert!(
            asked.elapsed() < Duration::from_secs(10),
            "Prometheus waits no longer"
        );
        assert_eq!(exporter.metrics().matches("\nrlock_up{").count(), 1);
        exporter.says(&format!("rlock_up of 127.0.0.1:{} is 0: ", server.port()));
        server.signal("CONT");
        eventually("it answers again", || exporter.value(&up) == Some(1.0));
        exporter.says("answers again");
        if !answers_first {
            server.signal("STOP");
        }
    }
}

#[test]
fn other_pages_and_methods_are_refused() {
    let server = Server::start();
    let exporter = Exporter::start(&server.url(), &[]);
    assert_eq!(get(&exporter.address, "/-/healthy").0, 200);
    assert!(get(&exporter.address, "/").1.contains("href=\"/metrics\""));
    assert_eq!(get(&exporter.address, "/secret").0, 404);
    let post = "POST /metrics HTTP/1.0\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(request(&exporter.address, post).0, 405);
}

#[test]
fn idle_connections_do_not_block_others() {
    let server = Server::start();
    let exporter = Exporter::start(&server.url(), &[]);
    let idle: Vec<_> = (0..64)
        .map(|_| TcpStream::connect(&exporter.address).unwrap())
        .collect();
    assert_eq!(get(&exporter.address, "/-/healthy").0, 200);
    drop(idle);
}

#[test]
fn a_signal_ends_the_exporter() {
    let server = Server::start();
    let mut exporter = Exporter::start(&server.url(), &[]);
    signal::send(exporter.process.id(), "TERM");
    let mut ended = None;
    eventually("it ends", || {
        ended = exporter.process.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(128 + 15));
}

#[test]
fn an_address_that_is_taken_is_named() {
    let server = Server::start();
    let taken = format!("127.0.0.1:{}", server.port());
    let mut command = rlock(&server);
    let ended = finished(
        command
            .args(["exporter", "--listen", &taken])
            .stdout(Stdio::null()),
    );
    ended.assert_code(2);
    ended.assert_says(&format!("--listen {taken}: cannot listen there"));
}
