//! The signals that rlock handles or passes on, and their senders.
//!
//! A signal that was ignored when rlock started stays ignored: `nohup` and
//! background jobs of shells rely on that, and the command inherits it.

use std::io;

use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::backend::Handle;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;
use tokio::sync::mpsc;

const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
/// How many signals may be pending. Further ones are dropped, because they
/// repeat pending ones.
const PENDING_MAX: usize = 64;

/// A signal that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) number: i32,
    /// The terminal sent it, to the whole process group.
    pub(crate) is_from_terminal: bool,
}

impl Received {
    /// Whether it ends a process by default. The command decides what the other
    /// two mean.
    pub(crate) fn is_ending(self) -> bool {
        !matches!(self.number, SIGUSR1 | SIGUSR2)
    }

    /// The exit code of a process that it ended.
    pub(crate) fn exit_code(self) -> u8 {
        exit_code(self.number)
    }
}

/// 128 plus the number of the signal, as in shells.
pub(crate) fn exit_code(signal: i32) -> u8 {
    u8::try_from(signal).unwrap_or(127).saturating_add(128)
}

/// Takes signals until it is dropped.
#[derive(Debug)]
pub(crate) struct Signals {
    arrived: mpsc::Receiver<Received>,
    handle: Handle,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let wanted = FORWARDED.iter().filter(|number| !is_in(ignored, **number));
        let mut signals = SignalsInfo::<WithOrigin>::new(wanted)?;
        let handle = signals.handle();
        let (sender, arrived) = mpsc::channel(PENDING_MAX);
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for origin in signals.forever() {
                    let _ = sender.try_send(Received {
                        number: origin.signal,
                        is_from_terminal: origin.cause == Cause::Kernel,
                    });
                }
            })?;
        Ok(Self { arrived, handle })
    }

    /// The next signal.
    ///
    /// # Cancel safety
    ///
    /// No signal is lost.
    pub(crate) async fn next(&mut self) -> Received {
        match self.arrived.recv().await {
            Some(received) => received,
            // The thread ends only when this is dropped.
            None => std::future::pending().await,
        }
    }

    /// The next signal that ends a process by default.
    ///
    /// # Cancel safety
    ///
    /// No such signal is lost.
    pub(crate) async fn ending(&mut self) -> Received {
        loop {
            let received = self.next().await;
            if received.is_ending() {
                return received;
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// The signals that this process ignores, one bit each; zero if the system does
/// not show them.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

fn is_in(mask: u64, signal: i32) -> bool {
    let bit = u32::try_from(signal - 1).ok();
    bit.and_then(|bit| mask.checked_shr(bit))
        .is_some_and(|mask| mask & 1 == 1)
}
