//! Moves bytes between the socket of one connection and the endpoint.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rlock_engine::endpoint::{ConnectionId, Event};
use rlock_engine::error::Failure;
use rlock_engine::servers::Address;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;

use crate::pump::dial::{Stream, dial, failure};
use crate::pump::{State, now};

/// The largest number of bytes that is read at once.
const INPUT_LEN: usize = 16 * 1024;
/// The endpoint gets the input in this number of parts, or in larger ones if the
/// input is short. After a part the answered callers run, and their new requests
/// are written. The server works on these while the endpoint takes the next part. If
/// it took everything at once, each side would wait while the other one works. If
/// nobody is answered, the next part follows at once.
const INPUT_PARTS: usize = 6;
/// The least number of bytes in such a part. The reply of a grant has 19.
const PART_MIN: usize = 20;
/// The capacity for output that is kept after a larger output.
const OUTPUT_KEPT: usize = 64 * 1024;

/// The task of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    task: AbortHandle,
    /// The task's waker, while it has nothing to write.
    pub(super) writer: Option<Waker>,
}

impl Peer {
    pub(super) fn new(task: AbortHandle) -> Self {
        Self { task, writer: None }
    }

    /// Closes the socket.
    pub(super) fn end(self) {
        self.task.abort();
    }
}

/// The socket, and the bytes between it and the endpoint.
struct Connection {
    state: Arc<State>,
    id: ConnectionId,
    address: Address,
    stream: Stream,
    input: Vec<u8>,
    /// What was read and is not yet taken, and how much is taken at once.
    untaken: Range<usize>,
    part: usize,
    output: Vec<u8>,
    written: usize,
}

/// Connects, and moves bytes until the connection ends or this task is aborted.
pub(super) async fn serve(state: Arc<State>, id: ConnectionId, address: Address) {
    let failure = match dial(&address, &state.tls, state.limits.response).await {
        Ok(stream) => {
            state.handle(Event::Opened { connection: id });
            let mut connection = Connection {
                state: Arc::clone(&state),
                id,
                address,
                stream,
                input: vec![0; INPUT_LEN],
                untaken: 0..0,
                part: PART_MIN,
                output: Vec::new(),
                written: 0,
            };
            poll_fn(|context| connection.poll(context)).await
        }
        Err(failure) => failure,
    };
    state.has_ended(id, failure);
}

impl Connection {
    /// Ready when the connection has ended, with the reason.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Failure> {
        // Input often causes output.
        if let Poll::Ready(failure) = self.read(context) {
            return Poll::Ready(failure);
        }
        let written = self.write(context);
        // What was read counts even so.
        if written.is_ready() && !self.untaken.is_empty() {
            self.part = self.untaken.len();
            self.take();
        }
        written
    }

    /// Passes the next part of the input. Whether anybody has heard of it.
    fn take(&mut self) -> bool {
        let bytes = self.input.get(self.untaken.clone()).unwrap_or_default();
        let bytes = bytes.get(..self.part).unwrap_or(bytes);
        self.untaken.start += bytes.len();
        let connection = self.id;
        self.state.handle(Event::Received { connection, bytes })
    }

    fn read(&mut self, context: &mut Context<'_>) -> Poll<Failure> {
        loop {
            while !self.untaken.is_empty() {
                let is_heard = self.take();
                if is_heard && !self.untaken.is_empty() {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            let mut buffer = ReadBuf::new(&mut self.input);
            let read = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
            match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(failure(&self.address, &error)),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                    let what = format!("{}: the server has closed the connection", self.address);
                    return Poll::Ready(Failure::Io(what));
                }
                Poll::Ready(Ok(())) => {
                    self.untaken = 0..buffer.filled().len();
                    self.part = PART_MIN.max(self.untaken.len().div_ceil(INPUT_PARTS));
                }
            }
        }
    }

    fn write(&mut self, context: &mut Context<'_>) -> Poll<Failure> {
        loop {
            if self.written == self.output.len() {
                self.output.clear();
                self.output.shrink_to(OUTPUT_KEPT);
                self.written = 0;
                let waker = context.waker();
                self.state.take_output(self.id, &mut self.output, waker);
            }
            let rest = self.output.get(self.written..).unwrap_or_default();
            if rest.is_empty() {
                return self.flush(context);
            }
            match Pin::new(&mut self.stream).poll_write(context, rest) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) => self.written += count,
                Poll::Ready(Err(error)) => return Poll::Ready(failure(&self.address, &error)),
            }
        }
    }

    /// TLS buffers the output that it cannot write at once.
    fn flush(&mut self, context: &mut Context<'_>) -> Poll<Failure> {
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Ready(Err(error)) => Poll::Ready(failure(&self.address, &error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }
}

impl State {
    /// Exchanges the endpoint's output for the empty `output`. If there is no
    /// output, `waker` is woken once there is.
    fn take_output(&self, id: ConnectionId, output: &mut Vec<u8>, waker: &Waker) {
        self.with_peers(|core| {
            core.machine.take_output(id, output);
            if output.is_empty()
                && let Some(peer) = core.peers.get_mut(&id)
            {
                peer.writer = Some(waker.clone());
            }
        });
    }

    fn has_ended(self: &Arc<Self>, connection: ConnectionId, failure: Failure) {
        let peer = self.with_core(|core| {
            let ended = Event::Ended {
                connection,
                failure,
            };
            core.machine.handle(now(), ended);
            core.peers.remove(&connection)
        });
        drop(peer);
    }
}
