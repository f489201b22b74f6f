//! The terminal of `top`: its screen, its keyboard, and signals.
//!
//! It is always restored: when [`Display`] is dropped, and by a hook before the
//! message of a panic.

use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt;
use ratatui::{DefaultTerminal, Frame};

use crate::failure::Failure;
use crate::signals::Signals;

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

/// An input of the user.
pub(super) enum Press {
    /// Ends the program with this exit code.
    Quit(u8),
    Key(KeyEvent),
    /// Anything else, such as a new size of the terminal.
    Other,
}

/// Keyboard and signals.
pub(super) struct Input<'a> {
    events: EventStream,
    signals: &'a mut Signals,
}

impl<'a> Input<'a> {
    pub(super) fn new(signals: &'a mut Signals) -> Self {
        let events = EventStream::new();
        Self { events, signals }
    }

    /// The next input.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Result<Press, Failure> {
        let event = tokio::select! {
            biased;
            signal = self.signals.ending() => return Ok(Press::Quit(signal.exit_code())),
            event = self.events.next() => event,
        };
        match event.transpose() {
            // The keyboard is closed.
            Ok(None) => Ok(Press::Quit(0)),
            Ok(Some(Event::Key(key))) => Ok(press(key)),
            Ok(Some(_)) => Ok(Press::Other),
            Err(error) => Err(Failure::internal("cannot read keys", &error)),
        }
    }
}

fn press(key: KeyEvent) -> Press {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        _ if key.kind == KeyEventKind::Release => Press::Other,
        KeyCode::Char('c' | 'd') if is_control => Press::Quit(0),
        _ => Press::Key(key),
    }
}
