//! Where the server is, and how to call it without its password.

use rlock_client::Client;

use crate::failure::{Code, Failure};

/// How much of the name of the host is shown.
const HOST_MAX: usize = 40;

/// The server that all commands are about.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) redis: redis::Client,
    /// Host, port and database.
    pub(crate) shown: String,
}

impl Address {
    /// Reads the address. It is never repeated in an error, as it may carry a
    /// password.
    pub(crate) fn parse(url: &str) -> Result<Self, Failure> {
        let redis = redis::Client::open(url).map_err(|error| {
            let message = format!(
                "the server's address (--url, RLOCK_URL or REDIS_URL) cannot be read: {error}; it must be \
                 redis://[user:password@]host[:port][/database]"
            );
            Failure::new(Code::Usage, message)
        })?;
        let info = redis.get_connection_info();
        let shown = format!("{}/{}", info.addr(), info.redis_settings().db());
        Ok(Self { redis, shown })
    }

    /// Connects the lock client.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        let client = Client::builder().name(process_name());
        let client = client.connect_with(&self.redis).await;
        client.map_err(|error| self.failure(&error))
    }

    /// An error of the lock client, for the user.
    pub(crate) fn failure(&self, error: &rlock_client::Error) -> Failure {
        Failure::client(&self.shown, error)
    }
}

/// Host and process, by which an operator finds who holds a lock.
pub(crate) fn process_name() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let is_plain =
        |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    let host: String = host.chars().filter(is_plain).take(HOST_MAX).collect();
    format!("{host}:{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let address = Address::parse("redis://ann:secret@db.example:7000/3").unwrap();
        assert_eq!(address.shown, "db.example:7000/3");
    }

    #[test]
    fn a_password_is_not_shown_by_an_address_that_cannot_be_read() {
        for url in ["redis://ann:secret@", "http://ann:secret@host/", "secret"] {
            let failure = Address::parse(url).unwrap_err();
            assert_eq!(failure.code, Code::Usage);
            assert!(!failure.message.contains("secret"), "{}", failure.message);
        }
    }
}
