//! The connection, and the tasks that ask the server by it.

pub(crate) mod acquire;
pub(crate) mod attach;
pub(crate) mod driver;
pub(crate) mod link;
pub(crate) mod pulse;
pub(crate) mod release;
pub(crate) mod state;
pub(crate) mod turn;
pub(crate) mod watchdog;
