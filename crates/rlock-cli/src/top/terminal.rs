//! The terminal while `top` has it.
//!
//! It is given back however `top` ends: when this is dropped, and by a hook
//! before the message of a panic.

use ratatui::{DefaultTerminal, Frame};

use crate::failure::Failure;

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
