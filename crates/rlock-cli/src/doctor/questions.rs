//! Questions to a master, as far as the user may ask.

use rlock_client::Error;
use rlock_client::probe::{Command, Frame, Master};

const DRY_RUN: [&str; 2] = ["ACL", "DRYRUN"];

/// A master, and what it refused.
///
/// Every refused command is an entry in `ACL LOG`, which raises alarms. So a
/// user with the right to `ACL DRYRUN` asks that first, and sends no command
/// that the server would refuse.
pub(super) struct Questions<'a> {
    pub(super) master: &'a Master,
    /// The name of the user that asks.
    pub(super) user: Option<String>,
    has_dry_run: bool,
    /// The refused questions, each with the code of the error.
    pub(super) unanswered: Vec<(&'static str, String)>,
}

/// Why the server does not execute a command.
pub(super) enum Refusal {
    /// It does not know the command.
    Unknown,
    /// The user lacks a right; with the server's words.
    Denied(String),
}

impl<'a> Questions<'a> {
    pub(super) async fn new(master: &'a Master) -> Result<Self, Error> {
        let mut questions = Self {
            master,
            user: None,
            has_dry_run: false,
            unanswered: Vec::new(),
        };
        let user = questions.ask("ACL WHOAMI", &[]).await?;
        questions.user = user.and_then(Frame::into_text);
        let missing = match questions.dry_run(&["PING"]).await? {
            None => "not sent".to_owned(),
            Some(Frame::Error(error)) => error.code,
            Some(_) => {
                questions.has_dry_run = true;
                return Ok(questions);
            }
        };
        questions.unanswered.push(("ACL DRYRUN", missing));
        Ok(questions)
    }

    /// Whether a refused command leaves no entry in `ACL LOG`.
    pub(super) fn is_silent(&self) -> bool {
        self.has_dry_run
    }

    /// The answer; none if the server refuses it, which is noted in
    /// `unanswered`.
    pub(super) async fn ask(
        &mut self,
        question: &'static str,
        arguments: &[&str],
    ) -> Result<Option<Frame>, Error> {
        let words: Vec<_> = question
            .split(' ')
            .chain(arguments.iter().copied())
            .collect();
        if self.has_dry_run && self.refusal(&words).await?.is_some() {
            self.unanswered.push((question, "NOPERM".to_owned()));
            return Ok(None);
        }
        match self.master.ask(&command(&words)).await? {
            Frame::Error(error) => {
                self.unanswered.push((question, error.code));
                Ok(None)
            }
            answer => Ok(Some(answer)),
        }
    }

    /// Why the user may not use a command, if so. Without `ACL DRYRUN` this
    /// sends the command, so it must change nothing.
    pub(super) async fn refusal(&self, words: &[&str]) -> Result<Option<Refusal>, Error> {
        let answer = match self.has_dry_run {
            true => self.dry_run(words).await?,
            false => Some(self.master.ask(&command(words)).await?),
        };
        Ok(match answer {
            Some(Frame::Error(error)) if is_unknown(&error.message) => Some(Refusal::Unknown),
            Some(Frame::Error(error)) if error.code == "NOPERM" => {
                Some(Refusal::Denied(error.message))
            }
            // Any other error is about the arguments.
            Some(Frame::Error(_)) | None => None,
            Some(answer) if self.has_dry_run => answer
                .into_text()
                .filter(|answer| answer != "OK")
                .map(Refusal::Denied),
            Some(_) => None,
        })
    }

    /// What `ACL DRYRUN` says about a command; none if the user's name is not
    /// known.
    async fn dry_run(&self, words: &[&str]) -> Result<Option<Frame>, Error> {
        let Some(user) = &self.user else {
            return Ok(None);
        };
        let words: Vec<_> = DRY_RUN
            .iter()
            .chain([&user.as_str()])
            .chain(words)
            .copied()
            .collect();
        self.master.ask(&command(&words)).await.map(Some)
    }
}

/// `ACL DRYRUN` says "Command 'x' not found", the command itself says
/// "unknown command".
fn is_unknown(message: &str) -> bool {
    message.contains("unknown command") || message.ends_with("not found")
}

pub(super) fn command(words: &[&str]) -> Command {
    let (name, arguments) = words.split_first().unwrap_or((&"", &[]));
    let mut command = Command::new(name);
    for argument in arguments {
        command.arg(*argument);
    }
    command
}
