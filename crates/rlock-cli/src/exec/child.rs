//! The command under the lock: its start, its signals, its end.
//!
//! Without a terminal the command gets its own process group. Signals go to the
//! whole group, so that no process of the command goes on without the lock.
//! With a terminal the command stays in rlock's group, because only that group
//! can use the terminal, and is stopped and continued by it. The command then
//! already has every signal of the terminal, and rlock sends its own signals to
//! the command alone.
//!
//! On Linux the kernel kills the command if rlock is killed. It does not kill
//! the processes that the command has started.

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

/// How often to check whether a process group is empty: the system sends no
/// message.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

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
        // If the parent ignores SIGCHLD, the kernel discards the command's exit
        // code. A handler prevents that. The command starts with the default.
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
        // A stopped process handles SIGTERM only after SIGCONT.
        self.send(Signal::CONT);
        let ended = tokio::time::timeout_at(deadline.into(), self.wait()).await;
        while self.is_group_left() && Instant::now() < deadline {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        if ended.is_err() || self.is_group_left() {
            self.send(Signal::KILL);
        }
        match ended {
            Ok(code) => code.map(drop),
            Err(_) => self.wait().await.map(drop),
        }
    }

    /// Whether a process of the command's group still runs. A zombie process
    /// does not.
    fn is_group_left(&self) -> bool {
        self.has_group
            && test_kill_process_group(self.id) != Err(Errno::SRCH)
            && !is_all_ended(self.id)
    }

    /// An error means that no process is left. A reaped process gets no signal,
    /// because its id may belong to another process by now. The system does not
    /// reuse the id of a group that has a process.
    fn send(&self, signal: Signal) {
        let _ = match (self.has_group, self.is_reaped) {
            (true, _) => kill_process_group(self.id, signal),
            (false, false) => kill_process(self.id, signal),
            (false, true) => Ok(()),
        };
    }
}

/// Whether all processes of a group have ended, as far as the system shows.
fn is_all_ended(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return false;
    };
    let stats = processes.filter_map(|process| {
        // Only a process has this file.
        std::fs::read(process.ok()?.path().join("stat")).ok()
    });
    let mut of_group = stats.filter_map(|stat| {
        // The name is in brackets. State, parent and group follow.
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

/// Has the kernel kill the command when rlock ends.
///
/// The kernel watches the thread that starts the command, not the process. That
/// is the main thread, where the runtime polls `main`. A spawned task must not
/// start the command, because its thread may end earlier.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn end_with_parent(command: &mut Command) {
    let parent = Some(getpid());
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If rlock has ended already, the kernel sends no signal.
        if getppid() != parent {
            return Err(Errno::SRCH.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only functions that are safe in a signal
    // handler are allowed. These are two system calls, and nothing is allocated
    // or locked.
    unsafe { command.pre_exec(prepare) };
}

/// Whether this process has a controlling terminal. Its streams do not matter.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// The exit code as in a shell: the command's, or 128 plus the number of the
/// signal.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or_else(|| exit_code(status.signal().unwrap_or_default()))
}
