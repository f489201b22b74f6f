//! Which server is the master, as Redis Sentinels say.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, Value};
use rlock_engine::error::Error;

use crate::net::source::{address_of, at, connect, host_of, none_of_them, out_of_range};
use crate::net::state::lock;
use crate::wire::fields::Fields;

/// How long one Sentinel may take to answer.
const TIME: Duration = Duration::from_secs(1);
/// How long the others are waited for once one has answered.
const OTHERS_TIME: Duration = Duration::from_millis(200);
/// How often they are asked.
pub(crate) const ASKED_EVERY: Duration = Duration::from_millis(500);

/// The Sentinels that watch a master.
///
/// All of them are asked, as one that was cut off with an old master goes on
/// naming it. Each fail-over has a number larger than those before it, its
/// configuration epoch: the largest is the word that counts.
pub(crate) struct Sentinels {
    sentinels: Vec<Sentinel>,
    pub(super) master: String,
    /// How to connect to the master, but for its address.
    template: redis::Client,
}

struct Sentinel {
    redis: redis::Client,
    known: Mutex<Option<MultiplexedConnection>>,
}

/// What one Sentinel says.
struct Word {
    epoch: u64,
    address: (String, u16),
}

impl Sentinels {
    pub(crate) fn new(
        sentinels: Vec<redis::Client>,
        master: &str,
        template: redis::Client,
    ) -> Result<Self, Error> {
        if sentinels.is_empty() {
            return Err(out_of_range("sentinels", "empty", "at least one"));
        }
        if host_of(&template).is_none() {
            let value = "a Unix socket";
            return Err(out_of_range("server", value, "an address over TCP"));
        }
        let sentinels = sentinels.into_iter().map(|redis| Sentinel {
            redis,
            known: Mutex::new(None),
        });
        Ok(Self {
            sentinels: sentinels.collect(),
            master: master.to_owned(),
            template,
        })
    }

    /// The master, by the newest word that is to be had.
    pub(crate) async fn current(&self) -> Result<redis::Client, RedisError> {
        let asked = self.sentinels.iter();
        let mut asked: FuturesUnordered<_> = asked
            .map(|sentinel| async move { (sentinel, sentinel.ask(&self.master).await) })
            .collect();
        let mut newest: Option<Word> = None;
        let mut failures = Vec::new();
        loop {
            let next = match newest {
                Some(_) => tokio::time::timeout(OTHERS_TIME, asked.next()).await,
                None => Ok(asked.next().await),
            };
            match next {
                Ok(Some((_, Ok(word)))) => {
                    let is_newer = |known: &Word| known.epoch < word.epoch;
                    if newest.as_ref().is_none_or(is_newer) {
                        newest = Some(word);
                    }
                }
                Ok(Some((sentinel, Err(error)))) => {
                    failures.push((address_of(&sentinel.redis), error));
                }
                Ok(None) | Err(_) => break,
            }
        }
        match newest {
            Some(word) => at(&self.template, word.address),
            None => Err(none_of_them("no Sentinel names the master", failures)),
        }
    }

    /// Waits until they name another server than `address`.
    pub(crate) async fn moved(&self, address: &str) {
        loop {
            tokio::time::sleep(ASKED_EVERY).await;
            // That no Sentinel answers is no reason to leave a server.
            if let Ok(redis) = self.current().await
                && address_of(&redis) != address
            {
                return;
            }
        }
    }
}

impl Sentinel {
    async fn ask(&self, master: &str) -> Result<Word, RedisError> {
        let known = lock(&self.known).take();
        if let Some(mut known) = known
            && let Ok(word) = ask(&mut known, master).await
        {
            *lock(&self.known) = Some(known);
            return Ok(word);
        }
        let mut connection = connect(&self.redis, (TIME, TIME)).await?;
        let word = ask(&mut connection, master).await?;
        *lock(&self.known) = Some(connection);
        Ok(word)
    }
}

async fn ask(sentinel: &mut MultiplexedConnection, master: &str) -> Result<Word, RedisError> {
    let mut questions = redis::pipe();
    for question in ["GET-MASTER-ADDR-BY-NAME", "MASTER"] {
        questions.cmd("SENTINEL").arg(question).arg(master);
    }
    let mut answers = sentinel.send_packed_commands(&questions, 0, 2).await?;
    let (about, address) = (answers.pop(), answers.pop());
    let address = address.unwrap_or(Value::Nil).extract_error()?;
    let address: Option<(String, u16)> = redis::from_redis_value(address)?;
    let unknown = || {
        let what = "it knows no master of this name";
        RedisError::from((ErrorKind::Io, what, master.to_owned()))
    };
    // Its user may not be allowed to ask for more than the address.
    let epoch = about
        .as_ref()
        .map(|about| Fields(about).text("config-epoch"));
    let epoch = epoch
        .and_then(Result::ok)
        .and_then(|epoch| epoch.parse().ok());
    Ok(Word {
        epoch: epoch.unwrap_or(0),
        address: address.ok_or_else(unknown)?,
    })
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels")
            .field("master", &self.master)
            .finish_non_exhaustive()
    }
}
