//! A written hold is read unchanged, and nothing else is believed.

use std::{ops::ControlFlow, sync::Arc};

use proptest::prelude::*;

use rlock_core::{
    Fence, Holder, Timestamp,
    codec::{self, Field, SharedHolders, SoleHolder},
};

const END: Timestamp = Timestamp::from_millis(5);

fn fence(number: u64) -> Option<Fence> {
    Fence::new(number)
}

fn sole(fields: &[(&str, &str)]) -> Option<(Arc<[u8]>, u32)> {
    let mut sole = SoleHolder::default();
    for (name, value) in fields {
        let _ = sole.add(name.as_bytes(), value.as_bytes());
    }
    sole.found().map(|it| (it.owner, it.count))
}

/// A holder that was read, and whether it had only a count.
type Read = (Arc<[u8]>, Holder, bool);

/// The holders of a shared lock.
fn shared(fields: &[(&str, &str)]) -> Option<Vec<Read>> {
    let mut holders = SharedHolders::of(fields.len());
    for (name, value) in fields {
        let _ = holders.add(name.as_bytes(), value.as_bytes());
    }
    let mut without_terms = Vec::new();
    let found = holders.found(END, |owner| without_terms.push(Arc::clone(owner)))?;
    let found = found.into_iter();
    Some(
        found
            .map(|(owner, it)| (Arc::clone(&owner), it, without_terms.contains(&owner)))
            .collect(),
    )
}

proptest! {
    #[test]
    fn shared_holder_is_read_unchanged(
        owner in "[a-z:]{1,300}",
        count in 1..=2_147_483_647_u32,
        permits in 1..=u32::MAX,
        number in any::<u64>(),
        end in 0..=u64::MAX / 1000,
    ) {
        let written = Holder {
            count,
            permits,
            ..Holder::new(fence(number), Timestamp::from_millis(end))
        };
        let counted = count.to_string();
        let read = codec::with_terms(&written, |terms| {
            codec::counted_holder(counted.as_bytes(), terms)
        });
        prop_assert_eq!(read, Some(written));
        let of = codec::with_terms_field(owner.as_bytes(), <[u8]>::to_vec);
        prop_assert_eq!(Field::named(&of), Field::Terms(owner.as_bytes()));
    }

    #[test]
    fn whatever_is_in_a_hash_can_be_read(
        fields in proptest::collection::vec((field(), any::<Vec<u8>>()), 0..6),
    ) {
        let (mut holders, mut sole) = (SharedHolders::of(0), SoleHolder::default());
        for (name, value) in &fields {
            let _ = (holders.add(name, value), sole.add(name, value));
        }
        let named = fields.iter().filter(|it| matches!(Field::named(&it.0), Field::Count(_)));
        let named = named.count();
        prop_assert!(sole.found().is_none() || named == 1);
        let found = holders.found(END, |_| {});
        prop_assert!(found.is_none_or(|found| found.len() == named && named > 0));
    }
}

/// A name of a field: one of the module's, or anything.
fn field() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(codec::FENCE.as_bytes().to_vec()),
        Just(codec::MODE.as_bytes().to_vec()),
        Just(b"rlock:holder:a".to_vec()),
        Just(b"a".to_vec()),
        any::<Vec<u8>>(),
    ]
}

#[test]
fn terms_are_written_as_text() {
    let holder = Holder {
        permits: 3,
        ..Holder::new(fence(70), Timestamp::from_millis(1_700_000_000_000))
    };
    let text = |terms: &[u8]| String::from_utf8_lossy(terms).into_owned();
    assert_eq!(codec::with_terms(&holder, text), "1700000000000 70 3");
    let unfenced = Holder::new(None, Timestamp::from_millis(0));
    assert_eq!(codec::with_terms(&unfenced, text), "0 0 1");
    assert_eq!(codec::with_terms_field(b"ann", text), "rlock:holder:ann");
}

#[test]
fn malformed_counts_fences_and_terms_are_ignored() {
    for count in ["", "0", "01", "-1", "+1", "1 ", "2147483648", "x"] {
        assert_eq!(codec::count(count.as_bytes()), None, "{count:?}");
    }
    assert_eq!(codec::count(b"2147483647"), Some(2_147_483_647));
    for number in ["", "0", "9007199254740992", "1.0", "x"] {
        assert_eq!(codec::fence(number.as_bytes()), None, "{number:?}");
    }
    assert_eq!(codec::fence(b"9007199254740991"), fence(Fence::MAX));
    for terms in [
        "",
        "1",
        "1 2",
        "1 2 0",
        "1 2 3 4",
        "1  2 3",
        " 1 2 3",
        "1 2 3 ",
        "1 2 4294967296",
        "x 2 3",
        "1 -2 3",
    ] {
        assert_eq!(codec::holder(terms.as_bytes()), None, "{terms:?}");
    }
    // An impossible fence counts as a hold that was not granted here.
    let holder = codec::holder(b"1 9007199254740992 1");
    assert_eq!(holder, Some(Holder::new(None, Timestamp::from_millis(1))));
}

#[test]
fn exclusive_lock_has_one_holder_whatever_else_is_reserved() {
    let ann = Some((b"ann".as_slice().into(), 2));
    assert_eq!(sole(&[("ann", "2")]), ann);
    let reserved = [("rlock:fence", "7"), ("ann", "2"), ("rlock:later", "x")];
    assert_eq!(sole(&reserved), ann);
    assert_eq!(sole(&[("rlock:fence", "7")]), None);
    assert_eq!(sole(&[("ann", "0")]), None);
    for two in [["2", "1"], ["0", "1"], ["1", "0"]] {
        assert_eq!(sole(&[("ann", two[0]), ("bob", two[1])]), None, "{two:?}");
    }
}

#[test]
fn reader_stops_at_other_data() {
    let mut sole = SoleHolder::default();
    assert_eq!(sole.add(b"ann", b"1"), ControlFlow::Continue(()));
    assert_eq!(sole.add(b"bob", b"1"), ControlFlow::Break(()));
    assert_eq!(sole.found(), None);
    let mut holders = SharedHolders::of(4);
    assert_eq!(holders.add(b"ann", b"1"), ControlFlow::Continue(()));
    assert_eq!(holders.add(b"bob", b"none"), ControlFlow::Break(()));
    assert_eq!(holders.found(END, |_| {}), None);
}

#[test]
fn shared_holder_without_valid_terms_ends_with_its_key() {
    let own = Holder {
        count: 2,
        permits: 3,
        ..Holder::new(fence(7), Timestamp::from_millis(9))
    };
    let without_terms = Holder::new(None, END);
    let name = |owner: &str| Arc::<[u8]>::from(owner.as_bytes());
    let read = shared(&[
        ("rlock:mode", "shared"),
        ("rlock:holder:ann", "9 7 3"),
        ("rlock:holder:gone", "9 7 3"),
        ("rlock:holder:cid", "9 7"),
        ("ann", "2"),
        ("bob", "1"),
        ("cid", "1"),
    ]);
    let expected = vec![
        (name("ann"), own, false),
        (name("bob"), without_terms, true),
        (name("cid"), without_terms, true),
    ];
    assert_eq!(read, Some(expected));
    assert_eq!(shared(&[("rlock:holder:ann", "9 7 3")]), None);
}
