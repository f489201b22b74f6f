//! A network between client and server that can fail on request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::asynchronous::url;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Everything arrives.
    Fair,
    /// The next request with these bytes is carried out, but its connection ends
    /// before the reply; then fair again.
    CutReplyTo(&'static str),
    /// Nothing arrives, and no connection ends. A connection that has lost bytes ends at the next bytes in another
    /// weather.
    Swallow,
    /// Bytes from the server arrive only when the weather has changed.
    Fog,
    /// Every request arrives, but after this delay.
    Slow(Duration),
    /// The next request with these bytes arrives only when
    /// [`Proxy::let_late_request_arrive`] is called; fair for everything else.
    DelayRequest(&'static str),
    /// After this number of bytes from clients, the current connection ends; then
    /// fair.
    CutRequests(usize),
    /// The same with bytes from the server.
    CutReplies(usize),
}

impl Weather {
    /// How many of the received bytes still arrive before the connection ends; `None` if all do.
    fn cut(&mut self, length: usize, is_request: bool) -> Option<usize> {
        let left = match self {
            Self::CutRequests(left) if is_request => left,
            Self::CutReplies(left) if !is_request => left,
            _ => return None,
        };
        if length < *left {
            *left -= length;
            return None;
        }
        let arrive = *left;
        *self = Self::Fair;
        Some(arrive)
    }
}

#[derive(Debug, Default)]
struct Late {
    arrive: Notify,
    carried_out: Notify,
    refused: Notify,
}

#[derive(Debug)]
struct State {
    late: Late,
    weather: Mutex<Weather>,
    requests: Mutex<Vec<u8>>,
    /// The largest number of renewals in progress on one connection.
    most_renewals: AtomicUsize,
}

/// The unanswered renewals on one connection.
#[derive(Default)]
struct Renewals {
    asked: Vec<u8>,
    underway: usize,
}

impl Renewals {
    /// Counts the renewals in a piece of the client's bytes; one may be cut in
    /// two.
    fn asked(&mut self, bytes: &[u8], most: &AtomicUsize) {
        const NAME: &[u8] = b"RLOCK.RENEW";
        self.asked.extend(bytes);
        let found = |window: &[u8]| window == NAME;
        self.underway += self.asked.windows(NAME.len()).filter(|w| found(w)).count();
        let kept = self.asked.len().saturating_sub(NAME.len() - 1);
        self.asked.drain(..kept);
        most.fetch_max(self.underway, Ordering::SeqCst);
    }

    /// Counts the replies, each a number, while there are no other requests.
    fn answered(&mut self, bytes: &[u8]) {
        let replies = bytes.iter().filter(|byte| **byte == b':').count();
        self.underway = self.underway.saturating_sub(replies);
    }
}

pub struct Proxy {
    state: Arc<State>,
    port: u16,
    task: JoinHandle<()>,
}

impl Proxy {
    pub async fn to(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            late: Late::default(),
            weather: Mutex::new(Weather::Fair),
            requests: Mutex::default(),
            most_renewals: AtomicUsize::new(0),
        });
        let task = tokio::spawn({
            let state = Arc::clone(&state);
            async move {
                loop {
                    let (client, _) = listener.accept().await.unwrap();
                    let server = TcpStream::connect(("127.0.0.1", server_port))
                        .await
                        .unwrap();
                    tokio::spawn(forward(client, server, Arc::clone(&state)));
                }
            }
        });
        Self { state, port, task }
    }

    pub fn url(&self) -> String {
        url(self.port)
    }

    pub fn set(&self, weather: Weather) {
        *self.state.weather.lock().unwrap() = weather;
    }

    pub fn weather(&self) -> Weather {
        self.state.weather.lock().unwrap().clone()
    }

    /// Lets the delayed request arrive; whether the server carried it out.
    pub async fn let_late_request_arrive(&self) -> bool {
        self.state.late.arrive.notify_one();
        tokio::select! {
            () = self.state.late.carried_out.notified() => true,
            () = self.state.late.refused.notified() => false,
        }
    }

    /// Deletes all records.
    pub fn forget(&self) {
        self.state.requests.lock().unwrap().clear();
        self.state.most_renewals.store(0, Ordering::SeqCst);
    }

    pub fn most_renewals(&self) -> usize {
        self.state.most_renewals.load(Ordering::SeqCst)
    }

    /// Every byte that clients have sent.
    pub fn requests(&self) -> Vec<u8> {
        self.state.requests.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(mut client: TcpStream, mut server: TcpStream, state: Arc<State>) -> Option<()> {
    let (mut request, mut reply) = ([0; 65536], [0; 65536]);
    let mut renewals = Renewals::default();
    let mut has_lost = false;
    loop {
        tokio::select! {
            // A reply is not delayed, after any number of requests.
            biased;
            length = server.read(&mut reply) => {
                let bytes = reply.get(..length.ok().filter(|length| *length > 0)?)?;
                while *state.weather.lock().unwrap() == Weather::Fog {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                let cut = state.weather.lock().unwrap().cut(bytes.len(), false);
                if let Some(arrive) = cut {
                    return end(client, &bytes[..arrive]).await;
                }
                let weather = state.weather.lock().unwrap().clone();
                renewals.answered(bytes);
                match weather {
                    Weather::Swallow => has_lost = true,
                    _ if has_lost => return None,
                    _ => client.write_all(bytes).await.ok()?,
                }
            }
            length = client.read(&mut request) => {
                let bytes = request.get(..length.ok().filter(|length| *length > 0)?)?;
                state.requests.lock().unwrap().extend(bytes);
                let cut = state.weather.lock().unwrap().cut(bytes.len(), true);
                if let Some(arrive) = cut {
                    return end(server, &bytes[..arrive]).await;
                }
                renewals.asked(bytes, &state.most_renewals);
                let weather = state.weather.lock().unwrap().clone();
                match weather {
                    Weather::Swallow => has_lost = true,
                    // Bytes after a gap would be mistaken for the lost bytes.
                    _ if has_lost => return None,
                    Weather::CutReplyTo(words) if contains(bytes, words) => {
                        server.write_all(bytes).await.ok()?;
                        // The reply shows that the server carried it out.
                        let _ = server.read(&mut reply).await.ok()?;
                        *state.weather.lock().unwrap() = Weather::Fair;
                        return None;
                    }
                    Weather::DelayRequest(words) if contains(bytes, words) => {
                        *state.weather.lock().unwrap() = Weather::Fair;
                        deliver_late(&mut server, bytes, &state.late).await;
                        return None;
                    }
                    Weather::Slow(delay) => {
                        tokio::time::sleep(delay).await;
                        server.write_all(bytes).await.ok()?;
                    }
                    _ => server.write_all(bytes).await.ok()?,
                }
            }
        }
    }
}

/// Delivers the last bytes.
async fn end(mut stream: TcpStream, bytes: &[u8]) -> Option<()> {
    stream.write_all(bytes).await.ok()?;
    stream.shutdown().await.ok()
}

/// Delivers a request although its client may have disconnected long ago.
async fn deliver_late(server: &mut TcpStream, bytes: &[u8], late: &Late) {
    late.arrive.notified().await;
    let sent = server.write_all(bytes).await;
    let answered = matches!(server.read(&mut [0; 64]).await, Ok(1..));
    if sent.is_ok() && answered {
        late.carried_out.notify_one();
    } else {
        late.refused.notify_one();
    }
}

fn contains(bytes: &[u8], words: &str) -> bool {
    bytes
        .windows(words.len())
        .any(|window| window == words.as_bytes())
}
