//! Commands, replies and messages as bytes, and back.

pub mod resp;
