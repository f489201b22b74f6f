//! Any sequence of operations: the core agrees with the naive model after each.
//!
//! The first byte chooses the limits, every six that follow are an operation.
#![no_main]
// The tests of the core use more of these files than is used here.
#![allow(dead_code)]

#[path = "../../tests/it/driver.rs"]
mod driver;
#[path = "../../tests/it/foreign.rs"]
mod foreign;
#[path = "../../tests/it/model.rs"]
mod model;
#[path = "../../tests/it/model_settle.rs"]
mod model_settle;
#[path = "../../tests/it/operation.rs"]
mod operation;
#[path = "../../tests/it/pair.rs"]
mod pair;
#[path = "../../tests/it/pair_checks.rs"]
mod pair_checks;
#[path = "../../tests/it/perform.rs"]
mod perform;
#[path = "../../tests/it/store.rs"]
mod store;
#[path = "../../tests/it/told.rs"]
mod told;

use libfuzzer_sys::fuzz_target;

use crate::{
    operation::Operation,
    pair::{Pair, Setup},
};

fuzz_target!(|bytes: &[u8]| {
    let Some((setup, bytes)) = bytes.split_first() else {
        return;
    };
    let setup = if setup % 2 == 0 {
        Setup::WIDE
    } else {
        Setup::NARROW
    };
    let mut pair = Pair::new(setup);
    for bytes in bytes.as_chunks().0 {
        let operation = Operation::decode(*bytes);
        if let Err(difference) = pair.check(operation) {
            panic!("{difference}\nby {operation:?}");
        }
    }
});
