//! The demonstration's other processes, seen from the first.

use std::process::Stdio;

use clap::ValueEnum;
use indicatif::ProgressBar;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::buyers::Task;
use crate::figures::Visit;
use crate::{Arguments, Outcome};

/// Another run of this program; killed when dropped.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts it and waits until it is ready.
    pub(crate) async fn start(arguments: &Arguments, task: Task) -> Outcome<Self> {
        let task = task.to_possible_value().ok_or("the task has no name")?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--server", &arguments.server, "--task", task.get_name()])
            .args(["--members", &arguments.members.join(",")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().ok_or("the process has no input")?;
        let output = child.stdout.take().ok_or("the process has no output")?;
        let mut lines = BufReader::new(output).lines();
        match lines.next_line().await? {
            Some(line) if line == "ready" => Ok(Self {
                child,
                input,
                lines,
            }),
            _ => Err("a process of buyers did not come up".into()),
        }
    }

    /// Opens the shop.
    pub(crate) async fn go(&mut self) -> Outcome<()> {
        Ok(self.input.write_all(b"\n").await?)
    }

    /// What came of its buyers, each also a step of `bar`.
    pub(crate) fn visits(
        mut self,
        bar: &ProgressBar,
    ) -> impl Future<Output = Result<Vec<Visit>, String>> + Send + use<> {
        let bar = bar.clone();
        async move {
            let mut visits = Vec::new();
            while let Some(line) = self
                .lines
                .next_line()
                .await
                .map_err(|error| error.to_string())?
            {
                visits.extend(Visit::parse(&line));
                bar.inc(1);
            }
            let status = self.child.wait().await.map_err(|error| error.to_string())?;
            if status.success() {
                Ok(visits)
            } else {
                Err("a process of buyers failed".into())
            }
        }
    }

    /// `kill -9`.
    pub(crate) async fn kill(&mut self) -> Outcome<()> {
        Ok(self.child.kill().await?)
    }
}
