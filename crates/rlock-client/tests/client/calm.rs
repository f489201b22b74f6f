//! Tests that measure time, on machines that stall now and then.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often a test is run at most.
const ATTEMPTS: usize = 12;
/// How much later than it asked for a thread may go on, on a calm machine.
const LATE: Duration = Duration::from_millis(100);
const NAP: Duration = Duration::from_millis(10);

/// Runs a test that fails if nothing happens for a part of a lease. What fails on a machine that stalled for as long
/// says nothing, and is run again. What fails without that has failed.
pub(crate) fn on_a_calm_machine(run: impl AsyncFn() + Copy + Send + 'static) {
    for attempt in 1.. {
        let (done, is_done) = channel();
        let watch = std::thread::spawn(move || longest_delay(&is_done));
        // The harness shows what is printed by the thread of the test, and by those that it starts.
        let outcome = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(run());
        })
        .join();
        drop(done);
        let delay = watch.join().unwrap();
        match outcome {
            Ok(()) => return,
            Err(_) if delay > LATE && attempt < ATTEMPTS => {
                eprintln!("the machine stalled for {delay:?}: once more");
            }
            Err(failure) => std::panic::resume_unwind(failure),
        }
    }
}

/// By how much a thread was woken too late at most, until the test has ended.
fn longest_delay(is_done: &Receiver<()>) -> Duration {
    let mut longest = Duration::ZERO;
    loop {
        let asleep = Instant::now();
        let woken = is_done.recv_timeout(NAP);
        longest = longest.max(asleep.elapsed().saturating_sub(NAP));
        if woken != Err(RecvTimeoutError::Timeout) {
            return longest;
        }
    }
}
