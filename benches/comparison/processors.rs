//! On which processors the server and this thread run.
//!
//! Left alone, the scheduler puts them on one processor or on two as it likes,
//! and a round trip takes three times as long in the one case as in the other.

use std::fs;
use std::process::{Command, Stdio};

/// Where this process may run.
pub(crate) struct Processors {
    list: String,
}

impl Processors {
    /// Those that this process was started with.
    pub(crate) fn allowed() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Self {
            list: list.unwrap_or("0").trim().to_owned(),
        }
    }

    /// The first and the last one, if there is more than one.
    pub(crate) fn two(&self) -> Option<[&str; 2]> {
        let mut numbers = self.list.split([',', '-']);
        let first = numbers.next()?;
        Some([first, numbers.next_back()?])
    }

    /// The first one.
    pub(crate) fn one(&self) -> &str {
        self.list.split([',', '-']).next().unwrap_or("0")
    }
}

impl Drop for Processors {
    /// Lets this thread run anywhere again, and what it starts from now on.
    fn drop(&mut self) {
        bind(std::process::id(), &self.list);
    }
}

/// Binds the main thread of a process.
pub(crate) fn bind(process: u32, list: &str) {
    let bound = Command::new("taskset")
        .args(["--pid", "--cpu-list", list, &process.to_string()])
        .stdout(Stdio::null())
        .status();
    assert!(
        bound.is_ok_and(|status| status.success()),
        "taskset, of util-linux, binds a process to processors {list}"
    );
}
