//! The signals that concern a command under a lock, and who sent them.
//!
//! A signal that the parent had us ignore is left alone: `nohup` and shells'
//! background jobs rely on that, and a command inherits it.

use std::io;

use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::backend::Handle;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;
use tokio::sync::mpsc;

const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
/// Signals that nobody has come to yet; one more of a kind changes nothing.
const PENDING_MAX: usize = 64;

/// A signal that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) number: i32,
    /// Sent by the terminal, and so to the whole process group.
    pub(crate) is_from_terminal: bool,
}

impl Received {
    /// Whether it asks a process to end that has not said otherwise. The other
    /// two are for the command to give a meaning.
    pub(crate) fn is_ending(self) -> bool {
        !matches!(self.number, SIGUSR1 | SIGUSR2)
    }

    /// The exit code of what was ended by it.
    pub(crate) fn exit_code(self) -> u8 {
        exit_code(self.number)
    }
}

/// 128 and the number of the signal, as shells have it.
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

    /// The next signal that asks to end.
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

/// The signals that this process ignores, a bit each; none where the system
/// does not tell.
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
