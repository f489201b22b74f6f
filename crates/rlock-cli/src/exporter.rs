//! `rlock exporter`: serves the metrics of the servers to Prometheus.
//!
//! It asks the servers whenever Prometheus asks. `scrape` does that, `metrics`
//! names the metrics, and this file serves them over HTTP.

mod metrics;
mod scrape;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::address::Address;
use crate::failure::Failure;
use crate::output::Output;
use crate::signals::Signals;
use scrape::Scraper;

/// How many connections are served at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// How long a client may take to send its request. A connection serves one
/// request, so that idle connections do not use up the limit.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const PAGE: &str = "<!doctype html><title>rlock exporter</title>\
     <p>rlock exporter: <a href=\"/metrics\">/metrics</a></p>\n";

/// Serves the servers' metrics to Prometheus over HTTP
///
/// `/metrics` has all counters and gauges of `INFO rlock` for each master, and the
/// most contended locks. `/-/healthy` answers as long as the exporter runs. An
/// unreachable server has `rlock_up 0`.
#[derive(Debug, clap::Args)]
pub(crate) struct Exporter {
    /// Where to listen, as an IP address and a port; port 0 takes a free one.
    /// Everybody who can reach it sees the names of contended locks.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9751")]
    listen: SocketAddr,

    /// How many contended locks of each master to show, from 0 to 1000. Each
    /// is a separate time series.
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1000))]
    locks: u16,
}

pub(crate) async fn run(
    exporter: &Exporter,
    address: &Address,
    output: Output,
) -> Result<u8, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::internal("signals", &error))?;
    let scraper = Arc::new(Scraper::start(address, exporter.locks, output).await?);
    let listener = TcpListener::bind(exporter.listen).await;
    let listener = listener.map_err(|error| cannot_listen(exporter.listen, &error))?;
    let bound = listener.local_addr();
    let bound = bound.map_err(|error| cannot_listen(exporter.listen, &error))?;
    output.say(&format!(
        "rlock: http://{bound}/metrics has the numbers of {}",
        address.words()
    ));
    // This reports failures of the servers now, not at the first scrape.
    let first = Arc::clone(&scraper);
    tokio::spawn(async move { first.scrape().await });
    tokio::select! {
        received = signals.ending() => Ok(received.exit_code()),
        never = serve(&listener, &scraper) => match never {},
    }
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Failure {
    let message = format!("--listen {address}: cannot listen there: {error}");
    Failure::usage(message)
}

async fn serve(listener: &TcpListener, scraper: &Arc<Scraper>) -> Infallible {
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = Arc::clone(&free).acquire_owned().await;
        match (listener.accept().await, permit) {
            (Ok((stream, _)), Ok(permit)) => {
                tokio::spawn(connection(stream, Arc::clone(scraper), permit));
            }
            // Usually there are no file descriptors left. Some are free again
            // soon.
            _ => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Serves one connection to its end.
async fn connection(stream: TcpStream, scraper: Arc<Scraper>, _permit: OwnedSemaphorePermit) {
    let service = service_fn(|request| {
        let scraper = Arc::clone(&scraper);
        async move { Ok::<_, Infallible>(answer(&request, &scraper).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(REQUEST_LIMIT)
        .keep_alive(false);
    // An error means that the client has gone or has not sent HTTP.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: &Request<Incoming>, scraper: &Scraper) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return reply(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "only GET and HEAD\n",
        );
    }
    match request.uri().path() {
        "/metrics" => metrics(scraper).await,
        "/-/healthy" => reply(StatusCode::OK, "text/plain", "rlock exporter runs\n"),
        "/" => reply(StatusCode::OK, "text/html; charset=utf-8", PAGE),
        _ => reply(
            StatusCode::NOT_FOUND,
            "text/plain",
            "there is only /metrics\n",
        ),
    }
}

async fn metrics(scraper: &Scraper) -> Response<Full<Bytes>> {
    let Some(scrape) = scraper.scrape().await else {
        let busy = "too many scrapes at a time\n";
        return reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", busy);
    };
    match metrics::text(&scrape) {
        Ok(text) => reply(StatusCode::OK, prometheus::TEXT_FORMAT, text),
        Err(error) => {
            let message = format!("the metrics cannot be shown: {error}\n");
            reply(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", message)
        }
    }
}

fn reply(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
