//! Servers that speak TLS.

use std::process::Command;

use tempfile::TempDir;

use super::certificates::Authority;
use super::program::{finished, rlock_at};
use super::server::{Server, free_port};

/// A server with TLS and the files that it and its clients need.
struct TlsServer {
    port: u16,
    files: TempDir,
    _server: Server,
}

impl TlsServer {
    fn start(asks_clients: &str) -> Self {
        let (files, port) = (tempfile::tempdir().unwrap(), free_port());
        let authority = Authority::new("the authority of this test");
        std::fs::write(files.path().join("ca.pem"), &authority.pem).unwrap();
        for name in ["localhost", "client"] {
            authority.certify(name).write(files.path(), name);
        }
        let other = Authority::new("another").pem;
        std::fs::write(files.path().join("other.pem"), other).unwrap();
        let file = |name| files.path().join(name).display().to_string();
        let server = Server::start_locking(&[
            ("tls-port", &port.to_string()),
            ("tls-cert-file", &file("localhost.pem")),
            ("tls-key-file", &file("localhost.key")),
            ("tls-ca-cert-file", &file("ca.pem")),
            ("tls-auth-clients", asks_clients),
        ]);
        Self {
            port,
            files,
            _server: server,
        }
    }

    /// `rlock` there, in the directory of the files.
    fn rlock(&self) -> Command {
        let mut command = rlock_at(&format!("rediss://localhost:{}/", self.port));
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
        &["top", "--json", "--count", "1"],
    ] {
        let ended = finished(server.rlock().args(["--cacert", "ca.pem"]).args(command));
        ended.assert_code(0);
    }
    // The system's authorities, where it is told that these are they.
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
fn a_certificate_that_is_not_trusted_is_122_and_said_to_be() {
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
