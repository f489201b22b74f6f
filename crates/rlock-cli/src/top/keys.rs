//! What the user wants by which key.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::screen::{Sort, Step};

/// Each key, or several, with what it does, for the help.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("j k ↓ ↑", "next and previous lock; scroll the queue"),
    ("space b", "a page on, back; so do Page Down, Up"),
    ("Ctrl-D Ctrl-U", "half a page on, back"),
    ("g G", "first, last; so do Home, End"),
    ("Enter", "show the queue of the lock, or hide it"),
    ("← →", "in a queue: that of the lock before, after"),
    ("/", "show only locks with this in their name"),
    ("Esc", "hide the queue, clear the filter, or end"),
    ("w o n m", "sort by waiters, oldest wait, name,"),
    ("", "most holders"),
    ("F", "end the holds of the lock: asks first"),
    ("p", "stop looking, or go on"),
    ("Ctrl-Z", "stop rlock; the shell's `fg` goes on"),
    ("q Ctrl-C", "end"),
];

/// What the user wants, by a key that has the same meaning whatever is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Quit,
    /// Hides what is shown last.
    Back,
    /// To another line.
    Move(Step),
    /// To the lock so many lines on.
    Other(isize),
    /// Shows the queue of the selected lock, or hides it.
    Queue,
    Filter,
    Force,
    Sort(Sort),
    Pause,
    Help,
}

pub(super) fn wish(key: KeyEvent) -> Option<Wish> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return Some(match key.code {
            KeyCode::Char('d') => Wish::Move(Step::Half(1)),
            KeyCode::Char('u') => Wish::Move(Step::Half(-1)),
            KeyCode::Char('f') => Wish::Move(Step::Page(1)),
            KeyCode::Char('b') => Wish::Move(Step::Page(-1)),
            KeyCode::Char('n') => Wish::Move(Step::Lines(1)),
            KeyCode::Char('p') => Wish::Move(Step::Lines(-1)),
            _ => return None,
        });
    }
    if let Some(step) = step(key.code) {
        return Some(Wish::Move(step));
    }
    Some(match key.code {
        KeyCode::Char('q') => Wish::Quit,
        KeyCode::Esc => Wish::Back,
        KeyCode::Left => Wish::Other(-1),
        KeyCode::Right => Wish::Other(1),
        KeyCode::Enter => Wish::Queue,
        KeyCode::Char('/') => Wish::Filter,
        KeyCode::Char('F') => Wish::Force,
        KeyCode::Char('w') => Wish::Sort(Sort::Waiters),
        KeyCode::Char('o') => Wish::Sort(Sort::OldestWait),
        KeyCode::Char('n') => Wish::Sort(Sort::Name),
        KeyCode::Char('m') => Wish::Sort(Sort::Holders),
        KeyCode::Char('p') => Wish::Pause,
        KeyCode::Char('?') => Wish::Help,
        _ => return None,
    })
}

/// Where a key leads, as in `less` and `vim`.
pub(super) fn step(key: KeyCode) -> Option<Step> {
    Some(match key {
        KeyCode::Down | KeyCode::Char('j') => Step::Lines(1),
        KeyCode::Up | KeyCode::Char('k') => Step::Lines(-1),
        KeyCode::PageDown | KeyCode::Char(' ') => Step::Page(1),
        KeyCode::PageUp | KeyCode::Char('b') => Step::Page(-1),
        KeyCode::Home | KeyCode::Char('g') => Step::First,
        KeyCode::End | KeyCode::Char('G') => Step::Last,
        _ => return None,
    })
}
