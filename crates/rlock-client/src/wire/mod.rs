//! Commands, replies and messages as bytes, and back.

pub(crate) mod cluster;
pub(crate) mod contended;
pub(crate) mod counters;
pub(crate) mod failure;
pub(crate) mod fields;
pub(crate) mod info;
pub(crate) mod notice;
pub(crate) mod protocol;
pub(crate) mod reply;
