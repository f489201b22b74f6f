//! The ways from a builder to its servers.

use rlock_engine::error::Error;

use crate::client::Client;
use crate::client_builder::ClientBuilder;
use crate::net::address;
use crate::net::source::{Source, out_of_range};
use crate::wire::failure::failure;

impl ClientBuilder {
    /// Connects to where `url` leads, as [`Client::connect`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect`], and [`Error::OutOfRange`] for a setting or
    /// for certificates that cannot be used.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        let source = self.source(url)?;
        self.connect_to(source).await
    }

    /// Connects as `redis` would: with its address, credentials, TLS set-up.
    ///
    /// A connection of its own is made, over RESP3 whatever `redis` says.
    ///
    /// With the feature `tls-rustls` the cryptography is that of `ring`, unless
    /// the program has installed another provider of `rustls` before.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = redis::Client::open("redis://127.0.0.1/")?;
    /// let client = rlock_client::Client::builder().connect_with(&redis).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect`], and [`Error::OutOfRange`] for a setting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn connect_with(self, redis: &redis::Client) -> Result<Client, Error> {
        self.connect_to(Source::server(redis)?).await
    }

    /// Connects to the master that Sentinels name, as [`Client::sentinel`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Client::sentinel`], and [`Error::OutOfRange`] for a setting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn sentinel(
        self,
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
        master: &str,
        server: &str,
    ) -> Result<Client, Error> {
        let (sentinels, server) = (self.all_opened(sentinels)?, self.opened(server)?);
        self.sentinel_with(sentinels, master, &server).await
    }

    /// The same with Sentinels and a server that are connected to as these
    /// clients of the `redis` crate say: with certificates, for example.
    ///
    /// # Errors
    ///
    /// Those of [`sentinel`](Self::sentinel).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn sentinel_with(
        self,
        sentinels: impl IntoIterator<Item = redis::Client>,
        master: &str,
        server: &redis::Client,
    ) -> Result<Client, Error> {
        let sentinels = sentinels.into_iter().collect();
        let source = Source::sentinels(sentinels, master, server)?;
        self.connect_to(source).await
    }

    /// Connects to a cluster, as [`Client::cluster`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Client::cluster`], and [`Error::OutOfRange`] for a setting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections.
    pub async fn cluster(
        self,
        nodes: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Client, Error> {
        let nodes = self.all_opened(nodes)?;
        self.cluster_with(nodes).await
    }

    /// The same with servers that are connected to as these clients of the
    /// `redis` crate say: with certificates, for example. The first says how to
    /// connect to all.
    ///
    /// # Errors
    ///
    /// Those of [`cluster`](Self::cluster).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections.
    pub async fn cluster_with(
        self,
        nodes: impl IntoIterator<Item = redis::Client>,
    ) -> Result<Client, Error> {
        let nodes: Vec<_> = nodes.into_iter().collect();
        self.connect_to(Source::cluster(&nodes)?).await
    }

    /// The masters that `url` leads to, as clients of the `redis` crate, for
    /// questions that are not about locks: their settings, their replicas.
    ///
    /// Sentinels or a cluster are asked where they are, and no master itself: it
    /// may be away or without the module. Each of them is connected to as this
    /// client would be, with the same credentials and certificates.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let builder = rlock_client::Client::builder();
    /// for master in builder.masters("redis+cluster://node-1,node-2").await? {
    ///     let mut connection = master.get_multiplexed_async_connection().await?;
    ///     let info: String = redis::cmd("INFO").query_async(&mut connection).await?;
    ///     println!("{}: {info}", master.get_connection_info().addr());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for an address or certificates that cannot be used,
    /// [`Error::Connect`] if no Sentinel, or no node of the cluster, says where
    /// they are.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: it changes nothing.
    pub async fn masters(self, url: &str) -> Result<Vec<redis::Client>, Error> {
        let source = self.source(url)?;
        let (state, _inbox) = self.state(source)?;
        if let Some(cluster) = state.source.as_cluster() {
            let routes = cluster.routes(&state).await;
            state.set_routes(routes.map_err(|error| Error::Connect(failure(error)))?);
        }
        let nodes = state.routes().nodes().into_iter();
        let masters = nodes.map(|node| state.source.current(node));
        let masters = futures_util::future::try_join_all(masters).await;
        masters.map_err(|error| Error::Connect(failure(error)))
    }

    /// Where `url` leads.
    pub(crate) fn source(&self, url: &str) -> Result<Source, Error> {
        self.check_tls(url)?;
        address::read(url, |url| self.opened(url))
    }

    /// The one server that `url` leads to.
    pub(crate) fn member(&self, url: &str) -> Result<redis::Client, Error> {
        if !address::is_of_one(url) {
            let limit = "redis://, rediss:// or redis+unix://, as a member is one master";
            return Err(out_of_range("url", "not of one server", limit));
        }
        self.check_tls(url)?;
        self.opened(url.trim())
    }

    /// Certificates are of no use without TLS.
    fn check_tls(&self, url: &str) -> Result<(), Error> {
        #[cfg(feature = "tls-rustls")]
        if self.certificates.is_some() && !address::has_tls(url) {
            let limit = "rediss://, rediss+sentinel:// or rediss+cluster:// with certificates";
            return Err(out_of_range("url", "without TLS", limit));
        }
        let _ = url;
        Ok(())
    }

    /// Reads the addresses of servers.
    pub(crate) fn all_opened(
        &self,
        urls: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Vec<redis::Client>, Error> {
        let urls = urls.into_iter().map(|url| self.opened(url.as_ref()));
        urls.collect()
    }

    /// Reads the address of one server.
    pub(crate) fn opened(&self, url: &str) -> Result<redis::Client, Error> {
        let redis = redis::Client::open(url).map_err(|error| {
            let value = format!("not to be used ({error})");
            let limit =
                "redis://[user:password@]host[:port][/database], or as Client::connect says";
            out_of_range("url", &value, limit)
        })?;
        #[cfg(feature = "tls-rustls")]
        if let Some(certificates) = &self.certificates {
            return certified(redis, certificates);
        }
        Ok(redis)
    }
}

/// The same server with these certificates, if it has TLS.
#[cfg(feature = "tls-rustls")]
fn certified(
    redis: redis::Client,
    certificates: &redis::TlsCertificates,
) -> Result<redis::Client, Error> {
    let info = redis.get_connection_info();
    if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        return Ok(redis);
    }
    let certified = redis::Client::build_with_tls(info.clone(), certificates.clone());
    certified.map_err(|error| {
        let value = format!("not to be used ({error})");
        out_of_range("certificates", &value, "PEM, each with its own key")
    })
}
