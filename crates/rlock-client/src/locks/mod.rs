//! The kinds of locks, and their guards.

pub(crate) mod guard;
pub(crate) mod lock;
pub(crate) mod multi_lock;
pub(crate) mod mutex;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod single;
pub(crate) mod upgrade;
