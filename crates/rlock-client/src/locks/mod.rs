//! The kinds of locks, and their guards.

pub(crate) mod change;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod lock;
pub(crate) mod multi_guard;
pub(crate) mod multi_lock;
pub(crate) mod mutex;
pub(crate) mod permits;
pub(crate) mod read_guard;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod write_guard;
