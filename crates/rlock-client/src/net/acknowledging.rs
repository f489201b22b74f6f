//! Asks a server how many replicas know of its grants.
//!
//! `WAIT` counts the replicas that know what the same connection has written,
//! and holds up all that comes after it. So the holder renews by a connection
//! of its own, and waits there. What is asked for meanwhile goes together, with
//! one `WAIT` for all: many holds cost little more than one.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, Value};
use rlock_engine::engine::request::{Reply, Request};
use rlock_engine::error::Fault;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::net::identity::introduce;
use crate::net::source::connect;
use crate::net::state::Limits;
use crate::wire::failure::failure;
use crate::wire::protocol;
use crate::wire::reply;

/// So many are asked for together at most.
const TOGETHER_MAX: usize = 256;

/// Asks for one number of replicas.
#[derive(Debug)]
pub(super) struct Acknowledger {
    asked: mpsc::UnboundedSender<Asked>,
}

#[derive(Debug)]
struct Asked {
    request: Request,
    done: oneshot::Sender<Result<Reply, Fault>>,
}

/// How it asks.
pub(super) struct Asking {
    pub(super) redis: redis::Client,
    pub(super) name: Option<String>,
    pub(super) limits: Limits,
    pub(super) replicas: u16,
}

impl Acknowledger {
    /// It ends when it is dropped.
    pub(super) fn begin(runtime: &Handle, asking: Asking) -> Self {
        let (asked, inbox) = mpsc::unbounded_channel();
        runtime.spawn(asking.work(inbox));
        Self { asked }
    }

    /// Has `request`, a renewal, carried out; the reply is here once replicas
    /// know of it, or too few in time.
    pub(super) fn ask(&self, request: &Request) -> oneshot::Receiver<Result<Reply, Fault>> {
        let (done, outcome) = oneshot::channel();
        let request = request.clone();
        // An error means that the runtime is gone, which the receiver tells.
        let _ = self.asked.send(Asked { request, done });
        outcome
    }
}

impl Asking {
    async fn work(self, mut inbox: mpsc::UnboundedReceiver<Asked>) {
        let mut connection = None;
        let mut together = Vec::new();
        while inbox.recv_many(&mut together, TOGETHER_MAX).await > 0 {
            // Nobody waits for these any more: their holds are over.
            together.retain(|asked| !asked.done.is_closed());
            let replies = self.ask(&mut connection, &together).await;
            for (asked, reply) in together.drain(..).zip(replies) {
                let _: Result<(), _> = asked.done.send(reply);
            }
        }
    }

    async fn ask(
        &self,
        connection: &mut Option<MultiplexedConnection>,
        together: &[Asked],
    ) -> Vec<Result<Reply, Fault>> {
        if together.is_empty() {
            return Vec::new();
        }
        let asked = async {
            let mut open = match connection.take() {
                Some(open) => open,
                None => self.connect().await?,
            };
            let outcome = self.ask_by(&mut open, together).await?;
            *connection = Some(open);
            Ok(outcome)
        };
        match asked.await {
            Ok(replies) => replies,
            Err(error) => {
                let error: RedisError = error;
                let failure = failure(error);
                let failed = together
                    .iter()
                    .map(|_| Err(Fault::Passing(failure.clone())));
                failed.collect()
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let Limits {
            response,
            replication,
            ..
        } = self.limits;
        let mut connection = connect(&self.redis, (response, response + replication)).await?;
        introduce(&mut connection, self.name.as_deref()).await;
        Ok(connection)
    }

    async fn ask_by(
        &self,
        connection: &mut MultiplexedConnection,
        together: &[Asked],
    ) -> Result<Vec<Result<Reply, Fault>>, RedisError> {
        let mut cmds = redis::pipe();
        for Asked { request, .. } in together {
            for cmd in protocol::renew_in_writing(request) {
                cmds.add_command(cmd);
            }
        }
        cmds.add_command(wait(self.replicas, self.limits.replication));
        let count = cmds.cmd_iter().count();
        let mut replies = connection.send_packed_commands(&cmds, 0, count).await?;
        let known = match replies.pop() {
            Some(Value::Int(known)) => Ok(u16::try_from(known).unwrap_or(0)),
            Some(other) => Err(refusal(other)),
            None => Ok(0),
        };
        // Of each pair the second says what came of it.
        let pairs = together.iter().zip(replies.into_iter().skip(1).step_by(2));
        let replies = pairs.map(|(asked, reply)| {
            let reply = reply.extract_error().map_err(failure)?;
            let reply = reply::decode_all(&asked.request, vec![reply])?;
            match (reply, &known) {
                (Reply::Fence(_), Ok(known)) if *known < self.replicas => Ok(Reply::TooFew(*known)),
                (Reply::Fence(_), Err(error)) => Err(failure(error.clone()).into()),
                (reply, _) => Ok(reply),
            }
        });
        Ok(replies.collect())
    }
}

fn wait(replicas: u16, limit: Duration) -> Cmd {
    let mut cmd = redis::cmd("WAIT");
    // Zero would be without limit.
    cmd.arg(replicas).arg(limit.as_millis().max(1));
    cmd
}

fn refusal(reply: Value) -> RedisError {
    match reply.extract_error() {
        Err(error) => error,
        Ok(_) => RedisError::from((ErrorKind::UnexpectedReturnType, "no number of replicas")),
    }
}
