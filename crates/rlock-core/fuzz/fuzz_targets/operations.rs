//! Any sequence of operations: the core agrees with the naive model after each.
//!
//! The first byte chooses the limits; every eight bytes that follow are an
//! operation.
#![no_main]

use libfuzzer_sys::fuzz_target;

use rlock_testkit::core::{
    operation::Operation,
    pair::{Pair, Setup},
};

fuzz_target!(|bytes: &[u8]| {
    let Some((setup, bytes)) = bytes.split_first() else {
        return;
    };
    let mut pair = Pair::new(Setup::chosen(*setup));
    for bytes in bytes.as_chunks().0 {
        let operation = Operation::decode(*bytes);
        if let Err(difference) = pair.check(operation) {
            panic!("{difference}\nby {operation:?}");
        }
    }
});
