//! Commands, replies and messages as bytes, and back.

pub mod cluster;
pub mod identity;
pub mod inspect;
pub mod notice;
pub mod replies;
pub mod requests;
pub mod resp;
pub mod sentinel;
