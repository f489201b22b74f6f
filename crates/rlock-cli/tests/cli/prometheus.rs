//! The alerts and the dashboard in `deploy`, with a real Prometheus.
//!
//! A machine without Prometheus skips these tests, and says so. With `CI=true`
//! that is a failure.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::exporter::{Exporter, get};
use super::server::Asks;
use rlock_testkit::{Server, eventually, free_port};

fn deployed(path: &str) -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    top.join("deploy").join(path).canonicalize().unwrap()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(deployed(path)).unwrap()
}

/// Whether Prometheus is on this machine.
fn is_here() -> bool {
    let runs = |program| Command::new(program).arg("--version").output().is_ok();
    let is_here = runs("prometheus") && runs("promtool");
    if !is_here {
        eprintln!("left out: Prometheus is not on this machine");
        let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!is_ci, "apt-get install prometheus");
    }
    is_here
}

fn promtool(arguments: &[&str], input: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("input");
    std::fs::write(&path, input).unwrap();
    let mut command = Command::new("promtool");
    command
        .args(arguments)
        .stdin(std::fs::File::open(path).unwrap());
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let output = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{output}");
}

#[test]
fn alerts_fire_on_their_conditions_and_on_nothing_else() {
    if is_here() {
        let rules = deployed("prometheus/alerts.yml");
        promtool(&["check", "rules", rules.to_str().unwrap()], "");
        let tests = deployed("prometheus/alerts_test.yml");
        promtool(&["test", "rules", tests.to_str().unwrap()], "");
    }
}

#[test]
fn metrics_are_named_as_prometheus_wants() {
    if is_here() {
        let server = Server::start();
        let exporter = Exporter::start(&server.url(), &[]);
        promtool(&["check", "metrics"], &exporter.metrics());
    }
}

/// A Prometheus that scrapes one exporter; ended when the value is dropped.
struct Prometheus {
    process: Child,
    address: String,
    _directory: TempDir,
}

impl Prometheus {
    fn start(exporter: &Exporter, rules: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("alerts.yml"), rules).unwrap();
        let configuration = format!(
            "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms }}\n\
             rule_files: [alerts.yml]\n\
             scrape_configs: [{{ job_name: rlock, static_configs: [{{ targets: ['{}'] }}] }}]\n",
            exporter.address
        );
        std::fs::write(directory.path().join("prometheus.yml"), configuration).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let process = Command::new("prometheus")
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let prometheus = Self {
            process,
            address,
            _directory: directory,
        };
        eventually("Prometheus is ready", || prometheus.is_ready());
        prometheus
    }

    fn is_ready(&self) -> bool {
        std::net::TcpStream::connect(&self.address).is_ok()
            && get(&self.address, "/-/ready").0 == 200
    }

    fn firing(&self) -> BTreeSet<String> {
        let (_, body) = get(&self.address, "/api/v1/alerts");
        let answer: Value = serde_json::from_str(&body).unwrap();
        let alerts = answer["data"]["alerts"].as_array().unwrap().iter();
        let firing = alerts.filter(|alert| alert["state"] == "firing");
        firing
            .map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned())
            .collect()
    }

    /// How many series an expression has.
    fn series(&self, expression: &str) -> usize {
        let query = percent_encode(expression);
        let (status, body) = get(&self.address, &format!("/api/v1/query?query={query}"));
        assert_eq!(status, 200, "{expression}: {body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        answer["data"]["result"].as_array().unwrap().len()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn percent_encode(text: &str) -> String {
    let hex = |byte: u8| format!("%{byte:02X}");
    text.bytes().map(hex).collect()
}

/// The rules with the same thresholds, but without waiting times.
fn rules_without_delay() -> String {
    let rules = text("prometheus/alerts.yml");
    let lines = rules
        .lines()
        .map(|line| match line.trim_start().starts_with("for:") {
            true => "        for: 0s".to_owned(),
            false => line.replace("oldest_wait_seconds > 300", "oldest_wait_seconds > 1"),
        });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_deadlock_a_stuck_holder_and_a_full_queue_are_noticed() {
    if !is_here() {
        return;
    }
    let server = Server::start();
    let exporter = Exporter::start(&server.url(), &[]);
    let prometheus = Prometheus::start(&exporter, &rules_without_delay());
    eventually("it has looked twice", || {
        prometheus.series("rlock_deadlocks_total offset 1s") == 1
    });
    assert_eq!(prometheus.firing(), BTreeSet::new());

    let mut admin = server.admin();
    server.held_by("a", "ann");
    server.held_by("b", "bob");
    admin.enqueue("a", "bob", "");
    let mut refused = redis::cmd("RLOCK.ACQUIRE");
    refused.arg(&["b", "ann", "30000", "WAIT", "0"]);
    let refused = server.query(&refused).unwrap_err();
    assert_eq!(refused.code(), Some("DEADLOCK"));
    for number in 0..8_000 {
        admin.enqueue("a", &format!("w-{number}"), "");
    }

    let expected = [
        "RlockCrowd",
        "RlockDeadlocks",
        "RlockQueueNearlyFull",
        "RlockStuckHolder",
    ];
    let expected: BTreeSet<_> = expected.map(str::to_owned).into();
    eventually("all of it is noticed", || prometheus.firing() == expected);
    drop(exporter);
    let expected = BTreeSet::from(["RlockExporterDown".to_owned()]);
    eventually("the exporter is missed", || {
        prometheus.firing().is_superset(&expected)
    });
}

#[test]
fn each_panel_of_the_dashboard_shows_something() {
    if !is_here() {
        return;
    }
    let server = Server::start();
    let mut admin = server.admin();
    server.held_by("a", "ann");
    admin.enqueue("a", "bob", "");
    let exporter = Exporter::start(&server.url(), &[]);
    let prometheus = Prometheus::start(&exporter, "");
    eventually("it has looked twice", || {
        prometheus.series("rlock_up offset 1s") == 1
    });
    for expression in dashboard() {
        let expression = expression
            .replace("$__rate_interval", "1m")
            .replace("$master", ".*");
        assert!(prometheus.series(&expression) > 0, "{expression}");
    }
}

/// The expressions of the dashboard.
fn dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&text("grafana/rlock.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let expressions: Vec<_> = targets
        .map(|it| it["expr"].as_str().unwrap().to_owned())
        .collect();
    assert!(expressions.len() > 20);
    expressions
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    words
        .filter(|word| word.starts_with("rlock_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_page_the_alerts_and_the_dashboard_name_existing_metrics() {
    let server = Server::start();
    server.held_by("a", "ann");
    let mut admin = server.admin();
    admin.enqueue("a", "bob", "");
    let exporter = Exporter::start(&server.url(), &[]);
    let metrics = exporter.metrics();
    let lines = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let shown: BTreeSet<_> = lines
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    let page = include_str!("../../../../docs/cli.md");
    let section = page
        .split("\n## rlock exporter")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let histogram = ["bucket", "count", "sum"].map(|part| format!("rlock_wait_seconds_{part}"));
    let mut named = names(section);
    named.retain(|name| !histogram.contains(name));
    assert_eq!(named, shown);
    let series: BTreeSet<_> = shown.into_iter().chain(histogram).collect();
    let used = names(&(text("prometheus/alerts.yml") + &dashboard().join(" ")));
    let used: BTreeSet<_> = used.difference(&series).collect();
    assert_eq!(used, BTreeSet::new());
}
