//! The syntax of the commands: from words to requests.
//!
//! This is pure code, and the only place that reads the words of a command: the
//! module, the tests of this crate and its fuzz targets all call these functions.
//! The server has its own error for too few or too many arguments.

mod acquire;
mod args;
mod commands;
mod error;
mod options;
mod table;

pub use acquire::{Acquire, acquire, acquire_all};
pub use args::{CHANNEL_LEN_MAX, OWNER_LEN_MAX, RESERVED_PREFIX, VALUE_LEN_MAX, decimal};
pub use commands::{
    Force, KeyAndOwner, Release, ReleaseAll, Renew, RenewAll, force, key, key_and_owner, list,
    nothing, release, release_all, renew, renew_all,
};
pub use error::{ArgError, Sample, Shown};
pub use options::NamedChannel;
pub use table::{Command, Max, Opt, Positional, Spec, Value};

/// Something with bytes: a word of a command.
pub trait Argument {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

impl<T: AsRef<[u8]>> Argument for T {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
}
