//! Servers that speak TLS, and certificates that do not convince.

use std::time::{Duration, Instant};

use rlock_client::{Certificates, Client, Error};
use tempfile::TempDir;

use crate::connecting::locks_waits_and_comes_back;
use rlock_testkit::Setup;
use rlock_testkit::asynchronous::{Admin, Server, eventually};
use rlock_testkit::certificates::{Authority, Certified};

/// A server with two doors: one with TLS, and one without for the test itself.
struct TlsServer {
    server: Server,
    port: u16,
    authority: Authority,
    directory: TempDir,
}

impl TlsServer {
    /// One that asks clients for certificates: `yes`, `no` or `optional`.
    async fn start(asks_clients: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("the authority of this test");
        let (certificate, key) = authority
            .certify("localhost")
            .write(directory.path(), "server");
        let authorities = directory.path().join("authority.pem");
        std::fs::write(&authorities, &authority.pem).unwrap();
        let setup = Setup::new().tls(&certificate, &key, &authorities, asks_clients);
        let server = setup.start_async().await;
        Self {
            port: server.tls_port(),
            server,
            authority,
            directory,
        }
    }

    /// As a client connects that was given these.
    async fn connect(&self, certificates: Certificates) -> Result<Client, Error> {
        let builder = Client::builder().retry_timeout(Duration::from_millis(500));
        let builder = builder.certificates(certificates);
        let url = format!("rediss://localhost:{}/", self.port);
        builder.connect(url).await
    }

    async fn refusal(&self, certificates: Certificates) -> String {
        let begun = Instant::now();
        let error = self.connect(certificates).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(4), "at once");
        assert!(matches!(error, Error::Connect(_)), "{error:?}");
        assert!(!error.is_transient(), "{error:?}");
        error.to_string()
    }

    /// Has the server show another certificate to those who connect from now on.
    async fn show(&self, admin: &mut Admin, name: &str, shown: &Certified) {
        let (certificate, key) = shown.write(self.directory.path(), name);
        let (certificate, key) = (certificate.display(), key.display());
        let set = format!("CONFIG SET tls-cert-file {certificate} tls-key-file {key}");
        let _: () = admin.run(&set).await;
    }
}

/// What a client is given that trusts this authority, and shows `client`.
fn trusting(authority: &Authority, client: Option<&Certified>) -> Certificates {
    let certificates = Certificates::new().authorities(&*authority.pem);
    match client {
        Some(client) => certificates.client(&*client.certificate, &*client.key),
        None => certificates,
    }
}

#[tokio::test]
async fn locks_and_messages_go_over_tls() {
    let server = TlsServer::start("no").await;
    let client = server.connect(trusting(&server.authority, None)).await;
    locks_waits_and_comes_back(&client.unwrap(), &mut server.server.admin().await).await;
}

#[tokio::test]
async fn a_server_that_asks_for_certificates_is_shown_one() {
    let server = TlsServer::start("yes").await;
    let known = server.authority.certify("a client");
    let client = server
        .connect(trusting(&server.authority, Some(&known)))
        .await;
    locks_waits_and_comes_back(&client.unwrap(), &mut server.server.admin().await).await;
    let unknown = Authority::new("another").certify("a client");
    let refusal = server
        .refusal(trusting(&server.authority, Some(&unknown)))
        .await;
    assert!(refusal.contains("UnknownCA"), "{refusal}");
    let refusal = server.refusal(trusting(&server.authority, None)).await;
    assert!(refusal.contains("CertificateRequired"), "{refusal}");
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_refused_at_once() {
    let server = TlsServer::start("no").await;
    let other = Authority::new("another");
    let refusal = server.refusal(trusting(&other, None)).await;
    assert!(refusal.contains("invalid peer certificate"), "{refusal}");
    // Without a word about authorities, those of this machine are asked.
    let url = format!("rediss://localhost:{}/", server.port);
    let error = Client::connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let server = TlsServer::start("no").await;
    let other = server.authority.certify("other.example");
    server
        .show(&mut server.server.admin().await, "other", &other)
        .await;
    let refusal = server.refusal(trusting(&server.authority, None)).await;
    assert!(refusal.contains("not valid for name"), "{refusal}");
}

#[tokio::test]
async fn a_server_without_tls_is_an_error_and_no_hang() {
    let server = Server::start().await;
    let url = format!("rediss://localhost:{}/", server.port());
    let builder = Client::builder().response_timeout(Duration::from_millis(300));
    let error = builder.connect(&url).await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error:?}");
}

/// A certificate that is renewed wrongly ends no hold that a right one comes in time for.
#[tokio::test]
async fn calls_say_that_a_new_certificate_is_not_trusted_and_go_on_with_one_that_is() {
    let server = TlsServer::start("no").await;
    let mut admin = server.server.admin().await;
    let client = server
        .connect(trusting(&server.authority, None))
        .await
        .unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    let wrong = Authority::new("another").certify("localhost");
    server.show(&mut admin, "wrong", &wrong).await;
    admin.kill_lock_clients().await;
    eventually("the reason is shown", async || {
        let error = client.mutex("k").is_locked().await.unwrap_err();
        let Error::Unavailable { source, .. } = error else {
            panic!("{error:?}");
        };
        source.is_some_and(|source| source.to_string().contains("invalid peer certificate"))
    })
    .await;
    let right = server.authority.certify("localhost");
    server.show(&mut admin, "right", &right).await;
    eventually("connected again", async || {
        client.mutex("k").is_locked().await.is_ok()
    })
    .await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    admin.untouched("k").await;
}
