//! The terminal while `top` has it: what is drawn there, and what the user wants by
//! keys or by a signal.
//!
//! It is restored however `top` ends: when [`Display`] is dropped, and by a hook
//! before the message of a panic. Asking to end is heard even while a server is slow
//! to answer; what else is wanted meanwhile is kept for later.

use std::collections::VecDeque;
use std::io;

use crossterm::event::{Event, EventStream, KeyCode, KeyEventKind, KeyModifiers};
use futures_util::StreamExt;
use ratatui::{DefaultTerminal, Frame};

use crate::failure::Failure;
use crate::signals::Signals;

use super::screen::{Sort, Wish};

/// The keys, for the end of the screen: in one line if it is wide enough.
pub(super) const LEGEND: [&str; 2] = [
    "q quit  ↑↓ select  enter queue  p pause",
    "sort: w)aiters h)olders o)ldest k)ey",
];

const PAGE: isize = 10;
/// How many wishes are kept; what a user presses beyond that is lost.
const KEPT_MAX: usize = 32;

pub(super) struct Display(DefaultTerminal);

impl Display {
    pub(super) fn take() -> Result<Self, Failure> {
        let terminal = ratatui::try_init();
        terminal.map(Self).map_err(|error| {
            ratatui::restore();
            Failure::internal("cannot use the terminal", &error)
        })
    }

    pub(super) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> Result<(), Failure> {
        let drawn = self.0.draw(render);
        drawn
            .map(drop)
            .map_err(|error| Failure::internal("cannot write to the terminal", &error))
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Keyboard and signals.
pub(super) struct Input<'a> {
    events: EventStream,
    signals: &'a mut Signals,
    kept: VecDeque<Wish>,
}

impl<'a> Input<'a> {
    pub(super) fn new(signals: &'a mut Signals) -> Self {
        Self {
            events: EventStream::new(),
            signals,
            kept: VecDeque::new(),
        }
    }

    /// The next wish, on a screen that shows a queue or not.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn next(&mut self, is_open: bool) -> Result<Wish, Failure> {
        match self.kept.pop_front() {
            Some(wish) => Ok(wish),
            None => self.arrival(is_open).await,
        }
    }

    /// Waits until the user asks to end; the exit code.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn quit(&mut self, is_open: bool) -> Result<u8, Failure> {
        loop {
            match self.arrival(is_open).await? {
                Wish::Quit(code) => return Ok(code),
                other if self.kept.len() < KEPT_MAX => self.kept.push_back(other),
                _ => {}
            }
        }
    }

    async fn arrival(&mut self, is_open: bool) -> Result<Wish, Failure> {
        tokio::select! {
            biased;
            signal = self.signals.ending() => Ok(Wish::Quit(signal.exit_code())),
            event = self.events.next() => event.map_or(Ok(Wish::Quit(0)), |event| {
                wish(event, is_open).map_err(|error| Failure::internal("cannot read keys", &error))
            }),
        }
    }
}

fn wish(event: io::Result<Event>, is_open: bool) -> io::Result<Wish> {
    let key = match event? {
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return Ok(Wish::Redraw),
    };
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        let ends = matches!(key.code, KeyCode::Char('c' | 'd'));
        return Ok(if ends { Wish::Quit(0) } else { Wish::Redraw });
    }
    Ok(match key.code {
        KeyCode::Esc | KeyCode::Enter if is_open => Wish::Close,
        KeyCode::Esc | KeyCode::Char('q') => Wish::Quit(0),
        KeyCode::Enter => Wish::Open,
        KeyCode::Up => Wish::Move(-1),
        KeyCode::Down => Wish::Move(1),
        KeyCode::PageUp => Wish::Move(-PAGE),
        KeyCode::PageDown => Wish::Move(PAGE),
        KeyCode::Home => Wish::Move(isize::MIN),
        KeyCode::End => Wish::Move(isize::MAX),
        KeyCode::Char('w') => Wish::Sort(Sort::Waiters),
        KeyCode::Char('h') => Wish::Sort(Sort::Holders),
        KeyCode::Char('o') => Wish::Sort(Sort::OldestWait),
        KeyCode::Char('k') => Wish::Sort(Sort::Key),
        KeyCode::Char('p') => Wish::Pause,
        _ => Wish::Redraw,
    })
}
