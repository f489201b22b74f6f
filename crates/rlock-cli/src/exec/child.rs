//! The command under the lock: its start, its signals, its end.
//!
//! Without a terminal the command gets a process group of its own, and signals
//! go to all of it, so that nothing that it started works on without the lock.
//! With one it stays in the group of rlock: only there can it use the terminal
//! and be stopped and continued with it. A signal from the terminal has reached
//! it already then, and signals of rlock reach it alone.
//!
//! On Linux the kernel kills the command if rlock is killed. What the command
//! itself has started is not reached by that.

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rlock_client::Held;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
#[cfg(target_os = "linux")]
use rustix::process::{getpid, getppid, set_parent_process_death_signal};
use signal_hook::consts::signal::SIGCHLD;
use tokio::process::Command;

use crate::failure::{Code, Failure};
use crate::readable::printable;
use crate::signals::{Received, exit_code};

use super::Exec;

/// How often it is looked whether a process group is empty, because nothing
/// tells.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Child {
    process: tokio::process::Child,
    id: Pid,
    has_group: bool,
    is_reaped: bool,
}

impl Child {
    pub(super) fn start(exec: &Exec, held: &dyn Held) -> Result<Self, Failure> {
        let (program, arguments) = exec.command();
        let has_group = !has_terminal();
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("RLOCK_FENCE", held.fence().to_string())
            .env("RLOCK_KEY", exec.key())
            .env("RLOCK_OWNER", held.owner().as_str());
        if has_group {
            command.process_group(0);
        }
        #[cfg(target_os = "linux")]
        end_with_parent(&mut command);
        // Where the parent ignores it, the kernel would throw the command's exit
        // code away. Any handler ends that; the command begins with the default.
        let taken = signal_hook::flag::register(SIGCHLD, Arc::default());
        taken.map_err(|error| Failure::internal("cannot take SIGCHLD", &error))?;
        let name = || printable(&program.to_string_lossy());
        let process = command.spawn().map_err(|error| {
            let (code, what) = match error.kind() {
                ErrorKind::NotFound => (Code::NotFound, "was not found"),
                _ => (Code::CannotRun, "cannot be run"),
            };
            Failure::new(code, format!("command '{}' {what}: {error}", name()))
        })?;
        let id = process.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw).ok_or_else(|| {
            Failure::new(Code::Internal, format!("command '{}' has no id", name()))
        })?;
        Ok(Self {
            process,
            id,
            has_group,
            is_reaped: false,
        })
    }

    /// Waits for the command's end; its exit code.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn wait(&mut self) -> Result<u8, Failure> {
        let status = self.process.wait().await;
        self.is_reaped = true;
        status
            .map(code_of)
            .map_err(|error| Failure::internal("cannot wait for the command", &error))
    }

    /// Passes a signal on, unless the command has it already.
    pub(super) fn pass_on(&self, signal: Received) {
        let has_it = signal.is_from_terminal && !self.has_group;
        if let Some(signal) = Signal::from_named_raw(signal.number).filter(|_| !has_it) {
            self.send(signal);
        }
    }

    /// Ends the command: asks it to, and kills it after `grace`.
    pub(super) async fn end(&mut self, grace: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + grace;
        self.send(Signal::TERM);
        // A stopped process does not see the first before it has the second.
        self.send(Signal::CONT);
        let ended = tokio::time::timeout_at(deadline.into(), self.wait()).await;
        while self.is_group_left() && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if ended.is_err() || self.is_group_left() {
            self.send(Signal::KILL);
        }
        match ended {
            Ok(code) => code.map(drop),
            Err(_) => self.wait().await.map(drop),
        }
    }

    /// Whether anything of the command's group still runs. What has ended, and
    /// was not waited for by its parent, does not.
    fn is_group_left(&self) -> bool {
        self.has_group
            && test_kill_process_group(self.id) != Err(Errno::SRCH)
            && !is_all_ended(self.id)
    }

    /// Errors mean that nobody is left to signal. A process that was waited for
    /// is left alone, because its number may be another's by now; a group's
    /// number is not given out again while anybody is left in it.
    fn send(&self, signal: Signal) {
        let _ = match (self.has_group, self.is_reaped) {
            (true, _) => kill_process_group(self.id, signal),
            (false, false) => kill_process(self.id, signal),
            (false, true) => Ok(()),
        };
    }
}

/// Whether all of a process group has ended, as far as the system tells.
fn is_all_ended(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return false;
    };
    let stats = processes.filter_map(|process| {
        // Only processes have it.
        std::fs::read(process.ok()?.path().join("stat")).ok()
    });
    let mut of_group = stats.filter_map(|stat| {
        // Behind the name, in brackets: state, parent, group.
        let stat = String::from_utf8_lossy(&stat);
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.to_owned();
        let is_of_group = fields.nth(1)?.parse() == Ok(group.as_raw_nonzero().get());
        is_of_group.then_some(state)
    });
    let has_ended = |state: &str| matches!(state, "Z" | "X");
    match of_group.next() {
        Some(first) => has_ended(&first) && of_group.all(|state| has_ended(&state)),
        None => false,
    }
}

/// Has the kernel kill the command when rlock is gone.
///
/// The kernel looks at the thread that starts the command, not at the process.
/// It is the main thread, where the runtime polls `main`: a task of its own
/// must not start the command, because its thread may end before.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn end_with_parent(command: &mut Command) {
    let parent = Some(getpid());
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If rlock was gone before, the kernel says nothing.
        if getppid() != parent {
            return Err(Errno::SRCH.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only what is safe in a signal handler may
    // be done. These are two system calls; nothing is allocated or locked.
    unsafe { command.pre_exec(prepare) };
}

/// Whether this process belongs to a terminal, whatever its streams are.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// What a shell would say: the code, or 128 and the number of the signal.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or_else(|| exit_code(status.signal().unwrap_or_default()))
}
