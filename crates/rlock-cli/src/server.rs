//! What is asked of a server by a plain connection: everything but locking.
//!
//! The connection is made when the first question is asked, and made anew
//! after it was lost.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, Value, cmd};

use crate::address::{Address, process_name};
use crate::contended::Contended;
use crate::counters::Counters;
use crate::failure::{Code, Failure};
use crate::lock_info::LockInfo;

/// How long a connection or a reply may take.
const RESPONSE_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct Server {
    pub(crate) address: Address,
    connection: Option<MultiplexedConnection>,
}

impl Server {
    pub(crate) fn new(address: Address) -> Self {
        Self {
            address,
            connection: None,
        }
    }

    /// Who holds the lock at `key` and who waits for it.
    pub(crate) async fn info(&mut self, key: &[u8]) -> Result<LockInfo, Failure> {
        let reply = self.ask("RLOCK.INFO", cmd("RLOCK.INFO").arg(key)).await?;
        let info = self.convert("RLOCK.INFO", reply)?;
        Ok(LockInfo::new(key, info))
    }

    /// The most contended locks, at most `count`.
    pub(crate) async fn list(&mut self, count: u16) -> Result<Vec<Contended>, Failure> {
        let list = cmd("RLOCK.LIST").arg("COUNT").arg(count).take();
        let reply = self.ask("RLOCK.LIST", &list).await?;
        let locks: Vec<_> = self.convert("RLOCK.LIST", reply)?;
        Ok(locks.into_iter().map(Contended::new).collect())
    }

    /// Ends every hold of the lock at `key`; how many there were.
    pub(crate) async fn force(&mut self, key: &[u8]) -> Result<u64, Failure> {
        let reply = self.ask("RLOCK.FORCE", cmd("RLOCK.FORCE").arg(key)).await?;
        self.convert("RLOCK.FORCE", reply)
    }

    /// The numbers of `INFO rlock`.
    pub(crate) async fn counters(&mut self) -> Result<Counters, Failure> {
        let reply = self.ask("INFO", cmd("INFO").arg("rlock")).await?;
        let counters = Counters::new(&self.convert("INFO", reply)?);
        if counters.is_empty() {
            return Err(Failure::module_missing(&self.address.shown, "RLOCK.INFO"));
        }
        Ok(counters)
    }

    async fn ask(&mut self, name: &str, command: &Cmd) -> Result<Value, Failure> {
        let mut connection = self.connection().await?;
        let answer = connection.send_packed_command(command).await;
        answer.and_then(Value::extract_error).map_err(|error| {
            if error.code().is_none() {
                self.connection = None;
            }
            Failure::redis(&self.address.shown, name, &error)
        })
    }

    async fn connection(&mut self) -> Result<MultiplexedConnection, Failure> {
        if let Some(connection) = &self.connection {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(RESPONSE_LIMIT))
            .set_response_timeout(Some(RESPONSE_LIMIT));
        let redis = &self.address.redis;
        let connection = redis.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection
            .await
            .map_err(|error| Failure::redis(&self.address.shown, "HELLO", &error))?;
        let name = cmd("CLIENT").arg("SETNAME").arg(process_name()).take();
        match connection.send_packed_command(&name).await {
            Err(error) if error.code().is_none() => {
                Err(Failure::redis(&self.address.shown, "CLIENT", &error))
            }
            // Without the right to a name it has none.
            _ => Ok(self.connection.insert(connection).clone()),
        }
    }

    fn convert<T: FromRedisValue>(&self, name: &str, reply: Value) -> Result<T, Failure> {
        redis::from_redis_value(reply).map_err(|error| {
            let server = &self.address.shown;
            let message = format!("unexpected reply of {server} to {name}: {error}");
            Failure::new(Code::Refused, message)
        })
    }
}
