//! The questions of the tests to a server, with typed replies.

use std::collections::BTreeMap;

use redis::{Connection, FromRedisValue};
use rlock_testkit::{Server, eventually};

/// The questions of the tests to a server.
pub(crate) trait Asks {
    /// A connection for the test itself.
    fn admin(&self) -> Admin;

    /// Sends one command on a new connection.
    fn query(&self, command: &redis::Cmd) -> redis::RedisResult<redis::Value>;

    /// Somebody who holds `key` for longer than any test takes.
    fn held_by(&self, key: &str, owner: &str) -> u64;

    /// Lets somebody wait for `key` on another connection, in the background.
    fn waited_for_by(&self, key: &str, owner: &str);

    /// Whether the server has a request that it has not read.
    fn has_unread(&self) -> bool;
}

impl Asks for Server {
    fn admin(&self) -> Admin {
        Admin::at(&self.url())
    }

    fn query(&self, command: &redis::Cmd) -> redis::RedisResult<redis::Value> {
        command.query(&mut self.admin().0)
    }

    fn held_by(&self, key: &str, owner: &str) -> u64 {
        let acquire = format!("RLOCK.ACQUIRE {key} {owner} 600000");
        self.admin().run(&acquire)
    }

    fn waited_for_by(&self, key: &str, owner: &str) {
        let mut connection = self.admin().0;
        let mut acquire = redis::cmd("RLOCK.ACQUIRE");
        acquire.arg(key).arg(owner).arg(600_000).arg("WAIT").arg(0);
        // The server may end first.
        std::thread::spawn(move || acquire.query::<u64>(&mut connection));
        let mut admin = self.admin();
        eventually("it waits", || {
            format!("{:?}", admin.info(key)["waiters"]).contains(owner)
        });
    }

    fn has_unread(&self) -> bool {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let local = format!(":{:04X}", self.port());
        sockets.lines().any(|socket| {
            let mut fields = socket.split_whitespace().skip(1);
            let is_own = fields
                .next()
                .is_some_and(|local_of| local_of.ends_with(&local));
            // State 01 is a connection. The queues of sent and received bytes
            // follow.
            let is_open = fields.nth(1) == Some("01");
            let queues = fields.next().unwrap_or_default();
            is_own && is_open && !queues.ends_with(":00000000")
        })
    }
}

pub(crate) struct Admin(Connection);

impl Admin {
    /// The same as the user of a URL.
    pub(crate) fn at(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        Self(client.get_connection().unwrap())
    }

    /// Sends a command, given as words.
    pub(crate) fn run<T: FromRedisValue>(&mut self, command: &str) -> T {
        self.ask(command)
            .unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// The same, where the server may refuse it.
    pub(crate) fn ask<T: FromRedisValue>(&mut self, command: &str) -> redis::RedisResult<T> {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        for word in words {
            cmd.arg(word);
        }
        cmd.query(&mut self.0)
    }

    /// One field of `INFO rlock`.
    pub(crate) fn gauge(&mut self, name: &str) -> u64 {
        let info: String = self.run("INFO rlock");
        let field = format!("rlock_{name}:");
        let value = info.lines().find_map(|line| line.strip_prefix(&field));
        value
            .unwrap_or_else(|| panic!("no {field} in {info}"))
            .trim()
            .parse()
            .unwrap()
    }

    /// The reply of `RLOCK.INFO`.
    fn info(&mut self, key: &str) -> BTreeMap<String, redis::Value> {
        self.run(&format!("RLOCK.INFO {key}"))
    }

    /// The fence of a lock that one owner holds.
    pub(crate) fn fence(&mut self, key: &str) -> u64 {
        let fence = self.info(key)["fence"].clone();
        redis::from_redis_value(fence).unwrap()
    }

    pub(crate) fn is_held(&mut self, key: &str) -> bool {
        self.run(&format!("EXISTS {key}"))
    }

    /// Waits until `count` requests are queued on the server.
    pub(crate) fn queued(&mut self, count: u64) {
        let what = format!("{count} queued");
        eventually(&what, || self.gauge("waiters") == count);
    }

    /// Queues a request, for which this connection subscribes to the outcome.
    pub(crate) fn enqueue(&mut self, key: &str, owner: &str, options: &str) {
        let command = format!("RLOCK.ACQUIRE {key} {owner} 600000 {options}WAIT 600000 NOTIFY n");
        let reply: String = self.run(&command);
        assert_eq!(reply, "WAITING");
    }
}
