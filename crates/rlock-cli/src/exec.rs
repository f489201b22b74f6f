//! `rlock exec`: runs a command while a lock is held.
//!
//! The order of things: the lock, then the command; the command's end, then
//! the release. Whatever ends this early, the queue is left or the lock is
//! released before rlock ends.

mod child;
mod lock;
mod terms;

use std::time::Duration;

use rlock_client::{Error, Loss};
use serde_json::json;

use crate::address::Address;
use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::readable::printable;
use crate::signals::{Received, Signals};

use child::Child;
use lock::{Held, Lock, Servers};
pub(crate) use terms::Exec;

/// How long the clean-up may take that goes on behind a call.
const CLEANUP_MAX: Duration = Duration::from_secs(2);

/// Runs the command; its exit code, or rlock's own.
pub(crate) async fn run(exec: &Exec, address: &Address, output: Output) -> Result<u8, Failure> {
    let quorum = exec.quorum();
    let members = (!quorum.is_empty()).then(|| address.of_quorum(quorum));
    let session = Session {
        exec,
        address: members.as_ref().unwrap_or(address),
        output,
    };
    let mut signals =
        Signals::listen().map_err(|error| Failure::internal("cannot take signals", &error))?;
    let servers = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(session.interrupted(signal)),
        servers = session.connect() => servers?,
    };
    let outcome = session.under_lock(&servers, &mut signals).await;
    // Of dropped calls and guards something may be left to withdraw.
    let _ = tokio::time::timeout(CLEANUP_MAX, servers.flush()).await;
    outcome
}

/// What stays the same for the whole of one `exec`.
struct Session<'a> {
    exec: &'a Exec,
    address: &'a Address,
    output: Output,
}

/// How the time under the lock ended.
enum End {
    Exited(u8),
    Lost(Loss),
}

impl Session<'_> {
    async fn connect(&self) -> Result<Servers, Failure> {
        match self.exec.quorum() {
            [] => self.address.client().await.map(Servers::One),
            urls => self.address.quorum(urls).await.map(Servers::Quorum),
        }
    }

    async fn under_lock(&self, servers: &Servers, signals: &mut Signals) -> Result<u8, Failure> {
        let lock = Lock::new(servers, self.exec).map_err(|error| self.address.failure(&error))?;
        let held = tokio::select! {
            biased;
            signal = signals.ending() => return Ok(self.interrupted(signal)),
            held = lock.acquire(self.exec.wait()) => held,
        };
        let held = held.map_err(|error| self.address.failure(&error))?;
        let held = held.ok_or_else(|| self.not_granted())?;
        self.say_granted(&held);
        let mut child = match Child::start(self.exec, &held) {
            Ok(child) => child,
            Err(failure) => {
                self.release(held).await?;
                return Err(failure);
            }
        };
        let code = match self.watch(&mut child, &held, signals).await? {
            End::Exited(code) => {
                self.release(held).await?;
                code
            }
            End::Lost(loss) => {
                self.say_lost(&held, loss);
                child.end(self.exec.kill_after()).await?;
                Code::Lost.number()
            }
        };
        let event = json!({"event": "ended", "code": code});
        self.output.event(&event, None);
        Ok(code)
    }

    /// Waits until the command ends or the lock is lost, and passes signals on.
    async fn watch(
        &self,
        child: &mut Child,
        held: &Held,
        signals: &mut Signals,
    ) -> Result<End, Failure> {
        loop {
            tokio::select! {
                biased;
                code = child.wait() => return code.map(End::Exited),
                loss = held.lost() => return Ok(End::Lost(loss)),
                signal = signals.next() => child.pass_on(signal),
            }
        }
    }

    /// Releases the lock after the command.
    ///
    /// That it was lost by then is an error, as nobody knows since when. That
    /// the server cannot be reached is none: the command ran under the lock to
    /// its end, and the lock ends with its lease.
    async fn release(&self, held: Held) -> Result<(), Failure> {
        match held.release().await {
            Ok(()) => Ok(()),
            Err(Error::Lost(loss)) => {
                let message = format!("{}: lost before the command had ended: {loss}", self.key());
                Err(Failure::new(Code::Lost, message))
            }
            Err(error) => {
                let (key, lease) = (self.key(), humantime::format_duration(self.exec.lease()));
                self.output.say(&format!(
                    "rlock: {key}: not released, it ends within {lease}: {error}"
                ));
                Ok(())
            }
        }
    }

    /// The exit code after a signal that came before the lock did.
    fn interrupted(&self, signal: Received) -> u8 {
        let (code, key) = (signal.exit_code(), self.key());
        let event = json!({"event": "interrupted", "code": code});
        let words = format!("rlock: {key}: no longer waiting, signal {}", signal.number);
        self.output.event(&event, Some(&words));
        code
    }

    fn say_granted(&self, held: &Held) {
        let (key, owner, fence) = (self.exec.key_text(), held.owner().as_str(), held.fence());
        let event = json!({"event": "granted", "key": key, "owner": owner, "fence": fence});
        self.output.event(&event, None);
    }

    fn say_lost(&self, held: &Held, loss: Loss) {
        let (key, reason) = (self.exec.key_text(), loss.to_string());
        let event = json!({"event": "lost", "key": key, "fence": held.fence(), "reason": reason});
        let words = format!("rlock: {}: lost, {loss}; ending the command", self.key());
        self.output.event(&event, Some(&words));
    }

    fn not_granted(&self) -> Failure {
        let wait = humantime::format_duration(self.exec.wait().unwrap_or_default());
        let message = match self.exec.wait() {
            Some(Duration::ZERO) => format!("{}: not to be had at once", self.key()),
            _ => format!("{}: not granted within {wait}", self.key()),
        };
        Failure::new(Code::NotGranted(self.exec.conflict_exit_code()), message)
    }

    fn key(&self) -> String {
        printable(&self.exec.key_text())
    }
}
