//! What a client tells a listener, and the spans of its calls.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rlock_client::{Client, Occurrence, OccurrenceKind, Terms};
use rlock_testkit::asynchronous::{PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// What a listener heard.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Occurrence>>>);

impl Heard {
    fn listener(&self) -> impl Fn(&Occurrence) + Send + Sync + 'static {
        let heard = Arc::clone(&self.0);
        move |occurrence| heard.lock().unwrap().push(occurrence.clone())
    }

    /// Those of that kind.
    fn of(&self, kind: OccurrenceKind) -> Vec<Occurrence> {
        let heard = self.0.lock().unwrap();
        let of_kind = heard.iter().filter(|it| it.kind == kind);
        of_kind.cloned().collect()
    }
}

#[tokio::test]
async fn a_listener_hears_of_waits_holds_and_connections() {
    let mut server = Server::start().await;
    let heard = Heard::default();
    let builder = Client::builder().listener(heard.listener());
    let client = builder.connect(server.url()).await.unwrap();
    let address = format!("127.0.0.1:{}", server.port());
    assert_eq!(heard.of(OccurrenceKind::Connected)[0].text, address);

    let mutex = client.mutex("k");
    let guard = mutex.lock().await.unwrap();
    assert!(client.mutex("k").try_lock().await.unwrap().is_none());
    let brief = Duration::from_millis(50);
    assert!(
        client
            .mutex("k")
            .lock_timeout(brief)
            .await
            .unwrap()
            .is_none()
    );
    let owner = guard.owner().clone();
    guard.release().await.unwrap();
    let waits = heard.of(OccurrenceKind::Wait);
    let outcomes: Vec<_> = waits.iter().map(|it| it.outcome).collect();
    assert_eq!(outcomes, ["granted", "refused", "refused"]);
    assert!(waits[2].duration >= brief);
    assert_eq!(waits[0].owner(), Some(&owner));
    let holds = heard.of(OccurrenceKind::Hold);
    assert_eq!(holds[0].outcome, "released");
    assert!(holds[0].duration >= brief);
    assert_eq!(holds[0].keys().collect::<Vec<_>>(), [b"k"]);
    let shown = format!("{:?}", holds[0]);
    assert!(
        shown.contains("released") && !shown.contains(owner.as_str()),
        "{shown}"
    );

    let lost = mutex.lock().await.unwrap();
    mutex.force_release().await.unwrap();
    tokio::time::timeout(PATIENCE, lost.loss()).await.unwrap();
    eventually("the loss", async || {
        heard.of(OccurrenceKind::Hold).len() == 2
    })
    .await;
    assert_eq!(heard.of(OccurrenceKind::Hold)[1].outcome, "ended_by_server");

    server.kill();
    eventually("the end of the connection", async || {
        !heard.of(OccurrenceKind::NotConnected).is_empty()
    })
    .await;
    assert_eq!(heard.of(OccurrenceKind::Disconnected)[0].text, address);
}

#[tokio::test]
async fn a_listener_hears_of_a_risk_before_the_loss() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let heard = Heard::default();
    let builder = Client::builder().listener(heard.listener());
    let client = builder.connect(proxy.url()).await.unwrap();
    let terms = Terms::new().lease(Duration::from_secs(2)).unwrap();
    let guard = client.mutex("k").with(terms).lock().await.unwrap();
    proxy.set(Weather::Swallow);
    let loss = guard.loss();
    eventually("a risk", async || {
        !heard.of(OccurrenceKind::AtRisk).is_empty()
    })
    .await;
    let risk = &heard.of(OccurrenceKind::AtRisk)[0];
    assert!(loss.now().is_none() && risk.duration <= Duration::from_secs(1));
    assert_eq!(risk.keys().collect::<Vec<_>>(), [b"k"]);
    tokio::time::timeout(PATIENCE, loss).await.unwrap();
    let holds = || heard.of(OccurrenceKind::Hold);
    eventually("the end", async || !holds().is_empty()).await;
    assert_eq!(holds()[0].outcome, "lease_ended");
}

#[tokio::test]
async fn a_listener_that_panics_changes_nothing() {
    let server = Server::start().await;
    let builder = Client::builder().listener(|_| panic!("a listener's mistake"));
    let client = builder.connect(server.url()).await.unwrap();
    for _ in 0..3 {
        let guard = client.mutex("k").lock().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[cfg(feature = "quorum")]
#[tokio::test]
async fn a_lock_of_a_quorum_is_one_wait_and_one_hold() {
    let members = crate::quorum::Members::start(3).await;
    let heard = Heard::default();
    let settings = Client::builder().listener(heard.listener());
    let quorum = rlock_client::Quorum::builder().members(settings);
    let quorum = quorum.connect(members.urls()).await.unwrap();
    let guard = crate::quorum::mutex(&quorum).lock().await.unwrap();
    guard.release().await.unwrap();
    let count = |kind| heard.of(kind).len();
    assert_eq!(count(OccurrenceKind::Connected), 3);
    assert_eq!(count(OccurrenceKind::Wait), 1);
    assert_eq!(count(OccurrenceKind::Hold), 1);
    let hold = &heard.of(OccurrenceKind::Hold)[0];
    assert_eq!((hold.outcome, hold.keys().count()), ("released", 1));
}

/// The fields of each span, as they are recorded, and of each event.
#[derive(Clone, Default)]
struct Traces {
    spans: Arc<Mutex<Vec<String>>>,
    events: Arc<Mutex<Vec<String>>>,
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Traces {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut spans = self.spans.lock().unwrap();
        let mut text = attributes.metadata().name().to_owned();
        attributes.record(&mut Fields(&mut text));
        spans.push(text);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut spans = self.spans.lock().unwrap();
        values.record(&mut Fields(&mut spans[span.into_u64() as usize - 1]));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let place = if event.is_root() { "" } else { " in a span" };
        let mut text = format!("{}{place}", event.metadata().level());
        event.record(&mut Fields(&mut text));
        self.events.lock().unwrap().push(text);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_span_has_the_outcome_of_a_call_and_no_key() {
    let server = Server::start().await;
    let client = Client::connect(server.url()).await.unwrap();
    let traces = Traces::default();
    let _guard = tracing::subscriber::set_default(traces.clone());
    let guard = client.mutex("secret").lock().await.unwrap();
    let mutex = client.mutex("secret");
    assert!(mutex.try_lock().await.unwrap().is_none());
    let mut admin = server.admin().await;
    let _: () = admin.run("SET text x").await;
    client.mutex("text").try_lock().await.unwrap_err();
    guard.release().await.unwrap();
    let spans = traces.spans.lock().unwrap();
    let ends = [
        "rlock.outcome=\"granted\"",
        "rlock.outcome=\"refused\"",
        "error.type=\"NotALock\" otel.status_code=\"error\"",
    ];
    let calls = spans.iter().filter(|it| it.starts_with("rlock.acquire"));
    let calls: Vec<_> = calls.collect();
    assert_eq!(calls.len(), ends.len(), "{spans:?}");
    for (call, end) in calls.iter().zip(ends) {
        assert!(call.contains("db.system.name=\"redis\""), "{call}");
        assert!(call.ends_with(end) && !call.contains("secret"), "{call}");
    }
    // A layer for traces leaves them out by their level.
    let events = traces.events.lock().unwrap();
    let with_key = events.iter().filter(|it| it.contains("rlock.key=secret"));
    let with_key: Vec<_> = with_key.collect();
    assert_eq!(with_key.len(), 2, "{events:?}");
    assert!(with_key.iter().all(|it| it.starts_with("TRACE in a span")));
}

#[tokio::test]
async fn a_warning_with_a_key_is_in_no_span() {
    let server = Server::start().await;
    let client = Client::connect(server.url()).await.unwrap();
    let traces = Traces::default();
    let _guard = tracing::subscriber::set_default(traces.clone());
    let guard = client.mutex("secret").lock().await.unwrap();
    client.mutex("secret").force_release().await.unwrap();
    tokio::time::timeout(PATIENCE, guard.loss()).await.unwrap();
    let events = traces.events.lock().unwrap();
    let warning = events.iter().find(|it| it.contains("lock lost"));
    assert!(warning.unwrap().starts_with("WARN message"), "{events:?}");
}
