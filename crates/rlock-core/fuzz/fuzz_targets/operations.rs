//! Any sequence of operations: the core agrees with the naive model after each.
//!
//! The first byte chooses the limits, every eight that follow are an operation.
#![no_main]
// The tests of the core use more of these files than is used here.
#![allow(dead_code)]

#[path = "../../tests/it/apply.rs"]
mod apply;
#[path = "../../tests/it/decode.rs"]
mod decode;
#[path = "../../tests/it/driver.rs"]
mod driver;
#[path = "../../tests/it/foreign.rs"]
mod foreign;
#[path = "../../tests/it/in_order.rs"]
mod in_order;
#[path = "../../tests/it/model/mod.rs"]
mod model;
#[path = "../../tests/it/operation.rs"]
mod operation;
#[path = "../../tests/it/pair.rs"]
mod pair;
#[path = "../../tests/it/pair_checks.rs"]
mod pair_checks;
#[path = "../../tests/it/perform.rs"]
mod perform;
#[path = "../../tests/it/reached.rs"]
mod reached;
#[path = "../../tests/it/seen.rs"]
mod seen;
#[path = "../../tests/it/several.rs"]
mod several;
#[path = "../../tests/it/store.rs"]
mod store;
#[path = "../../tests/it/stored.rs"]
mod stored;
#[path = "../../tests/it/told.rs"]
mod told;
#[path = "../../tests/it/transact.rs"]
mod transact;

use libfuzzer_sys::fuzz_target;

use crate::{
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
