//! The terminal while `top` has it: what is drawn there, and what comes from the
//! keyboard or by a signal.
//!
//! It is given back however `top` ends: when [`Display`] is dropped, and by a hook
//! before the message of a panic. So it is while `top` is stopped by Ctrl-Z.

use std::io;
use std::time::Duration;

use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, disable_raw_mode, enable_raw_mode};
use futures_util::StreamExt;
use ratatui::{DefaultTerminal, Frame};
use rustix::process::{Signal, kill_current_process_group};

use crate::failure::Failure;
use crate::signals::Signals;

/// By when a stop has begun, if it comes at all: a process group that nobody could
/// continue is not stopped.
const STOP_LIMIT: Duration = Duration::from_millis(200);

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

    /// As it was found, until it is taken again.
    pub(super) fn give_back(&mut self) {
        // What fails here fails again, and is reported, when it is taken again.
        let _ = self.0.show_cursor();
        ratatui::restore();
    }

    /// Takes it again, whatever has been done with it since.
    pub(super) fn take_again(&mut self) -> Result<(), Failure> {
        let taken = disable_raw_mode()
            .and_then(|()| enable_raw_mode())
            .and_then(|()| execute!(io::stdout(), EnterAlternateScreen))
            .and_then(|()| self.0.clear());
        taken.map_err(|error| Failure::internal("cannot use the terminal", &error))
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What has come from the user.
pub(super) enum Press {
    /// Ends, with this exit code.
    Quit(u8),
    Key(KeyEvent),
    /// Stops the process, as Ctrl-Z does elsewhere.
    Stop,
    /// The process was stopped, and goes on.
    Continued,
    /// The terminal has another size, for example.
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

    /// What comes next.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Result<Press, Failure> {
        let event = tokio::select! {
            biased;
            signal = self.signals.next() => {
                return Ok(match signal {
                    signal if signal.is_ending() => Press::Quit(signal.exit_code()),
                    signal if signal.is_continuing() => Press::Continued,
                    _ => Press::Other,
                });
            }
            event = self.events.next() => event,
        };
        match event.transpose() {
            // Nobody can press anything any more.
            Ok(None) => Ok(Press::Quit(0)),
            Ok(Some(Event::Key(key))) => Ok(press(key)),
            Ok(Some(_)) => Ok(Press::Other),
            Err(error) => Err(Failure::internal("cannot read keys", &error)),
        }
    }

    /// Stops the process and all that were started with it, and returns when it
    /// goes on; an exit code if it is to end then.
    pub(super) async fn stop(&mut self) -> Result<Option<u8>, Failure> {
        kill_current_process_group(Signal::TSTP)
            .map_err(|error| Failure::internal("cannot stop", &error.into()))?;
        let continued = async {
            loop {
                match self.signals.next().await {
                    signal if signal.is_continuing() => return None,
                    signal if signal.is_ending() => return Some(signal.exit_code()),
                    _ => {}
                }
            }
        };
        // Time passes while it is stopped, too.
        let continued = tokio::time::timeout(STOP_LIMIT, continued).await;
        Ok(continued.ok().flatten())
    }
}

fn press(key: KeyEvent) -> Press {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        _ if key.kind == KeyEventKind::Release => Press::Other,
        KeyCode::Char('c') if is_control => Press::Quit(0),
        KeyCode::Char('z') if is_control => Press::Stop,
        _ => Press::Key(key),
    }
}
