//! Random operations, which shrink to the fewest that show a difference.

use proptest::{collection::vec, prelude::*};

use crate::{
    operation::Operation,
    pair::{Pair, Setup},
};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn core_and_model_agree(
        operations in vec(any::<[u8; 8]>().prop_map(Operation::decode), 1..120),
        setup in any::<u8>(),
    ) {
        let mut pair = Pair::new(Setup::chosen(setup));
        for operation in operations {
            let checked = pair.check(operation);
            prop_assert!(checked.is_ok(), "{}\nby {:?}", checked.unwrap_err(), operation);
        }
    }
}
