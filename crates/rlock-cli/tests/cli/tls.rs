//! Servers with TLS.

use std::process::Command;

use tempfile::TempDir;

use super::program::{finished, rlock_at};
use super::server::Asks;
use rlock_testkit::certificates::Authority;
use rlock_testkit::sentinel::Sentinel;
use rlock_testkit::{Server, Setup, eventually, free_port};

/// A server with TLS and the files that it and its clients need.
struct TlsServer {
    port: u16,
    files: TempDir,
    server: Server,
}

impl TlsServer {
    fn start(asks_clients: &str) -> Self {
        Self::start_as(asks_clients, Setup::new())
    }

    fn start_as(asks_clients: &str, setup: Setup) -> Self {
        let files = tempfile::tempdir().unwrap();
        let authority = Authority::new("the authority of this test");
        std::fs::write(files.path().join("ca.pem"), &authority.pem).unwrap();
        for name in ["localhost", "client", "127.0.0.1"] {
            authority.certify(name).write(files.path(), name);
        }
        let other = Authority::new("another").pem;
        std::fs::write(files.path().join("other.pem"), other).unwrap();
        let path = |name| files.path().join(name);
        let (certificate, key) = (path("localhost.pem"), path("localhost.key"));
        let setup = setup.tls(&certificate, &key, &path("ca.pem"), asks_clients);
        let server = setup.start();
        Self {
            port: server.tls_port(),
            files,
            server,
        }
    }

    /// `rlock` there, in the directory of the files.
    fn rlock(&self) -> Command {
        self.rlock_at(&format!("rediss://localhost:{}/", self.port))
    }

    fn rlock_at(&self, url: &str) -> Command {
        let mut command = rlock_at(url);
        command.current_dir(&self.files);
        command
    }
}

#[test]
fn commands_go_over_tls() {
    let server = TlsServer::start("no");
    for command in [
        &["exec", "k", "--", "true"][..],
        &["info", "k"],
        &["list"],
        &["doctor"],
        &["top", "--json", "--count", "1"],
    ] {
        let ended = finished(server.rlock().args(["--cacert", "ca.pem"]).args(command));
        ended.assert_code(0);
    }
    // The system's authorities, given by name.
    let ended = finished(
        server
            .rlock()
            .env("SSL_CERT_FILE", "ca.pem")
            .args(["info", "k"]),
    );
    ended.assert_code(0);
}

#[test]
fn a_server_that_asks_for_a_certificate_is_shown_one() {
    let server = TlsServer::start("yes");
    let trusting = ["info", "k", "--cacert", "ca.pem"];
    let shown = ["--cert", "client.pem", "--key", "client.key"];
    finished(server.rlock().args(trusting).args(shown)).assert_code(0);
    let ended = finished(server.rlock().args(trusting));
    ended.assert_code(122);
    ended.assert_says("CertificateRequired");
}

#[test]
fn a_certificate_that_is_not_trusted_is_122_and_named() {
    let server = TlsServer::start("no");
    for trusting in [&[][..], &["--cacert", "other.pem"]] {
        for command in [&["info", "k"][..], &["exec", "k", "--", "true"]] {
            let ended = finished(server.rlock().args(trusting).args(command));
            ended.assert_code(122);
            ended.assert_says("invalid peer certificate");
            ended.assert_says("--cacert");
        }
    }
}

#[test]
fn certificates_that_cannot_be_used_are_2() {
    let server = TlsServer::start("no");
    for (options, words) in [
        (&["--cacert", "nowhere.pem"][..], "cannot read nowhere.pem"),
        (&["--cert", "client.pem"], "--cert and --key go together"),
        (&["--key", "client.key"], "--cert and --key go together"),
        (&["--cert", "ca.pem", "--key", "ca.pem"], "private key"),
    ] {
        let ended = finished(server.rlock().args(["info", "k"]).args(options));
        ended.assert_code(2);
        ended.assert_says(words);
    }
    let mut plain = rlock_at("redis://localhost/");
    plain
        .current_dir(&server.files)
        .args(["--cacert", "ca.pem", "list"]);
    let ended = finished(&mut plain);
    ended.assert_code(2);
    ended.assert_says("rediss://");
}

#[test]
fn certificates_are_for_the_nodes_of_a_cluster() {
    let node = Setup::new().cluster_node().settings(&[
        ("tls-cluster", "yes"),
        ("cluster-announce-hostname", "localhost"),
        ("cluster-preferred-endpoint-type", "hostname"),
    ]);
    let server = TlsServer::start_as("yes", node);
    let mut admin = server.server.admin();
    let _: () = admin.run("CLUSTER ADDSLOTSRANGE 0 16383");
    eventually("the cluster serves all slots", || {
        let info: String = admin.run("CLUSTER INFO");
        info.contains("cluster_state:ok")
    });
    let url = format!("rediss+cluster://localhost:{}", server.port);
    let shown = [
        "--cacert",
        "ca.pem",
        "--cert",
        "client.pem",
        "--key",
        "client.key",
    ];
    for command in [
        &["exec", "k", "--", "true"][..],
        &["info", "k"],
        &["list"],
        &["doctor"],
    ] {
        let ended = finished(server.rlock_at(&url).args(shown).args(command));
        ended.assert_code(0);
    }
    let ended = finished(
        server
            .rlock_at(&url)
            .args(["list", "--cacert", "other.pem"]),
    );
    ended.assert_code(122);
    ended.assert_says("--cacert");
}

#[test]
fn certificates_are_for_sentinels_and_for_their_master() {
    let server = TlsServer::start("no");
    let file = |name: &str| server.files.path().join(name).display().to_string();
    let mut admin = server.server.admin();
    let (certificate, key) = (file("127.0.0.1.pem"), file("127.0.0.1.key"));
    let show = format!("CONFIG SET tls-cert-file {certificate} tls-key-file {key}");
    let _: () = admin.run(&show);
    let settings = |port| {
        format!(
            "port 0\ntls-port {port}\ntls-replication yes\ntls-auth-clients no\n\
         tls-cert-file {certificate}\ntls-key-file {key}\ntls-ca-cert-file {}",
            file("ca.pem")
        )
    };
    let sentinel = std::iter::repeat_with(free_port).find_map(|port| {
        let lines = settings(port);
        rlock_testkit::block_on(Sentinel::try_start(server.port, 1, port, &lines))
    });
    let port = sentinel.as_ref().unwrap().port();
    let url = format!("rediss+sentinel://127.0.0.1:{port}/locks");
    for command in [&["exec", "k", "--", "true"][..], &["info", "k"], &["list"]] {
        let mut rlock = server.rlock_at(&url);
        finished(rlock.args(["--cacert", "ca.pem"]).args(command)).assert_code(0);
    }
    let ended = finished(
        server
            .rlock_at(&url)
            .args(["list", "--cacert", "other.pem"]),
    );
    ended.assert_code(122);
    ended.assert_says("--cacert");
}
