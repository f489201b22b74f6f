//! Contenders in other languages: a program, which does what `Contender` does with the client of its language.
//!
//! It finds in its environment `RLOCK_URL`, `RLOCK_SEED`, `RLOCK_KEYS`, and in `RLOCK_COPIES` how many replicas have to
//! know of a grant of `copied`. When its standard input ends it leaves, and writes down its holds and calls, a line of JSON
//! each: what [`Hold`] and [`Call`] have, with times in microseconds of the monotonic clock.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rlock_testkit::history::{Call, Hold, Moment};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::contender::{KEYS, Process};
use crate::log::Log;

/// Verbs as the history has them.
const VERBS: [&str; 4] = ["try", "wait with a limit", "wait", "release"];

pub(crate) struct Program {
    /// For a shell.
    pub(crate) command: String,
    pub(crate) number: usize,
    pub(crate) url: String,
    pub(crate) copies: u16,
    pub(crate) seed: u64,
}

impl Program {
    pub(crate) fn start(self, log: Log, stop: watch::Receiver<bool>) -> Process {
        let (stalls, orders) = mpsc::unbounded_channel();
        Process::new(self.number, stalls, self.run(log, stop, orders))
    }

    async fn run(
        self,
        log: Log,
        mut stop: watch::Receiver<bool>,
        mut orders: mpsc::UnboundedReceiver<Duration>,
    ) {
        let child = Command::new("sh")
            .args(["-c", &format!("exec {}", self.command)])
            .env("RLOCK_URL", &self.url)
            .env("RLOCK_SEED", self.seed.to_string())
            .env("RLOCK_KEYS", KEYS.join(" "))
            .env("RLOCK_COPIES", self.copies.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(duration) => stand_still(&child, duration, &log).await,
                    None => break,
                },
                () = async { drop(stop.wait_for(|stop| *stop).await) } => break,
            }
        }
        // Its standard input is closed.
        let said = child.wait_with_output().expect("its end");
        assert!(said.status.success(), "`{}`: {}", self.command, said.status);
        let elsewhere = monotonic() - log.now();
        for line in String::from_utf8_lossy(&said.stdout).lines() {
            self.note(line, elsewhere, &log);
        }
    }

    /// Writes down what it has seen, by the clock of the log.
    fn note(&self, line: &str, elsewhere: Moment, log: &Log) {
        let said: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("`{line}`"));
        let number = |name: &str| said[name].as_u64();
        let moment = |name: &str| number(name).map(|it| it.saturating_sub(elsewhere));
        let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
        let key = KEYS.iter().position(|key| said["key"] == *key);
        let index = key.unwrap_or_else(|| panic!("a key: `{line}`"));
        let (contender, key) = (self.number * KEYS.len() + index, KEYS[index]);
        let asked = moment("asked").unwrap_or_else(|| panic!("a time: `{line}`"));
        let Some(verb) = said.get("verb") else {
            log.holds(Hold {
                contender,
                key,
                owner: text("owner"),
                fence: number("fence").expect("a fence"),
                leads: false,
                is_shared: said["shared"] == true,
                is_replicated: self.copies > 0 && key == "copied",
                lease: number("lease").expect("a lease"),
                asked,
                granted: moment("granted").expect("a grant"),
                believed: moment("first").zip(moment("last")),
                doubted: moment("doubted"),
                ended: moment("ended"),
                end: text("end"),
            });
            return;
        };
        let verb = VERBS.into_iter().find(|known| verb == known);
        log.read().calls.push(Call {
            contender,
            key,
            verb: verb.unwrap_or_else(|| panic!("a verb: `{line}`")),
            asked,
            limit: number("limit"),
            ended: moment("ended"),
            outcome: text("outcome"),
        });
    }
}

async fn stand_still(child: &Child, duration: Duration, log: &Log) {
    let signal = |signal| kill_process(Pid::from_child(child), signal).expect("it lives");
    let begun = log.now();
    signal(Signal::STOP);
    sleep(duration).await;
    signal(Signal::CONT);
    log.stalled(begun);
}

fn monotonic() -> Moment {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec.unsigned_abs() * 1_000_000) + now.tv_nsec.unsigned_abs() / 1_000
}
