//! One file for each world.

pub(crate) mod cluster;
pub(crate) mod sentinel;
pub(crate) mod single;
