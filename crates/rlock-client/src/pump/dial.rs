//! Opens the connection to a server: TCP, a Unix socket, TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::select_ok;
use rlock_engine::error::Failure;
use rlock_engine::servers::Address;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

#[cfg(feature = "tls-rustls")]
pub(crate) use crate::pump::tls::TlsConfig;

/// Without TLS, there are no settings for it.
#[cfg(not(feature = "tls-rustls"))]
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsConfig {}

/// An open connection to a server.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    #[cfg(feature = "tls-rustls")]
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

/// Connects to the server at `address`, with TLS if the address says so.
///
/// `limit` is the time for everything: the look-up of the name, the connection and
/// the TLS handshake.
///
/// # Errors
///
/// The failures of [`failure`], and [`Failure::TimedOut`]. Each names the address.
///
/// # Cancel safety
///
/// Dropping the future closes what is open.
pub(crate) async fn dial(
    address: &Address,
    tls: &TlsConfig,
    limit: Duration,
) -> Result<Stream, Failure> {
    match tokio::time::timeout(limit, connect(address, tls)).await {
        Ok(connected) => connected.map_err(|error| failure(address, &error)),
        Err(_) => {
            let message = format!("{address}: no connection within {limit:?}");
            Err(Failure::TimedOut(message))
        }
    }
}

/// The failure for an error of a connection to `address`. A server refuses a
/// client's certificate after the handshake, with the first bytes.
pub(crate) fn failure(address: &Address, error: &io::Error) -> Failure {
    let message = format!("{address}: {error}");
    #[cfg(feature = "tls-rustls")]
    if super::tls::is_about_certificates(error) {
        return Failure::Certificate(message);
    }
    Failure::from(&io::Error::new(error.kind(), message))
}

async fn connect(address: &Address, config: &TlsConfig) -> io::Result<Stream> {
    match address {
        Address::Tcp { host, port, tls } => {
            let stream = connect_tcp(host, *port).await?;
            match tls {
                None => Ok(Stream::Tcp(stream)),
                #[cfg(feature = "tls-rustls")]
                Some(tls) => {
                    let stream = config.connect(*tls, host, stream).await?;
                    Ok(Stream::Tls(Box::new(stream)))
                }
                #[cfg(not(feature = "tls-rustls"))]
                Some(_) => {
                    let TlsConfig {} = config;
                    let error = "TLS needs the feature tls-rustls of rlock-client";
                    Err(io::Error::new(io::ErrorKind::InvalidInput, error))
                }
            }
        }
        #[cfg(unix)]
        Address::Unix { path } => Ok(Stream::Unix(UnixStream::connect(path).await?)),
        #[cfg(not(unix))]
        Address::Unix { .. } => {
            let error = "there are no Unix sockets on this platform";
            Err(io::Error::new(io::ErrorKind::InvalidInput, error))
        }
    }
}

/// Connects to the address of the host that answers first.
///
/// The operating system notices a vanished server after 11 s, without requests.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = tokio::net::lookup_host((host, port)).await?;
    let attempts = addresses.map(|address| Box::pin(TcpStream::connect(address)));
    let attempts: Vec<_> = attempts.collect();
    if attempts.is_empty() {
        let error = "the name of the host leads to no address";
        return Err(io::Error::new(io::ErrorKind::NotFound, error));
    }
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(2))
        .with_retries(3);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

/// Calls a method of the inner stream.
macro_rules! forward {
    ($stream:ident.$method:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).$method($($argument),*),
            #[cfg(unix)]
            Stream::Unix(stream) => Pin::new(stream).$method($($argument),*),
            #[cfg(feature = "tls-rustls")]
            Stream::Tls(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        forward!(self.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        forward!(self.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use rlock_engine::servers::{Servers, Tls};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, UnixListener};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn address(url: &str) -> Address {
        let servers: Servers = url.parse().unwrap();
        servers.addresses()[0].clone()
    }

    async fn opened(url: &str) -> Result<Stream, Failure> {
        dial(&address(url), &TlsConfig::default(), LIMIT).await
    }

    /// A listener that accepts no connections, and its port.
    async fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    /// Sends bytes and receives them again.
    async fn speaks(mut stream: Stream, mut other: impl AsyncRead + AsyncWrite + Unpin) {
        let mut bytes = [0; 4];
        stream.write_all(b"ping").await.unwrap();
        stream.flush().await.unwrap();
        other.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"ping");
        other.write_all(b"pong").await.unwrap();
        other.flush().await.unwrap();
        stream.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"pong");
        stream.shutdown().await.unwrap();
        assert_eq!(other.read(&mut bytes).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_host_is_reached_by_whichever_of_its_addresses_answers() {
        let (listener, port) = listener().await;
        for host in ["localhost", "127.0.0.1"] {
            let url = format!("redis://{host}:{port}");
            let (stream, accepted) = tokio::join!(opened(&url), listener.accept());
            let stream = stream.unwrap();
            let Stream::Tcp(tcp) = &stream else {
                panic!("{stream:?}");
            };
            let socket = SockRef::from(tcp);
            assert!(tcp.nodelay().unwrap() && socket.keepalive().unwrap());
            let after = socket.tcp_keepalive_time().unwrap().as_secs();
            let every = socket.tcp_keepalive_interval().unwrap().as_secs();
            let times = socket.tcp_keepalive_retries().unwrap();
            assert_eq!((after, every, times), (5, 2, 3));
            speaks(stream, accepted.unwrap().0).await;
        }
    }

    #[tokio::test]
    async fn a_unix_socket_is_reached() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a socket");
        let listener = UnixListener::bind(&path).unwrap();
        let url = Servers::One {
            address: Address::Unix { path },
            login: Default::default(),
        };
        let url = url.to_string();
        let (stream, accepted) = tokio::join!(opened(&url), listener.accept());
        speaks(stream.unwrap(), accepted.unwrap().0).await;
        let error = opened("unix:///nowhere/at/all").await.unwrap_err();
        assert!(matches!(error, Failure::Io(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("/nowhere/at/all: No such file"), "{text}");
    }

    #[tokio::test]
    async fn what_keeps_from_connecting_is_said_with_the_address() {
        let (listener, port) = listener().await;
        drop(listener);
        let error = opened(&format!("redis://127.0.0.1:{port}")).await;
        let Err(Failure::Io(text)) = &error else {
            panic!("{error:?}");
        };
        let words = format!("127.0.0.1:{port}: Connection refused");
        assert!(text.starts_with(&words), "{text}");
        let error = opened("redis://nobody.invalid:7").await;
        let Err(Failure::Io(text)) = &error else {
            panic!("{error:?}");
        };
        assert!(text.starts_with("nobody.invalid:7: "), "{text}");
    }

    /// The time limit includes the handshake.
    #[cfg(feature = "tls-rustls")]
    #[tokio::test]
    async fn a_server_that_says_nothing_is_given_up_in_time() {
        let (_listener, port) = listener().await;
        let address = address(&format!("rediss://127.0.0.1:{port}#insecure"));
        assert_eq!(address.tls(), Some(Tls { insecure: true }));
        let limit = Duration::from_millis(50);
        let error = dial(&address, &TlsConfig::default(), limit).await;
        let Err(Failure::TimedOut(text)) = &error else {
            panic!("{error:?}");
        };
        let words = format!("127.0.0.1:{port}: no connection within 50ms");
        assert_eq!(*text, words);
    }
}
