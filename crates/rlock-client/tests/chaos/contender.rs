//! Those who want the locks: processes (a thread with a runtime of its own each)
//! with a client, and tasks that ask for one key each.

use std::thread::JoinHandle;
use std::time::Duration;

use rlock_client::{Error, Lease, Owner, Terms};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::locks::{Address, Door, Held, Mode, PATIENCE, REPLICATION_LIMIT, Waiting, Wish};
use crate::log::Log;
use crate::random::Random;
use rlock_testkit::history::{Hold, micros};

pub(crate) const PROCESSES: usize = 4;
/// Odd and even processes.
pub(crate) const GROUPS: usize = 2;
/// `shared` is for readers and writers; a grant of `copied` counts once replicas know of it.
pub(crate) const KEYS: [&str; 5] = ["a", "b", "c", "copied", "shared"];
/// Who holds this one publishes that it leads.
pub(crate) const ELECTION: &str = KEYS[0];
/// How much longer a limited wait may take if nobody tells its end.
const UNTOLD: Duration = Duration::from_secs(1);
/// How long a contender waits for a lock before it gives up.
const GIVES_UP: Duration = Duration::from_secs(20);

/// What a row of the picture is called: a key, and the number of a process.
pub(crate) fn name(contender: usize) -> (&'static str, usize) {
    (KEYS[contender % KEYS.len()], contender / KEYS.len())
}

/// A program that uses locks.
pub(crate) struct Process {
    stalls: mpsc::UnboundedSender<Duration>,
    pub(crate) thread: JoinHandle<()>,
}

impl Process {
    pub(crate) fn start(
        number: usize,
        address: Address,
        copies: u16,
        seed: u64,
        log: Log,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let (stalls, orders) = mpsc::unbounded_channel();
        let contend = async move {
            let door = address.connect().await.expect("the first connection");
            let still = tokio::spawn(stand_still(orders, log.clone()));
            let observing = tokio::spawn(observe(door.clone(), number, log.clone()));
            let tasks = (0..KEYS.len()).map(|index| {
                let number = number * KEYS.len() + index;
                let contender = Contender {
                    number,
                    key: KEYS[index],
                    copies: if KEYS[index] == "copied" { copies } else { 0 },
                    door: door.clone(),
                    random: Random::new(seed ^ (number as u64 + 1) << 32),
                    log: log.clone(),
                    stop: stop.clone(),
                };
                tokio::spawn(contender.run())
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.expect("a contender that does not panic");
            }
            still.abort();
            observing.abort();
            let _ = observing.await;
            let flush = log.asked(
                number * KEYS.len(),
                KEYS[0],
                "flush",
                Some(Duration::from_secs(5)),
            );
            let flushed = timeout(Duration::from_secs(15), door.flush()).await;
            let done = |flushed: Result<(), _>| flushed.map_or("refused", |()| "done");
            log.answered(flush, flushed.map_or("not done", done));
        };
        Self::new(number, stalls, contend)
    }

    /// Has a thread do this, and records the stalls that it is given.
    pub(crate) fn new(
        number: usize,
        stalls: mpsc::UnboundedSender<Duration>,
        contend: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(contend);
        };
        let thread = std::thread::Builder::new().name(format!("process-{number}"));
        Self {
            stalls,
            thread: thread.spawn(run).unwrap(),
        }
    }

    /// Has nothing run in it for this long, the client's background included.
    pub(crate) fn stand_still(&self, duration: Duration) {
        let _ = self.stalls.send(duration);
    }
}

async fn stand_still(mut orders: mpsc::UnboundedReceiver<Duration>, log: Log) {
    while let Some(duration) = orders.recv().await {
        let begun = log.now();
        std::thread::sleep(duration);
        log.stalled(begun);
    }
}

/// Writes down who leads, as this process sees it.
async fn observe(door: Door, number: usize, log: Log) {
    let Door::Client(client) = door else { return };
    let mut changes = client.election(ELECTION).observe();
    while let Some(Ok(change)) = changes.next().await {
        let fence = change.leader.map(|it| it.fence);
        log.seen(number, fence, change.missed);
    }
    log.read()
        .remains
        .push(format!("observer {number} has ended"));
}

struct Contender {
    number: usize,
    key: &'static str,
    copies: u16,
    door: Door,
    random: Random,
    log: Log,
    stop: watch::Receiver<bool>,
}

impl Contender {
    async fn run(mut self) {
        while !*self.stop.borrow() {
            let owner = (self.random.below(4) == 0).then(|| self.door.owner());
            let wish = self.wish();
            if let Some((held, hold)) = self.ask(wish, owner.as_ref()).await {
                self.work(wish, owner.as_ref(), held, hold).await;
            }
            sleep(self.random.between(5, 100)).await;
        }
    }

    fn wish(&mut self) -> Wish {
        let mode = match self.key {
            "shared" if self.random.below(3) > 0 => Mode::Read,
            "shared" => Mode::Write,
            _ => Mode::Exclusive,
        };
        let (lease, is_renewed) = match self.random.below(6) {
            0 => (Duration::from_millis(600), false),
            1 | 2 => (Duration::from_millis(2000), true),
            _ => (Duration::from_millis(1000), true),
        };
        let terms = match is_renewed {
            true => Terms::new().lease(lease).unwrap(),
            false => Terms::new().lease(Lease::Fixed(lease)).unwrap(),
        };
        // Beside those that are not, and those that replicas know, of one client.
        let may_be_bound = self.copies == 0 && matches!(self.door, Door::Client(_));
        let terms = match may_be_bound && self.random.below(4) == 0 {
            true => terms.bound(self.random.between(400, 1500)).unwrap(),
            false => terms,
        };
        let waiting = match self.random.below(4) {
            0 => Waiting::Try,
            1 => Waiting::AtMost(self.random.between(50, 3000)),
            _ => Waiting::Unlimited,
        };
        Wish {
            key: self.key,
            mode,
            lease,
            terms: terms.replicas(self.copies).unwrap(),
            waiting,
        }
    }

    /// Asks, and sometimes drops the call soon.
    async fn ask(&mut self, wish: Wish, owner: Option<&Owner>) -> Option<(Held, usize)> {
        let patience = match self.random.below(8) {
            0 => self.random.between(0, 100),
            _ => GIVES_UP,
        };
        let copying = if self.copies > 0 {
            REPLICATION_LIMIT
        } else {
            Duration::ZERO
        };
        let (verb, limit) = match wish.waiting {
            Waiting::Try => ("try", Some(PATIENCE + copying)),
            Waiting::AtMost(wait) => ("wait with a limit", Some(wait + UNTOLD + copying)),
            Waiting::Unlimited => ("wait", None),
        };
        let call = self.log.asked(self.number, self.key, verb, limit);
        let mut stop = self.stop.clone();
        let answer = tokio::select! {
            answer = timeout(patience, self.door.ask(wish, owner)) => answer.ok(),
            _ = stop.wait_for(|stop| *stop) => None,
        };
        let outcome = match &answer {
            Some(Ok(Some(_))) => "granted".into(),
            Some(Ok(None)) => "refused".into(),
            Some(Err(error)) => name_of(error),
            None => "dropped".into(),
        };
        let granted = self.log.now();
        let asked = self.log.answered(call, outcome);
        let held = answer?.ok()??;
        let hold = self.log.holds(Hold {
            contender: self.number,
            key: self.key,
            owner: held.owner().to_string(),
            fence: held.fence(),
            is_shared: held.is_shared(),
            leads: held.leads(),
            is_replicated: self.copies > 0 || held.is_majority(),
            lease: micros(wish.lease),
            asked,
            granted,
            believed: None,
            doubted: None,
            ended: None,
            end: String::new(),
        });
        Some((held, hold))
    }

    /// The critical section, entered once more at times.
    async fn work(&mut self, wish: Wish, owner: Option<&Owner>, held: Held, hold: usize) {
        let length = match self.random.below(20) {
            0 | 1 => self.random.between(800, 2500),
            2..=4 => self.random.between(100, 800),
            _ => self.random.between(5, 100),
        };
        if !self.stay(&held, hold, length).await {
            return self.lost(held, hold).await;
        }
        if owner.is_some() && self.random.below(2) == 0 {
            let again = Wish {
                waiting: Waiting::AtMost(Duration::from_secs(2)),
                ..wish
            };
            if let Some((inner, entry)) = self.ask(again, owner).await {
                self.log.entered_again(hold, entry);
                let is_held = self.stay(&inner, entry, Duration::from_millis(20)).await;
                match is_held {
                    true => self.leave(inner, entry).await,
                    false => self.lost(inner, entry).await,
                }
                if !self.stay(&held, hold, Duration::from_millis(20)).await {
                    return self.lost(held, hold).await;
                }
            }
        }
        self.leave(held, hold).await;
    }

    /// Holds it for this long; whether it is still held then.
    async fn stay(&self, held: &Held, hold: usize, length: Duration) -> bool {
        let until = self.log.now() + micros(length);
        while self.log.sample(hold, || held.is_valid()) {
            if self.log.now() >= until || *self.stop.borrow() {
                return true;
            }
            sleep(Duration::from_millis(2)).await;
        }
        false
    }

    async fn leave(&mut self, held: Held, hold: usize) {
        if self.random.below(3) == 0 {
            self.log.ended(hold, "dropped");
            return drop(held);
        }
        let release = self
            .log
            .asked(self.number, self.key, "release", Some(PATIENCE));
        self.log.ended(hold, "released");
        let outcome = held.release().await;
        let outcome = outcome.map_or_else(|error| name_of(&error), |()| "released".into());
        self.log.answered(release, outcome);
    }

    /// Learns of the loss, and sees that it is final.
    async fn lost(&self, held: Held, hold: usize) {
        let call = self.log.asked(
            self.number,
            self.key,
            "news of a loss",
            Some(Duration::ZERO),
        );
        let loss = timeout(GIVES_UP, held.lost()).await;
        self.log.answered(
            call,
            loss.map_or("none".into(), |loss| format!("lost: {loss}")),
        );
        for _ in 0..3 {
            self.log.sample(hold, || held.is_valid());
            sleep(Duration::from_millis(5)).await;
        }
        self.log.ended(hold, "lost");
    }
}

/// What kind of error it is, in a word.
fn name_of(error: &Error) -> String {
    error.code().to_owned()
}
