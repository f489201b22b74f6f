//! The server's own commands on keys: changes by others behind the module's back.
//! The module learns at once when a key disappears, is renamed or gets another
//! time to live, but not of changed fields.

use rlock_core::{Name, syntax};

use crate::stage::Stage;
use rlock_testkit::core::store::Value;

impl Stage {
    /// The reply to a native command; `None` if it is the module's.
    pub(crate) fn native(
        &mut self,
        name: Name<'_>,
        command: &str,
        arguments: &[&str],
    ) -> Option<String> {
        let driver = &mut self.driver;
        let now = driver.now;
        let number = |changed: Option<bool>| match changed {
            Some(changed) => u8::from(changed).to_string(),
            None => "error WRONGTYPE".to_owned(),
        };
        let was_there = driver.store.get(now, name).is_some();
        let reply = match (command, arguments) {
            ("HGETALL", []) => return Some(self.all_fields(name)),
            ("PTTL", []) => return Some(self.time_left(name)),
            ("DEL", []) => number(Some(driver.store.delete(now, name))),
            ("SET", [value]) => {
                let value = Value::Text((*value).to_owned());
                driver.store.put(name, value, None);
                "OK".to_owned()
            }
            ("HSET", [field, value]) => number(driver.store.set_field(now, name, field, value)),
            ("HDEL", [field]) => number(driver.store.delete_field(now, name, field)),
            ("RENAME", [to]) => {
                let to = Name {
                    db: name.db,
                    key: to.as_bytes(),
                };
                let there = driver.store.rename(now, name, to);
                driver.locks.settle_later(to);
                if there { "OK" } else { "error ERR" }.to_owned()
            }
            ("PEXPIRE", [ms]) => {
                let ends = syntax::decimal(ms.as_bytes()).map(|ms| now.plus_millis(ms).millis());
                self.set_end(name, ends)
            }
            ("PERSIST", []) => self.set_end(name, None),
            _ => return None,
        };
        let driver = &mut self.driver;
        let is_gone = was_there && driver.store.get(now, name).is_none();
        if is_gone || matches!(command, "PEXPIRE" | "PERSIST") {
            driver.locks.settle_later(name);
        }
        Some(reply)
    }

    fn set_end(&mut self, name: Name<'_>, ends_ms: Option<u64>) -> String {
        let stored = self.driver.store.get_mut(self.driver.now, name);
        let Some(stored) = stored else {
            return "0".to_owned();
        };
        stored.ends_ms = ends_ms;
        "1".to_owned()
    }

    fn time_left(&self, name: Name<'_>) -> String {
        let now = self.driver.now;
        match self.driver.store.get(now, name).map(|it| it.ends_ms) {
            None => "no key".to_owned(),
            Some(None) => "no ttl".to_owned(),
            Some(Some(ends)) => format!("ttl {}", ends - now.millis()),
        }
    }
}
