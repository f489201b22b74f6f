//! What a program learns when its server cannot be used.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rlock_client::{Client, Error, Loss, Terms};
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Collects warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().starts_with("rlock_client")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn an_outage_is_logged_once() {
    let mut server = Server::start().await;
    let address = format!("127.0.0.1:{}", server.port());
    let warnings = Warnings::default();
    let seen = warnings.clone();
    let _guard = tracing::subscriber::set_default(warnings);
    let client = Client::connect(server.url()).await.unwrap();
    server.kill();
    let waiting = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock_timeout(PATIENCE).await }
    });
    eventually("a warning", async || seen.0.lock().unwrap().len() > 1).await;
    // Several attempts.
    tokio::time::sleep(Duration::from_secs(1)).await;
    waiting.abort();
    let seen = seen.0.lock().unwrap();
    let [lost, unreachable] = &seen[..] else {
        panic!("{seen:?}");
    };
    assert_eq!(lost, "connection to the server lost");
    let begin = format!("cannot reach {address} (");
    assert!(unreachable.starts_with(&begin), "{unreachable}");
    assert!(unreachable.ends_with("), trying again"), "{unreachable}");
}

#[tokio::test]
async fn a_refused_renewal_is_logged_once_with_the_rule() {
    let server = Server::start().await;
    let mut admin = server.admin().await;
    let _: () = admin.run("ACL SETUSER app on >p ~* &* +@all").await;
    let warnings = Warnings::default();
    let seen = warnings.clone();
    let _guard = tracing::subscriber::set_default(warnings);
    let url = format!("redis://app:p@127.0.0.1:{}", server.port());
    let client = Client::connect(&url).await.unwrap();
    let terms = Terms::new().lease(Duration::from_secs(1)).unwrap();
    let guard = client.mutex("k").with(terms).lock().await.unwrap();
    let _: () = admin.run("ACL SETUSER app -rlock.renew").await;
    let loss = tokio::time::timeout(PATIENCE, guard.loss()).await.unwrap();
    assert_eq!(loss, Loss::LeaseEnded);
    let seen = seen.0.lock().unwrap();
    let [refusal, risk, ..] = &seen[..] else {
        panic!("{seen:?}");
    };
    assert!(risk.starts_with("k is at risk (no renewal for "), "{risk}");
    assert!(
        refusal.starts_with("cannot renew k (not permitted: "),
        "{refusal}"
    );
    assert!(refusal.contains("needs +rlock.renew"), "{refusal}");
}

#[tokio::test]
async fn an_error_of_main_is_a_sentence() {
    let port = rlock_testkit::free_port();
    let error = Client::connect(&format!("redis://127.0.0.1:{port}"))
        .await
        .unwrap_err();
    let begin = format!("cannot connect to the server: 127.0.0.1:{port}: ");
    assert!(format!("{error:?}").starts_with(&begin), "{error:?}");
}

#[tokio::test]
async fn a_lack_of_rights_names_the_key_and_the_rule() {
    let server = Server::start().await;
    let mut admin = server.admin().await;
    let few = "ACL SETUSER few on >p ~other:* &rlock:client:* +@all";
    let _: () = admin.run(few).await;
    let url = format!("redis://few:p@127.0.0.1:{}", server.port());
    let client = Client::connect(&url).await.unwrap();
    let denied = |error: Option<Error>| match error {
        Some(Error::Denied(text)) => text,
        other => panic!("{other:?}"),
    };
    let text = denied(client.mutex("invoice:7").lock().await.err());
    let rule = "the user's ACL needs a pattern for the key 'invoice:7', such as ~invoice:*";
    assert!(text.contains(rule), "{text}");
    let _: () = admin.run("ACL SETUSER few -rlock.acquire").await;
    let text = denied(client.mutex("other:7").lock().await.err());
    let rule = "the 'rlock.acquire' command; the user's ACL needs +rlock.acquire";
    assert!(text.contains(rule), "{text}");
}

/// A release that nobody waits for is no call, and keeps its place among calls.
#[tokio::test]
async fn what_was_begun_in_an_outage_is_sent_in_its_order() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    let mutex = client.mutex("k");
    let guard = mutex.lock().await.unwrap();
    proxy.set(Weather::Swallow);
    drop(guard);
    let tries = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.try_lock().await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.set(Weather::Fair);
    // It makes the broken connection known.
    let other = client.mutex("other").lock().await.unwrap();
    assert!(tries.await.unwrap().unwrap().is_some());
    drop(other);
}
