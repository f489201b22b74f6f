//! The module replicates nothing while nobody needs it, so it must know each time that somebody begins to.
//!
//! While clients take and release locks, replicas come and go, the append-only file begins and ends, and the server saves
//! its data. Afterwards all replicas, and the data that the append-only file has, are the master's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::traffic::Numbers;
use rlock_testkit::Server;
use rlock_testkit::Setup;
use rlock_testkit::client::{Client, eventually};
use rlock_testkit::seeds;

const KEYS: usize = 20;
/// The number of commands that the server reads at once.
const AT_ONCE: usize = 10;
/// Seeds that failed.
const FAILED: [u64; 0] = [];

/// A command that changes locks, or may.
fn command(numbers: &mut Numbers) -> String {
    let (key, owner) = (numbers.below(KEYS), numbers.below(3));
    let lock = format!("k{key} o{owner}");
    match numbers.below(12) {
        0..4 => format!("RLOCK.ACQUIRE {lock} 600000"),
        4 => format!("RLOCK.ACQUIRE {lock} 600000 SHARED"),
        5 => format!("RLOCK.ACQUIRE {lock} {}", 1 + numbers.below(20)),
        6 => format!("RLOCK.ACQUIRE {lock} 600000 WAIT 3"),
        7 => format!("RLOCK.MACQUIRE o{owner} 600000 2 k{key} other"),
        8 => format!("RLOCK.RENEW {lock} 600000"),
        9 => format!("RLOCK.FORCE k{key}"),
        _ => format!("RLOCK.RELEASE {lock} ALL"),
    }
}

/// Changes locks until `is_over`.
fn load(port: u16, mut numbers: Numbers, is_over: &AtomicBool) {
    let client = Client::connect(port);
    while !is_over.load(Ordering::Relaxed) {
        (0..AT_ONCE).for_each(|_| client.send(&command(&mut numbers)));
        (0..AT_ONCE).for_each(|_| drop(client.reply()));
    }
}

struct Play {
    numbers: Numbers,
    master: Server,
    replica: Server,
    events: Vec<&'static str>,
}

impl Play {
    fn new(seed: u64) -> Self {
        // The backlog ends soon after the last replica. A replica whose password is set in the middle of its handshake waits
        // for a reply that never comes, until this timeout.
        let lines = [
            "repl-backlog-ttl 1",
            "repl-timeout 5",
            "repl-ping-replica-period 1",
        ];
        let server = || {
            lines
                .iter()
                .fold(Setup::new(), |it, line| it.line(line))
                .start()
        };
        let (master, replica) = (server(), server());
        let mut play = Self {
            numbers: Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            master,
            replica,
            events: Vec::new(),
        };
        // Changes come over another connection than the data. Servers without these settings refuse them.
        if play.is_one_in(2) {
            for server in [&play.master, &play.replica] {
                server.ask("CONFIG SET dual-channel-replication-enabled yes");
                server.ask("CONFIG SET repl-rdb-channel yes");
            }
            play.events.push("two channels");
        }
        play
    }

    fn is_one_in(&mut self, number: usize) -> bool {
        self.numbers.below(number) == 0
    }

    fn attach(&self) {
        let follow = format!("REPLICAOF 127.0.0.1 {}", self.master.port());
        self.replica.ask(&follow);
    }

    fn follows(&self) -> bool {
        self.replica.info("replication", "master_link_status") == "up"
    }

    fn happens(&mut self) {
        let choice = self.numbers.below(12);
        let event = match choice {
            0 | 1 => {
                self.attach();
                "attached"
            }
            2 => {
                self.replica.ask("REPLICAOF NO ONE");
                // Without that, it would ask for less than all data.
                if self.is_one_in(2) {
                    self.replica.ask("FLUSHALL");
                }
                "left"
            }
            3 => {
                self.master.ask("CLIENT KILL TYPE replica");
                "cut off"
            }
            4 | 5 => {
                let begins = self.master.info("persistence", "aof_enabled") == "0";
                let answer = ["no", "yes"][usize::from(begins)];
                self.master.ask(&format!("CONFIG SET appendonly {answer}"));
                ["AOF ends", "AOF begins"][usize::from(begins)]
            }
            6 => {
                self.master.ask("BGSAVE");
                "saved"
            }
            // Redis 7.0 breaks the file if it begins in a transaction while there is a rewrite without a file.
            7 if self.master.info("persistence", "aof_enabled") == "1" => {
                self.master.ask("BGREWRITEAOF");
                "AOF rewritten"
            }
            8 => {
                let answer = ["no", "yes"][self.numbers.below(2)];
                self.master
                    .ask(&format!("CONFIG SET repl-diskless-sync {answer}"));
                answer
            }
            9 => {
                let c = self.master.client();
                c.ask("MULTI");
                c.ask("RLOCK.ACQUIRE before o 600000");
                c.ask("CONFIG SET appendonly yes");
                c.ask("RLOCK.ACQUIRE after o 600000");
                c.ask("EXEC");
                "AOF begins in a transaction"
            }
            10 => {
                self.master.ask("CONFIG SET repl-diskless-sync-delay 1");
                "delayed"
            }
            _ => {
                // The backlog stays until the replica is back. Meanwhile the master refuses the password.
                self.master.ask("CONFIG SET repl-backlog-ttl 3600");
                self.replica.ask("CONFIG SET masterauth wrong");
                self.master.ask("CLIENT KILL TYPE replica");
                thread::sleep(Duration::from_millis(250));
                self.replica.ask("CONFIG SET masterauth \"\"");
                "away"
            }
        };
        self.events.push(event);
    }

    /// The master and its replica change places, in step.
    fn change_places(&mut self) {
        self.attach();
        eventually("the replica follows", || self.follows());
        self.replica.ask("REPLICAOF NO ONE");
        std::mem::swap(&mut self.master, &mut self.replica);
        self.attach();
        self.events.push("changed places");
    }

    /// The replica leaves, and the backlog ends.
    fn is_alone(&mut self) {
        self.replica.ask("REPLICAOF NO ONE");
        self.master.ask("CONFIG SET repl-backlog-ttl 1");
        eventually("the backlog ends", || {
            self.master.info("replication", "repl_backlog_active") == "0"
        });
        thread::sleep(Duration::from_millis(150));
        self.events.push("alone");
    }

    fn play(&mut self) {
        if self.is_one_in(4) {
            self.change_places();
        }
        let (port, is_over) = (self.master.port(), AtomicBool::new(false));
        let loads = [1, 2].map(|number| Numbers(self.numbers.0 ^ number << 32));
        thread::scope(|scope| {
            for numbers in loads {
                scope.spawn(|| load(port, numbers, &is_over));
            }
            for _ in 0..1 + self.numbers.below(5) {
                thread::sleep(Duration::from_millis(self.numbers.below(40) as u64));
                self.happens();
                if self.is_one_in(24) {
                    self.is_alone();
                }
            }
            thread::sleep(Duration::from_millis(self.numbers.below(40) as u64));
            is_over.store(true, Ordering::Relaxed);
        });
    }

    /// Ends the holds whose leases are over, and returns what is left, with the ends
    /// of all leases, which no digest has.
    fn data(&self, server: &Server) -> Vec<String> {
        let keys = (0..KEYS).map(|key| format!("k{key}"));
        let keys = keys.chain(["before", "after"].map(str::to_owned));
        for key in keys.clone() {
            self.master.ask(&format!("EXISTS {key}"));
        }
        let ends = keys.map(|key| server.ask(&format!("PEXPIRETIME {key}")));
        [server.ask("DEBUG DIGEST")]
            .into_iter()
            .chain(ends)
            .collect()
    }

    fn check(&self) {
        // The longest of the short leases.
        thread::sleep(Duration::from_millis(25));
        if self.replica.info("replication", "role") == "slave" {
            eventually("the replica has the master's data", || {
                self.follows() && self.data(&self.master) == self.data(&self.replica)
            });
        }
        let is_zero = |field| self.master.info("persistence", field) == "0";
        if !is_zero("aof_enabled") {
            eventually("the append-only file is written", || {
                is_zero("aof_rewrite_scheduled") && is_zero("aof_rewrite_in_progress")
            });
            let data = self.data(&self.master);
            assert_eq!(self.master.ask("DEBUG LOADAOF"), "OK");
            assert_eq!(
                self.data(&self.master),
                data,
                "the append-only file has all"
            );
        }
    }
}

#[test]
fn changes_reach_all_that_begin_to_need_them() {
    seeds::each("audience", &FAILED, Duration::from_secs(5), |seed| {
        let mut play = Play::new(seed);
        play.play();
        println!("SEED={seed}: {}", play.events.join(", "));
        play.check();
    });
}

/// The file has the offset of its data. After a restart from it, the replica could go on from there. Until the next
/// cron, each change is counted by a copy of its command, which may be long.
#[test]
fn changes_while_a_replica_waits_are_passed_on_after_a_save_and_short() {
    let lines = ["hz 1", "dynamic-hz no", "repl-diskless-sync-delay 5"];
    let (master, replica) = (Server::configured(&lines), Server::start());
    let cron = Duration::from_millis(1_100);
    let c = master.client();
    let grows = |command: &str| {
        let offset = || {
            let offset = master.info("replication", "master_repl_offset");
            offset.parse::<u64>().expect("a number of bytes")
        };
        let before = offset();
        c.number(command);
        offset() - before
    };
    let keys = |name: &str| {
        (0..1000)
            .map(|at| format!(" {name}:{at}"))
            .collect::<String>()
    };
    let (_listening, long) = (master.listen(&["c"]), "x".repeat(1000));
    c.number(&format!("RLOCK.ACQUIRE {long} holder 600000"));
    let asked = format!(
        "RLOCK.MACQUIRE waiter 60000 1001 {long}{} WAIT 0 NOTIFY c",
        keys("a")
    );
    assert_eq!(c.ask(&asked), "WAITING");
    thread::sleep(cron);
    replica.ask(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    eventually("the replica waits for its data", || {
        master.info("replication", "connected_slaves") == "1"
    });
    for many in [
        format!("RLOCK.RELEASE {long} holder"),
        format!("RLOCK.MACQUIRE o 60000 1000{}", keys("b")),
    ] {
        let growth = grows(&many);
        assert!(growth < 1_000_000, "{growth} bytes for 1000 keys");
    }
    master.ask("SAVE");
    // It also selects the database.
    grows("RLOCK.ACQUIRE k1 owner-a 600000");
    let growth = grows("RLOCK.ACQUIRE k2 owner-a 600000");
    thread::sleep(cron);
    let same = grows("RLOCK.ACQUIRE k3 owner-a 600000");
    assert_eq!(growth, same, "the same commands are in the backlog");
}

/// The server saves its data after a number of changes.
#[test]
fn changes_count_even_if_nobody_needs_them() {
    let changes = |server: Server| {
        let c = server.client();
        c.number("RLOCK.ACQUIRE k owner-a 60000");
        c.number("RLOCK.RENEW k owner-a 70000");
        c.number("RLOCK.ACQUIRE shared owner-a 60000 SHARED");
        c.number("RLOCK.MACQUIRE owner-a 60000 2 k2 k3");
        c.ask("RLOCK.RELEASE k owner-a");
        c.ask("RLOCK.FORCE k2");
        server.info("persistence", "rdb_changes_since_last_save")
    };
    let needed = changes(Server::configured(&["appendonly yes"]));
    assert_ne!(needed, "0");
    assert_eq!(changes(Server::start()), needed);
}
