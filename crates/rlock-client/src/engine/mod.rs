//! What a client knows of owners, their claims and their holds; no I/O.

pub(crate) mod ask;
pub(crate) mod claim;
pub(crate) mod claims;
pub(crate) mod clock;
pub(crate) mod hold;
pub(crate) mod owner;
pub(crate) mod pulse;
pub(crate) mod schedule;
pub(crate) mod sync;
pub(crate) mod terms;
pub(crate) mod validity;
pub(crate) mod wakeups;
