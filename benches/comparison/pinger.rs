//! The longest PING: how long the server lets somebody wait who has nothing to
//! do with what it is busy with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::connection::Connection;
use rlock_testkit::client::eventually;

/// Between two PINGs: short beside what is looked for, long enough that the
/// pinging itself takes no processor away.
const PAUSE: Duration = Duration::from_micros(100);

/// Sends one PING after the other, in a thread and on a connection of its own.
pub(crate) struct Pinger {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    longest_nanos: AtomicU64,
    count: AtomicU64,
    is_over: AtomicBool,
}

impl Pinger {
    pub(crate) fn start(port: u16) -> Self {
        let mut connection = Connection::new(port);
        let seen = Arc::new(Seen::default());
        let thread = thread::spawn({
            let seen = Arc::clone(&seen);
            move || seen.ping_until_over(&mut connection)
        });
        Self {
            seen,
            thread: Some(thread),
        }
    }

    /// The longest PING while something is done. What is done has to wait for
    /// its consequences itself.
    pub(crate) fn during(&self, work: impl FnOnce()) -> Duration {
        self.await_one_more();
        self.seen.longest_nanos.store(0, Ordering::Relaxed);
        work();
        // The one that is under way has met the end of it.
        self.await_one_more();
        Duration::from_nanos(self.seen.longest_nanos.load(Ordering::Relaxed))
    }

    /// The longest PING while nothing is done for this long.
    pub(crate) fn idle(&self, time: Duration) -> Duration {
        self.during(|| thread::sleep(time))
    }

    /// Waits until a PING that was not sent yet has come back.
    fn await_one_more(&self) {
        let count = self.seen.count.load(Ordering::Relaxed);
        eventually("a PING comes back", || {
            self.seen.count.load(Ordering::Relaxed) >= count + 2
        });
    }
}

impl Seen {
    fn ping_until_over(&self, connection: &mut Connection) {
        while !self.is_over.load(Ordering::Relaxed) {
            let start = Instant::now();
            connection.ping();
            let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
            self.count.fetch_add(1, Ordering::Relaxed);
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        self.seen.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that has failed was noticed by who awaited a PING.
            let _ = thread.join();
        }
    }
}
