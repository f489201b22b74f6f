//! The program under test, as a shell would run it.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rlock_testkit::signal;
use rlock_testkit::{Server, eventually};

/// The program for `server`. It has no terminal, even if the tests have one.
pub(crate) fn rlock(server: &Server) -> Command {
    rlock_at(&server.url())
}

pub(crate) fn rlock_at(url: &str) -> Command {
    let mut command = Command::new("setsid");
    command
        .arg(env!("CARGO_BIN_EXE_rlock"))
        .env("RLOCK_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// `rlock exec` with these options, running a script of the shell.
pub(crate) fn exec(server: &Server, options: &[&str], script: &str) -> Command {
    let mut command = rlock(server);
    command
        .arg("exec")
        .args(options)
        .args(["--", "sh", "-c", script]);
    command
}

/// Runs a command to its end, with a time limit.
pub(crate) fn finished(command: &mut Command) -> Finished {
    Running::start(command).finish()
}

/// A program that runs; it is killed if the test ends first.
pub(crate) struct Running(Option<Child>);

/// The exit code and the output of a program.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    pub(crate) fn id(&mut self) -> u32 {
        self.child().id()
    }

    pub(crate) fn signal(&mut self, signal: &str) {
        signal::send(self.id(), signal);
    }

    /// Waits until none of its threads has work.
    pub(crate) fn until_idle(&mut self) {
        let tasks = format!("/proc/{}/task", self.id());
        eventually("the program is idle", || {
            std::fs::read_dir(&tasks).unwrap().all(|task| {
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
                // The name comes before the state, in brackets.
                stat.is_ok_and(|stat| stat.contains(") S "))
            })
        });
    }

    /// Waits until the program has written this line. It must be the first one
    /// that is not read.
    pub(crate) fn until_says(&mut self, line: &str) {
        let stdout = self.child().stdout.as_mut().unwrap();
        let mut written = vec![0; line.len() + 1];
        stdout.read_exact(&mut written).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), format!("{line}\n"));
    }

    /// Closes its stdin.
    pub(crate) fn close_stdin(&mut self) {
        drop(self.child().stdin.take());
    }

    /// Closes the reader of its stdout.
    pub(crate) fn close_stdout(&mut self) {
        drop(self.child().stdout.take());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let child = self.child();
        eventually("the program ends", || child.try_wait().unwrap().is_some());
        child.wait().unwrap()
    }

    /// Waits for the end. The output must fit into a pipe.
    pub(crate) fn finish(mut self) -> Finished {
        let status = self.wait();
        let Output { stdout, stderr, .. } = self.0.take().unwrap().wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Finished {
            code: status.code(),
            stdout: text(stdout),
            stderr: text(stderr),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Finished {
    /// The one JSON value on stdout.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn assert_code(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self:?}");
    }

    pub(crate) fn assert_says(&self, words: &str) {
        assert!(self.stderr.contains(words), "{self:?}");
    }

    pub(crate) fn assert_says_in_order(&self, first: &str, second: &str) {
        let lines: Vec<_> = self.stderr.lines().collect();
        let of = |words| lines.iter().position(|line| line.contains(words));
        assert!(of(first).is_some() && of(first) < of(second), "{self:?}");
    }
}
