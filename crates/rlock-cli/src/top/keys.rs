//! The keys and their actions.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::screen::Sort;

/// Keys, and what they do, for the help.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("↓ ↑ j k", "next and previous lock; scroll the queue"),
    ("Page Down, Up", "next and previous page; also space and b"),
    ("Home End g G", "first and last"),
    ("Enter", "show the queue of the lock, or hide it"),
    ("← →", "the queue of the previous, next lock"),
    ("/", "show only locks with this in their name"),
    ("w o n", "sort by waiters, oldest wait, name"),
    ("F", "end the holds of the lock: asks first"),
    ("p", "pause, or continue"),
    ("Esc", "hide the queue, clear the filter, or end"),
    ("q Ctrl-C", "end"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    /// Hides the queue, clears the filter, or ends.
    Back,
    /// Moves by this number of lines.
    Move(isize),
    /// Moves by this number of pages.
    Page(isize),
    /// Shows the queue of another lock, this number of lines below, if a queue
    /// is shown.
    Other(isize),
    /// Shows the queue of the selected lock, or hides it.
    Queue,
    Filter,
    Force,
    Sort(Sort),
    Pause,
    Help,
}

/// The action of a key while no text is typed.
pub(super) fn action(key: KeyEvent) -> Option<Action> {
    if has_control(key) {
        return None;
    }
    Some(match key.code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Esc => Action::Back,
        KeyCode::Char('j') => Action::Move(1),
        KeyCode::Char('k') => Action::Move(-1),
        KeyCode::Char(' ') => Action::Page(1),
        KeyCode::Char('b') => Action::Page(-1),
        KeyCode::Char('g') => Action::Move(isize::MIN),
        KeyCode::Char('G') => Action::Move(isize::MAX),
        KeyCode::Left => Action::Other(-1),
        KeyCode::Right => Action::Other(1),
        KeyCode::Enter => Action::Queue,
        KeyCode::Char('/') => Action::Filter,
        KeyCode::Char('F') => Action::Force,
        KeyCode::Char('w') => Action::Sort(Sort::Waiters),
        KeyCode::Char('o') => Action::Sort(Sort::OldestWait),
        KeyCode::Char('n') => Action::Sort(Sort::Name),
        KeyCode::Char('p') => Action::Pause,
        KeyCode::Char('?') => Action::Help,
        _ => return movement(key),
    })
}

/// The action of a key that is not a letter, even while text is typed.
pub(super) fn movement(key: KeyEvent) -> Option<Action> {
    Some(match key.code {
        KeyCode::Down => Action::Move(1),
        KeyCode::Up => Action::Move(-1),
        KeyCode::PageDown => Action::Page(1),
        KeyCode::PageUp => Action::Page(-1),
        KeyCode::Home => Action::Move(isize::MIN),
        KeyCode::End => Action::Move(isize::MAX),
        _ => return None,
    })
}

pub(super) fn has_control(key: KeyEvent) -> bool {
    let others = KeyModifiers::CONTROL | KeyModifiers::ALT;
    key.modifiers.intersects(others)
}
