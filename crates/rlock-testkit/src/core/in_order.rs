//! The messages of one step, in the one order in which it can be compared.

use crate::core::told::{Outcome, Told, Word};

impl<F> Told<F> {
    /// Who has lost a hold.
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

/// Locks have nothing to do with one another, so the order matters for each
/// alone; of holds that are lost together none is lost before another; and
/// whose wait ends, or listens on the unlock channel, hears of nothing else.
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
