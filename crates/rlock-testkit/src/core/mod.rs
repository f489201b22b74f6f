//! The core with a keyspace in memory instead of a server, in virtual time, and a naive second model of the contract.
//! Operations are random, decoded from bytes, or written by hand.

pub mod apply;
pub mod clients;
pub mod decode;
pub mod driver;
pub mod foreign;
pub mod in_order;
pub mod messages;
pub mod model;
pub mod operation;
pub mod pair;
pub mod pair_checks;
pub mod perform;
pub mod reached;
pub mod seen;
pub mod server;
pub mod several;
pub mod store;
pub mod stored;
pub mod transact;
