//! The configuration of the machines of tests.

use rlock_embed::format::{VERSION, Wire as _, Writer};
use rlock_embed::messages::{Configuration, Together};

pub(crate) fn configured(urls: &[&str], together: Together, name: &str) -> Vec<u8> {
    // It becomes part of the client's channel, which must be unique.
    let first = name.bytes().next().unwrap_or(0);
    let mut writer = Writer::default();
    Configuration {
        version: VERSION,
        urls: urls.iter().map(|url| url.as_bytes()).collect(),
        together,
        name,
        library: "host",
        library_version: "1",
        response: None,
        retry: None,
        replication: None,
        listens: true,
        seed: std::array::from_fn(|at| first + at as u8),
    }
    .write(&mut writer);
    writer.into_bytes()
}
