//! The hold as the server keeps it: a hash with a time to live, as
//! [`rlock_core::codec`] says.
//!
//! `fields` scans it, `read` reads and `write` writes. `before` is what a write
//! compares with, and `shared_cache` saves reads.

mod before;
mod fields;
mod read;
mod shared_cache;
mod write;

pub(crate) use before::Before;
pub(crate) use fields::CONSTANTS;
pub(crate) use read::{
    confirms, exclusive_owner, holders, is_lock, known_holders, load, orphan, stamp,
};
pub(crate) use shared_cache::SharedCache;
pub(crate) use write::{Diff, Events};
