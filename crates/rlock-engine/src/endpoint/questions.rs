//! Requests that are not about this client's own holds. Their answers affect no
//! decision about its locks.

use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::connection::ReplyKind;
use crate::endpoint::{ConnectionId, Endpoint, Outcome, Timer};
use crate::engine::instant::Instant;
use crate::engine::node::Node;
use crate::engine::{self, Id};
use crate::error::{Error, Failure, Fault};
use crate::wire::resp::{Command, Frame};

/// The server that a question is for.
#[derive(Clone, Debug)]
pub enum To {
    /// The server that has this key.
    Key(Arc<[u8]>),
    /// The server of that number.
    Node(Node),
}

#[derive(Debug)]
pub(super) struct Question {
    to: To,
    command: Command,
    changes: bool,
    begun: Instant,
    /// The deadline; none for no limit.
    deadline: Option<Instant>,
    attempts: u32,
    failure: Option<Failure>,
    stage: Stage,
    /// The next check.
    timer_due: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The server is not connected.
    NoConnection(Node),
    /// It is asked again at this moment.
    Pause(Instant),
    Asked(Node),
}

impl Endpoint {
    pub(super) fn question(
        &mut self,
        now: Instant,
        call: Id,
        to: To,
        (command, changes): (Command, bool),
        limit: Option<Duration>,
    ) {
        if self.is_closed || self.engine.is_leaving() {
            return self.resolve(call, Outcome::Failed(Error::Closed));
        }
        let deadline = limit.map(|limit| now + limit);
        let question = Question {
            to,
            command,
            changes,
            begun: now,
            deadline,
            attempts: 0,
            failure: None,
            stage: Stage::Pause(now),
            timer_due: None,
        };
        self.questions.insert(call, question);
        self.ask(now, call);
    }

    fn ask(&mut self, now: Instant, call: Id) {
        let Some(question) = self.questions.get(&call) else {
            return;
        };
        let node = match &question.to {
            To::Key(key) => self.engine.routes().node_of(key),
            To::Node(node) => *node,
        };
        self.engine.handle(now, engine::Event::Need { node });
        let main = self.main_connection(node);
        let Some(question) = self.questions.get_mut(&call) else {
            return;
        };
        question.stage = Stage::NoConnection(node);
        if let Some(main) = main
            && let Some(connection) = self.connections.get_mut(&main)
        {
            question.stage = Stage::Asked(node);
            let was_empty = connection.output.is_empty();
            connection.write(now, &question.command, ReplyKind::Question(call));
            self.has_output(now, main, was_empty);
        }
        self.set_question_timer(call);
    }

    fn set_question_timer(&mut self, call: Id) {
        let Some(question) = self.questions.get_mut(&call) else {
            return;
        };
        let pause = match question.stage {
            Stage::Pause(until) => Some(until),
            Stage::NoConnection(_) | Stage::Asked(_) => None,
        };
        let due = question.deadline.into_iter().chain(pause).min();
        let before = std::mem::replace(&mut question.timer_due, due);
        if before != due {
            let entry = |due| (due, Timer::Question(call));
            before.map(|due| self.timers.remove(&entry(due)));
            self.timers.extend(due.map(entry));
        }
    }

    pub(super) fn remove_question(&mut self, call: Id) -> Option<Question> {
        let question = self.questions.remove(&call)?;
        if let Some(due) = question.timer_due {
            self.timers.remove(&(due, Timer::Question(call)));
        }
        Some(question)
    }

    /// Asks the questions that waited for a connection.
    pub(super) fn resume_questions(&mut self, now: Instant) {
        let waiting = self.questions.iter();
        let waiting = waiting.filter(|(_, it)| matches!(it.stage, Stage::NoConnection(_)));
        let waiting: Vec<Id> = waiting.map(|(call, _)| *call).collect();
        for call in waiting {
            self.ask(now, call);
        }
    }

    /// A server is not connected. Questions without a retry fail.
    pub(super) fn questions_fail_at(&mut self, node: Node, failure: &Failure) {
        if !self.settings.is_probe {
            return;
        }
        let waiting = self.questions.iter();
        let waiting = waiting.filter(|(_, it)| it.stage == Stage::NoConnection(node));
        let waiting: Vec<Id> = waiting.map(|(call, _)| *call).collect();
        for call in waiting {
            let error = Error::Connect(failure.clone());
            self.question_ends(call, Outcome::Failed(error));
        }
    }

    pub(super) fn question_is_answered(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        call: Id,
        frame: Frame,
    ) {
        let Some(question) = self.questions.get(&call) else {
            return;
        };
        let Stage::Asked(node) = question.stage else {
            return;
        };
        if self.settings.is_probe {
            return self.question_ends(call, Outcome::Answer(frame));
        }
        let answer = match frame {
            Frame::Error(error) => {
                let keys = match &question.to {
                    To::Key(key) => vec![&**key],
                    To::Node(_) => Vec::new(),
                };
                Err(Fault::of(error, &keys))
            }
            frame => Ok(frame),
        };
        if self.is_start(call) {
            return self.module_is_there(answer.map(drop));
        }
        let ends = matches!(&answer, Err(fault) if fault.ends_connection());
        match answer {
            Ok(frame) => self.question_ends(call, Outcome::Answer(frame)),
            Err(Fault::Refused(error)) => self.question_ends(call, Outcome::Failed(error)),
            Err(Fault::Moved(error)) if !self.is_cluster() => {
                self.question_ends(call, Outcome::Failed(Error::Refused(error)));
            }
            Err(Fault::Moved(error) | Fault::Transient(Failure::Server(error))) => {
                self.redirected(now, &error, Some(node));
                self.question_failed(now, call, error.into());
            }
            Err(Fault::Transient(failure) | Fault::Broken(failure) | Fault::Stray(failure)) => {
                self.question_failed(now, call, failure);
            }
        }
        if ends {
            self.give_up(now, connection, super::silent());
        }
    }

    /// The connection of the question has ended.
    pub(super) fn question_is_lost(&mut self, now: Instant, call: Id, failure: Failure) {
        match self.questions.get(&call) {
            Some(question) if question.changes => {
                let (waited, source) = (now - question.begun, Some(failure));
                let error = Error::Unavailable { waited, source };
                self.question_ends(call, Outcome::Failed(error));
            }
            _ => self.question_failed(now, call, failure),
        }
    }

    /// Asks again after a pause.
    pub(super) fn question_failed(&mut self, now: Instant, call: Id, failure: Failure) {
        if self.is_start(call) {
            return self.module_is_there(Err(Fault::Broken(failure)));
        }
        let Some(attempts) = self.questions.get(&call).map(|question| question.attempts) else {
            return;
        };
        if self.settings.is_probe {
            return self.question_ends(call, Outcome::Failed(Error::Connect(failure)));
        }
        let until = now + self.engine.pause(attempts);
        if let Some(question) = self.questions.get_mut(&call) {
            question.attempts = attempts.saturating_add(1);
            question.failure = Some(failure);
            question.stage = Stage::Pause(until);
        }
        self.set_question_timer(call);
    }

    pub(super) fn question_is_due(&mut self, now: Instant, call: Id) {
        let known = self.failure().cloned();
        let Some(question) = self.questions.get_mut(&call) else {
            return;
        };
        question.timer_due = None;
        if question.deadline.is_some_and(|deadline| deadline <= now) {
            let source = question.failure.take().or(known);
            let waited = now - question.begun;
            let error = Error::Unavailable { waited, source };
            if self.is_start(call) {
                return self.start_ends(Err(error));
            }
            return self.question_ends(call, Outcome::Failed(error));
        }
        if matches!(question.stage, Stage::Pause(until) if until <= now) {
            self.ask(now, call);
        }
    }

    fn question_ends(&mut self, call: Id, outcome: Outcome) {
        self.remove_question(call);
        self.resolve(call, outcome);
    }

    /// Forgets a question that nobody waits for; true if there was one.
    pub(super) fn forget_question(&mut self, call: Id) -> bool {
        self.remove_question(call).is_some()
    }
}
