//! The hold as the server keeps it: a hash with a time to live.
//!
//! An exclusive hold is the field of its owner, with the hold count, and the
//! field of its fence. A shared one says so in the field of its mode; each
//! holder has a field with its count, and one with the end of its lease, its
//! fence and its permits.
//!
//! `fields` has the names, `read` reads and `write` writes. `before` is what
//! writing compares with, and `shared_cache` saves reading.

mod before;
mod fields;
mod read;
mod shared_cache;
mod write;

pub(crate) use before::Before;
pub(crate) use fields::CONSTANTS;
pub(crate) use read::{
    Holding, confirms, exclusive_owner, holders, is_lock, known_holders, load, stamp,
};
pub(crate) use shared_cache::Known;
pub(crate) use write::{Diff, Events};
