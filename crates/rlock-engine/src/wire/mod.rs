//! Commands, replies and messages as bytes, and back.

pub mod inspect;
pub mod replies;
pub mod requests;
pub mod resp;
pub mod topology;
