//! How much one turn may do: the rest follows in later turns.
//!
//! Ten thousand leases may end in one millisecond, and ten thousand readers may
//! be let in by one release. The server would stand still meanwhile, so every
//! operation over many tickets asks here before each, and marks its lock as due
//! when there is nothing left. The unit is one ticket: a grant, the end of a
//! wait, a loss that is told, a lease that has ended; each is some microseconds
//! of work for the shell.

/// The tickets that may still be handled in this turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: usize::MAX }
    }
}

impl Budget {
    pub(crate) const fn of(tickets: usize) -> Self {
        Self { left: tickets }
    }

    /// Takes so many tickets, or what is left.
    pub(crate) const fn spend(&mut self, tickets: usize) {
        self.left = self.left.saturating_sub(tickets);
    }

    pub(crate) const fn left(&self) -> usize {
        self.left
    }

    pub(crate) const fn is_spent(&self) -> bool {
        self.left == 0
    }
}
