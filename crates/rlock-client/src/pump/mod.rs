//! Carries out what the endpoint says: sockets, time and callers.

pub(crate) mod call;
pub(crate) mod clock;
mod connection;
pub(crate) mod dial;
pub(crate) mod loss;
pub(crate) mod state;
#[cfg(feature = "tls-rustls")]
pub(crate) mod tls;
