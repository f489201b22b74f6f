//! Sorts the messages of one step into one comparable order.

use crate::core::messages::{MessageKind, Outcome, Sent};

impl<F> Sent<F> {
    /// The owner that has lost a hold.
    fn losing_owner(&self) -> Option<&str> {
        match self {
            Self::Message {
                word: MessageKind::Lost,
                owner,
                ..
            } => Some(owner),
            _ => None,
        }
    }
}

/// Locks are independent, so the order matters only within each lock. Holds lost together have no order. An owner whose
/// wait has ended, or that listens on the unlock channel, receives nothing else.
pub fn in_order_of_keys<F>(mut sent: Vec<Sent<F>>) -> Vec<Sent<F>> {
    sent.sort_by_cached_key(|it| {
        let (order, whom) = match it {
            Sent::Answer {
                outcome: Outcome::Granted(_),
                ..
            }
            | Sent::Message {
                word: MessageKind::Grant | MessageKind::Lost,
                ..
            } => (1, String::new()),
            Sent::Answer { handle, .. } => (0, handle.to_string()),
            Sent::Message { owner, .. } => (0, owner.clone()),
            Sent::Unlock { .. } => (2, String::new()),
            Sent::Value { .. } => (3, String::new()),
        };
        (it.key().to_owned(), order, whom)
    });
    let both_lost = |one: &Sent<F>, other: &Sent<F>| {
        one.key() == other.key() && one.losing_owner().is_some() && other.losing_owner().is_some()
    };
    for together in sent.chunk_by_mut(both_lost) {
        together.sort_by(|one, other| one.losing_owner().cmp(&other.losing_owner()));
    }
    sent
}
