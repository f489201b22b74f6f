//! The one place where all write down what happens.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rlock_testkit::history::{Call, Fault, History, Hold, Loses, Moment, Seen, Stall, micros};

#[derive(Clone)]
pub(crate) struct Log {
    start: Instant,
    history: Arc<Mutex<History>>,
}

impl Log {
    pub(crate) fn new() -> Self {
        let history = History::default();
        Self {
            start: history.start(),
            history: Arc::new(Mutex::new(history)),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        micros(self.start.elapsed())
    }

    pub(crate) fn read(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap()
    }

    /// A call begins; its number.
    pub(crate) fn asked(
        &self,
        contender: usize,
        key: &'static str,
        verb: &'static str,
        limit: Option<Duration>,
    ) -> usize {
        let mut history = self.read();
        history.calls.push(Call {
            contender,
            key,
            verb,
            asked: micros(self.start.elapsed()),
            limit: limit.map(micros),
            ended: None,
            outcome: String::new(),
        });
        history.calls.len() - 1
    }

    /// When it was asked.
    pub(crate) fn answered(&self, call: usize, outcome: impl Into<String>) -> Moment {
        let now = self.now();
        let call = &mut self.read().calls[call];
        (call.ended, call.outcome) = (Some(now), outcome.into());
        call.asked
    }

    pub(crate) fn holds(&self, hold: Hold) -> usize {
        let mut history = self.read();
        history.holds.push(hold);
        history.holds.len() - 1
    }

    /// A hold was entered once more: the server granted that when it granted the first.
    pub(crate) fn entered_again(&self, first: usize, entry: usize) {
        let holds = &mut self.read().holds;
        if holds[first].fence == holds[entry].fence {
            holds[entry].asked = holds[first].asked;
            holds[entry].lease = holds[first].lease;
        }
    }

    /// Asks whether a guard is valid, right before and right after a look at the clock.
    pub(crate) fn sample(&self, hold: usize, is_valid: impl Fn() -> bool) -> bool {
        let before = is_valid();
        let now = self.now();
        let is_believed = before && is_valid();
        let hold = &mut self.read().holds[hold];
        if is_believed {
            let (first, _) = hold.believed.unwrap_or((now, now));
            hold.believed = Some((first, now));
        } else {
            hold.doubted.get_or_insert(now);
        }
        is_believed
    }

    pub(crate) fn ended(&self, hold: usize, end: impl Into<String>) {
        let now = self.now();
        let hold = &mut self.read().holds[hold];
        (hold.ended, hold.end) = (Some(now), end.into());
    }

    /// A fault begins; its number.
    pub(crate) fn fault(&self, kind: &'static str, detail: String, loses: Loses) -> usize {
        let begun = self.now();
        let mut history = self.read();
        history.faults.push(Fault {
            kind,
            detail,
            loses,
            begun,
            healed: None,
        });
        history.faults.len() - 1
    }

    pub(crate) fn healed(&self, fault: usize) {
        let now = self.now();
        self.read().faults[fault].healed = Some(now);
    }

    /// An observer learns who leads.
    pub(crate) fn seen(&self, observer: usize, fence: Option<u64>, missed: bool) {
        let moment = self.now();
        self.read().seen.push(Seen {
            observer,
            moment,
            fence,
            missed,
        });
    }

    pub(crate) fn stalled(&self, begun: Moment) {
        let ended = self.now();
        self.read().stalls.push(Stall { begun, ended });
    }
}

/// Writes down when this machine stalls, until the log is all that is left of the run.
pub(crate) fn watch_the_machine(log: Log) {
    const NAP: Duration = Duration::from_millis(20);
    const LATE: u64 = 200_000;
    std::thread::spawn(move || {
        loop {
            let due = log.now() + micros(NAP);
            std::thread::sleep(NAP);
            if log.now() > due + LATE {
                log.stalled(due);
            }
        }
    });
}
