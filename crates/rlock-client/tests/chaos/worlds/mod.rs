//! One file for each world.

pub(crate) mod cluster;
pub(crate) mod quorum;
pub(crate) mod sentinel;
pub(crate) mod single;
