//! The connections, and the tasks that carry out what the engine decides.

pub(crate) mod acknowledging;
pub(crate) mod address;
pub(crate) mod calling;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod deadline;
pub(crate) mod driver;
pub(crate) mod identity;
pub(crate) mod keeping;
pub(crate) mod link;
pub(crate) mod lost;
pub(crate) mod sending;
pub(crate) mod sentinels;
pub(crate) mod servers;
pub(crate) mod source;
pub(crate) mod state;
