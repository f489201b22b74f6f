//! Sorts the messages of one step into one comparable order.

use crate::core::told::{Outcome, Told, Word};

impl<F> Told<F> {
    /// The owner that has lost a hold.
    fn loser(&self) -> Option<&str> {
        match self {
            Self::Message {
                word: Word::Lost,
                owner,
                ..
            } => Some(owner),
            _ => None,
        }
    }
}

/// Locks are independent, so the order matters only within each lock. Holds lost
/// together have no order. An owner that waited without success, or listens on
/// the unlock channel, receives nothing else.
pub fn in_order_of_keys<F>(mut told: Vec<Told<F>>) -> Vec<Told<F>> {
    told.sort_by_cached_key(|it| {
        let (order, whom) = match it {
            Told::Answer {
                outcome: Outcome::Granted(_),
                ..
            }
            | Told::Message {
                word: Word::Grant | Word::Lost,
                ..
            } => (1, String::new()),
            Told::Answer { handle, .. } => (0, handle.to_string()),
            Told::Message { owner, .. } => (0, owner.clone()),
            Told::Unlock { .. } => (2, String::new()),
            Told::Value { .. } => (3, String::new()),
        };
        (it.key().to_owned(), order, whom)
    });
    let both_lost = |one: &Told<F>, other: &Told<F>| {
        one.key() == other.key() && one.loser().is_some() && other.loser().is_some()
    };
    for together in told.chunk_by_mut(both_lost) {
        together.sort_by(|one, other| one.loser().cmp(&other.loser()));
    }
    told
}
