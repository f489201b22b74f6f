//! Questions to a server about itself.

use crate::client::eventually;
use crate::servers::server::Server;

impl Server {
    /// A field of `INFO section`; empty if there is none.
    pub fn info(&self, section: &str, field: &str) -> String {
        let info = self.ask(&format!("INFO {section}"));
        let found = info
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.unwrap_or_default().trim().to_owned()
    }

    /// A counter or gauge of `INFO rlock`.
    #[track_caller]
    pub fn counter(&self, name: &str) -> u64 {
        let value = self.info("rlock", &format!("rlock_{name}"));
        value
            .parse()
            .unwrap_or_else(|_| panic!("INFO rlock has no number rlock_{name}, but \"{value}\""))
    }

    /// The number of requests that are queued for a lock in database 0.
    #[track_caller]
    pub fn queued(&self, key: &str) -> usize {
        let info = self.ask(&format!("RLOCK.INFO {key}"));
        let mut fields = info.split(' ').skip_while(|field| *field != "queued");
        fields
            .nth(1)
            .and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("RLOCK.INFO replied {info}"))
    }

    /// Waits until `count` requests are queued for a lock in database 0.
    #[track_caller]
    pub fn await_queued(&self, key: &str, count: usize) {
        eventually(&format!("{count} queued for {key}"), || {
            self.queued(key) == count
        });
    }

    /// Whether the connection is blocked in a command.
    pub fn is_blocked(&self, client: i64) -> bool {
        let list = self.ask(&format!("CLIENT LIST ID {client}"));
        let flags = list
            .split(' ')
            .find_map(|field| field.strip_prefix("flags="));
        flags.is_some_and(|flags| flags.contains('b'))
    }

    /// Whether the server is at least of this version: Redis's, or Valkey's.
    pub fn is_at_least(&self, redis: (u32, u32), valkey: (u32, u32)) -> bool {
        let valkey_version = self.info("server", "valkey_version");
        if valkey_version.is_empty() {
            version(&self.info("server", "redis_version")) >= redis
        } else {
            version(&valkey_version) >= valkey
        }
    }

    pub fn is_valkey(&self) -> bool {
        !self.info("server", "valkey_version").is_empty()
    }
}

fn version(text: &str) -> (u32, u32) {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
