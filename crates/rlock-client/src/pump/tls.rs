//! The certificates for TLS: the trusted authorities and the client's own.

use std::fmt;
use std::io;
use std::sync::Arc;

use rlock_engine::error::Error;
use rlock_engine::servers::Tls;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Certificates for servers with TLS, all of them PEM.
///
/// Debug output does not contain them.
///
/// # Examples
///
/// A private authority, whose servers also require client certificates.
///
/// ```no_run
/// use rlock_client::Certificates;
///
/// # fn example() -> std::io::Result<Certificates> {
/// let certificates = Certificates::new()
///     .authorities(std::fs::read("authority.pem")?)
///     .client(std::fs::read("billing.pem")?, std::fs::read("billing.key")?);
/// # Ok(certificates) }
/// ```
#[derive(Clone, Default)]
pub struct Certificates {
    authorities: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    /// Trusts the system's authorities, and presents no certificate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in `pem`, instead of the system's.
    #[must_use]
    pub fn authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities = Some(pem.into());
        self
    }

    /// Presents `certificate` to the servers, with the private key `key`. If the
    /// servers need the certificates of its authorities, append them.
    #[must_use]
    pub fn client(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client = Some((certificate.into(), key.into()));
        self
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates(…)")
    }
}

/// The same, ready for use.
///
/// The cryptography comes from the default provider of `rustls` that the program
/// has installed, otherwise from `ring`.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsConfig {
    /// None for the system's authorities.
    authorities: Option<Arc<RootCertStore>>,
    shown: Option<Arc<dyn ResolvesClientCert>>,
}

impl TlsConfig {
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for text that is not PEM, for a missing certificate,
    /// and for a key that belongs to another certificate.
    pub(crate) fn new(certificates: &Certificates) -> Result<Self, Error> {
        let authorities = certificates.authorities.as_deref().map(trusted);
        let client = certificates.client.as_ref();
        let shown = client.map(|(certificate, key)| shown(certificate, key));
        Ok(Self {
            authorities: authorities.transpose().map_err(unusable)?,
            shown: shown.transpose().map_err(unusable)?,
        })
    }

    /// Begins TLS on a connection to `host`, a name or an IP address.
    pub(crate) async fn connect(
        &self,
        tls: Tls,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let config = Arc::new(self.config(tls).await?);
        TlsConnector::from(config).connect(name, stream).await
    }

    /// The system's authorities are read again for each connection, because they
    /// may have changed.
    async fn config(&self, tls: Tls) -> io::Result<ClientConfig> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let builder = if tls.insecure {
            let verifier = Arc::new(Anybody(provider));
            builder
                .dangerous()
                .with_custom_certificate_verifier(verifier)
        } else {
            let authorities = match &self.authorities {
                Some(authorities) => Arc::clone(authorities),
                None => tokio::task::spawn_blocking(of_the_system).await??,
            };
            builder.with_root_certificates(authorities)
        };
        Ok(match &self.shown {
            Some(shown) => builder.with_client_cert_resolver(Arc::clone(shown)),
            None => builder.with_no_client_auth(),
        })
    }
}

fn provider() -> Arc<CryptoProvider> {
    let chosen = CryptoProvider::get_default().cloned();
    chosen.unwrap_or_else(|| Arc::new(ring::default_provider()))
}

fn unusable(reason: String) -> Error {
    Error::OutOfRange {
        argument: "certificates",
        value: format!("not to be used ({reason})"),
        limit: "PEM, each with its own key".into(),
    }
}

/// Whether one side has refused the other's certificate.
pub(super) fn is_about_certificates(error: &io::Error) -> bool {
    use rustls::AlertDescription as Alert;
    let error = error.get_ref().and_then(|error| error.downcast_ref());
    match error {
        Some(rustls::Error::InvalidCertificate(_)) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            Alert::BadCertificate
                | Alert::CertificateExpired
                | Alert::CertificateRequired
                | Alert::CertificateRevoked
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::UnsupportedCertificate
        ),
        _ => false,
    }
}

fn certificates_in(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err("there is no certificate".to_owned()),
        Ok(all) => Ok(all),
        Err(error) => Err(format!("a certificate cannot be read: {error}")),
    }
}

fn trusted(pem: &[u8]) -> Result<Arc<RootCertStore>, String> {
    let mut authorities = RootCertStore::empty();
    for certificate in certificates_in(pem)? {
        let added = authorities.add(certificate);
        added.map_err(|error| format!("an authority cannot be read: {error}"))?;
    }
    Ok(Arc::new(authorities))
}

fn shown(certificate: &[u8], key: &[u8]) -> Result<Arc<dyn ResolvesClientCert>, String> {
    let certificates = certificates_in(certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key);
    let key = key.map_err(|error| format!("the private key cannot be read: {error}"))?;
    let certified = CertifiedKey::from_der(certificates, key, &provider());
    let certified = certified.map_err(|error| format!("the private key: {error}"))?;
    Ok(Arc::new(SingleCertAndKey::from(certified)))
}

fn of_the_system() -> io::Result<Arc<RootCertStore>> {
    let mut found = rustls_native_certs::load_native_certs();
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(found.certs);
    match found.errors.pop() {
        Some(error) if authorities.is_empty() => {
            let message = format!("the system's authorities cannot be read: {error}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
        _ => Ok(Arc::new(authorities)),
    }
}

/// Accepts any certificate.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.0.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rlock_engine::error::Failure;
    use rlock_engine::servers::Address;
    use rustls::ServerConfig;
    use rustls::server::WebPkiClientVerifier;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::pump::dial::{dial, failure};
    use rlock_testkit::certificates::{Authority, Certified};

    /// A server at 127.0.0.1 that presents a certificate, and may require client
    /// certificates of this authority.
    struct Server {
        listener: TcpListener,
        acceptor: TlsAcceptor,
    }

    impl Server {
        async fn start(certified: &Certified, clients: Option<&Authority>) -> Self {
            let builder = ServerConfig::builder_with_provider(provider());
            let builder = builder.with_safe_default_protocol_versions().unwrap();
            let builder = match clients {
                Some(clients) => {
                    let clients = trusted(clients.pem.as_bytes()).unwrap();
                    let verifier = WebPkiClientVerifier::builder_with_provider(clients, provider());
                    builder.with_client_cert_verifier(verifier.build().unwrap())
                }
                None => builder.with_no_client_auth(),
            };
            let chain = certificates_in(certified.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(certified.key.as_bytes()).unwrap();
            let config = builder.with_single_cert(chain, key).unwrap();
            Self {
                listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
                acceptor: Arc::new(config).into(),
            }
        }

        /// Connects a client to `host`. Returns the greeting that it reads, the name
        /// that it requested, and the number of certificates that it presented.
        async fn greets(
            &self,
            host: &str,
            insecure: bool,
            config: &TlsConfig,
        ) -> Result<(Option<String>, usize), Failure> {
            let address = Address::Tcp {
                host: host.to_owned(),
                port: self.listener.local_addr().unwrap().port(),
                tls: Some(Tls { insecure }),
            };
            let server = async {
                let (stream, _) = self.listener.accept().await.unwrap();
                let mut stream = self.acceptor.accept(stream).await.ok()?;
                stream.write_all(b"hello").await.unwrap();
                let session = stream.get_ref().1;
                let shown = session.peer_certificates().unwrap_or_default();
                Some((session.server_name().map(str::to_owned), shown.len()))
            };
            let client = async {
                let mut stream = dial(&address, config, Duration::from_secs(20)).await?;
                let read = stream.read_exact(&mut [0; 5]).await;
                read.map_err(|error| failure(&address, &error))
            };
            let (seen, read) = tokio::join!(server, client);
            read.map(|_| seen.unwrap())
        }
    }

    fn trusting(authority: &Authority) -> Certificates {
        Certificates::new().authorities(&*authority.pem)
    }

    fn showing(certificates: Certificates, shown: &Certified) -> Certificates {
        certificates.client(&*shown.certificate, &*shown.key)
    }

    fn config(certificates: &Certificates) -> TlsConfig {
        TlsConfig::new(certificates).unwrap()
    }

    /// The reason why these settings allow no connection.
    fn refusal<T: fmt::Debug>(outcome: Result<T, Failure>) -> String {
        match outcome {
            Err(Failure::Certificate(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_server_is_trusted_for_its_authority_and_name() {
        let (authority, other) = (Authority::new("one"), Authority::new("another"));
        let by_name = Server::start(&authority.certify("localhost"), None).await;
        let trusting = config(&trusting(&authority));
        let seen = by_name.greets("localhost", false, &trusting).await;
        assert_eq!(seen.unwrap(), (Some("localhost".to_owned()), 0));
        let text = refusal(by_name.greets("127.0.0.1", false, &trusting).await);
        assert!(text.starts_with("127.0.0.1:"), "{text}");
        assert!(text.contains("not valid for name"), "{text}");
        let by_address = Server::start(&authority.certify("127.0.0.1"), None).await;
        let seen = by_address.greets("127.0.0.1", false, &trusting).await;
        assert_eq!(seen.unwrap(), (None, 0));
        let other = config(&Certificates::new().authorities(&*other.pem));
        for config in [&other, &TlsConfig::default()] {
            let text = refusal(by_name.greets("localhost", false, config).await);
            assert!(
                text.contains("invalid peer certificate: UnknownIssuer"),
                "{text}"
            );
        }
    }

    #[tokio::test]
    async fn an_insecure_connection_trusts_any_server() {
        let server = Server::start(&Authority::new("one").certify("other.example"), None).await;
        for config in [
            TlsConfig::default(),
            config(&trusting(&Authority::new("another"))),
        ] {
            let seen = server.greets("localhost", true, &config).await;
            assert_eq!(seen.unwrap(), (Some("localhost".to_owned()), 0));
        }
    }

    #[tokio::test]
    async fn a_server_that_asks_for_a_certificate_is_shown_one() {
        let authority = Authority::new("one");
        let certified = authority.certify("localhost");
        let server = Server::start(&certified, Some(&authority)).await;
        let (known, unknown) = (
            showing(trusting(&authority), &authority.certify("a client")),
            showing(
                trusting(&authority),
                &Authority::new("another").certify("it"),
            ),
        );
        for insecure in [false, true] {
            let seen = server.greets("localhost", insecure, &config(&known)).await;
            assert_eq!(seen.unwrap().1, 1);
        }
        for (certificates, words) in [
            (trusting(&authority), "CertificateRequired"),
            (unknown, "UnknownCA"),
        ] {
            let text = refusal(
                server
                    .greets("localhost", false, &config(&certificates))
                    .await,
            );
            assert!(text.starts_with("localhost:"), "{text}");
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn certificates_that_cannot_be_used_are_refused_before_they_are() {
        let authority = Authority::new("one");
        let (one, other) = (authority.certify("one"), authority.certify("other"));
        let mixed = Certified {
            certificate: one.certificate,
            key: other.key,
        };
        let broken = authority.pem.replace("-----END", "----");
        for (certificates, words) in [
            (Certificates::new().authorities(""), "no certificate"),
            (Certificates::new().authorities("secret"), "no certificate"),
            (Certificates::new().authorities(broken), "cannot be read"),
            (
                Certificates::new().client(&*authority.pem, &*authority.pem),
                "private key",
            ),
            (Certificates::new().client("", ""), "no certificate"),
            (showing(Certificates::new(), &mixed), "private key"),
        ] {
            let text = TlsConfig::new(&certificates).unwrap_err().to_string();
            assert!(
                text.starts_with("certificates is not to be used ("),
                "{text}"
            );
            assert!(text.contains(words), "{text}");
            assert_eq!(format!("{certificates:?}"), "Certificates(…)");
        }
    }
}
