//! Fences: their seed, their growth, and which stored fences are believed.

use rlock_core::{
    AcquireOptions, Admission, Extras, Fence, Hold, Holder, Locks, Name, Refusal, Renewal, Shared,
    Timestamp, Wait, Who,
};

use crate::requests::{KEY, NO_LIMITS, Nobody, OPTIONS, RENEWAL, at, request, taken};

const OTHER: Name<'static> = Name {
    db: 0,
    key: b"other",
};

/// Takes a free lock.
fn grant(locks: &mut Locks, now: Timestamp) -> Fence {
    grant_at(locks, now, KEY)
}

fn grant_at(locks: &mut Locks, now: Timestamp, name: Name<'_>) -> Fence {
    let asked = request("ann", Wait::No);
    let step = locks.acquire(now, name, &mut Hold::Free, &asked, &NO_LIMITS, &Nobody);
    match step.map(|step| step.reply) {
        Ok(Admission::Granted(fence)) => fence,
        other => panic!("a free lock is granted, not {other:?}"),
    }
}

/// A request reads the lock of another owner.
fn read_lock(locks: &mut Locks, now: Timestamp, fence: Option<Fence>) {
    read_by_other(locks, now, KEY, fence);
}

fn read_by_other(locks: &mut Locks, now: Timestamp, name: Name<'_>, fence: Option<Fence>) {
    let mut hold = Hold::exclusive(Who::Other, fence, now.plus_millis(1000));
    let asked = request("bob", Wait::No);
    let step = locks.acquire(now, name, &mut hold, &asked, &NO_LIMITS, &Nobody);
    assert!(matches!(step.map(|it| it.reply), Ok(Admission::Busy)));
}

/// The hold of the asking owner, with this count.
const fn entered(count: u32, fence: Option<Fence>, deadline: Timestamp) -> Hold {
    Hold::Exclusive {
        who: Who::Caller,
        holder: Holder {
            count,
            ..Holder::new(fence, deadline)
        },
        extras: Extras::NONE,
    }
}

#[test]
fn first_fence_is_the_clock_in_microseconds() {
    let now = Timestamp::from_micros(1_700_000_000_123_456);
    assert_eq!(grant(&mut Locks::default(), now).get(), now.micros());
}

#[test]
fn fences_grow_when_the_clock_stops() {
    let mut locks = Locks::default();
    let first = grant(&mut locks, at(0)).get();
    assert_eq!(grant(&mut locks, at(0)).get(), first + 1);
    assert_eq!(grant(&mut locks, at(0)).get(), first + 2);
}

#[test]
fn fences_grow_when_the_clock_goes_back() {
    let mut locks = Locks::default();
    let first = grant(&mut locks, at(60_000)).get();
    assert_eq!(grant(&mut locks, at(0)).get(), first + 1);
    assert_eq!(
        grant(&mut locks, Timestamp::from_micros(0)).get(),
        first + 2
    );
    let later = at(60_001);
    assert_eq!(grant(&mut locks, later).get(), later.micros());
}

#[test]
fn fence_after_a_restart_is_above_the_fence_of_a_held_lock() {
    let mut locks = Locks::default();
    let before_the_restart = Fence::new(at(3_600_000).micros());
    read_lock(&mut locks, at(0), before_the_restart);
    assert!(Some(grant(&mut locks, at(0))) > before_the_restart);
}

#[test]
fn next_fence_is_above_the_fence_of_an_expired_hold() {
    let mut locks = Locks::default();
    let stored = Fence::new(at(3_600_000).micros());
    let mut hold = Hold::exclusive(Who::Other, stored, at(0));
    let asked = request("bob", Wait::No);
    let step = locks.acquire(at(1), KEY, &mut hold, &asked, &NO_LIMITS, &Nobody);
    assert!(
        matches!(step.map(|it| it.reply), Ok(Admission::Granted(fence)) if Some(fence) > stored)
    );
    assert_eq!(locks.counters().lease_expirations, 1);
}

#[test]
fn expired_hold_is_counted_once_however_it_is_found() {
    let mut locks = Locks::default();
    let mut hold = Hold::exclusive(Who::Other, None, at(0));
    crate::requests::call(&mut locks, at(0), &hold, "bob", Wait::Forever, 1);
    locks.settle(at(1), KEY, &mut hold);
    assert_eq!(locks.counters().lease_expirations, 1);

    crate::requests::call(&mut locks, at(1), &hold, "cid", Wait::Forever, 2);
    locks.settle(at(2000), KEY, &mut Hold::Free);
    assert_eq!(locks.counters().lease_expirations, 2);
}

#[test]
fn number_out_of_range_is_not_a_fence() {
    assert_eq!(Fence::new(0), None);
    assert_eq!(Fence::new(1).map(Fence::get), Some(1));
    assert_eq!(Fence::new(Fence::MAX).map(Fence::get), Some(Fence::MAX));
    assert_eq!(Fence::new(Fence::MAX + 1), None);
    assert_eq!(Fence::new(u64::MAX), None);
}

const HOUR: u64 = 3_600_000_000;

#[test]
fn stored_fence_raises_the_next_one_up_to_an_hour_ahead_of_the_clock() {
    for ahead in [1, HOUR] {
        let mut locks = Locks::default();
        let stored = at(0).micros() + ahead;
        read_lock(&mut locks, at(0), Fence::new(stored));
        assert_eq!(grant(&mut locks, at(0)).get(), stored + 1);
        assert_eq!(grant(&mut locks, at(0)).get(), stored + 2);
    }
    for stored in [at(0).micros() + HOUR + 1, Fence::MAX] {
        let mut locks = Locks::default();
        read_lock(&mut locks, at(0), Fence::new(stored));
        let next = grant(&mut locks, at(0)).get();
        assert_eq!(next, at(0).micros() + HOUR + 1, "after {stored}");
    }
}

#[test]
fn stored_fence_affects_no_other_lock() {
    let mut locks = Locks::default();
    let stored = at(0).micros() + HOUR;
    read_lock(&mut locks, at(0), Fence::new(stored));
    let clock = at(0).micros();
    assert_eq!(grant_at(&mut locks, at(0), OTHER).get(), clock);
    assert_eq!(grant(&mut locks, at(0)).get(), stored + 1);
    assert_eq!(grant_at(&mut locks, at(0), OTHER).get(), clock + 1);
    let same_key = Name { db: 1, ..KEY };
    assert_eq!(grant_at(&mut locks, at(0), same_key).get(), clock + 2);
}

#[test]
fn clock_determines_fences_again_once_it_has_passed_one() {
    let mut locks = Locks::default();
    read_lock(&mut locks, at(0), Fence::new(at(1000).micros()));
    assert_eq!(grant(&mut locks, at(999)).get(), at(1000).micros() + 1);
    assert_eq!(grant(&mut locks, at(1001)).get(), at(1001).micros());
    // It may go back then: no recorded fence is forgotten.
    read_lock(&mut locks, at(1001), Fence::new(at(2000).micros()));
    grant_at(&mut locks, at(3000), OTHER);
    assert!(grant(&mut locks, at(0)).get() > at(2000).micros());
}

#[test]
fn fences_of_limited_keys_are_remembered_and_the_furthest_ahead_forgotten_first() {
    let mut locks = Locks::default();
    let names: Vec<_> = (0..=65_536_u64).map(|it| format!("eve:{it}")).collect();
    let (honest, ahead) = (at(5).micros(), at(0).micros() + HOUR);
    read_lock(&mut locks, at(0), Fence::new(honest));
    for (name, more) in names.iter().zip(0..) {
        let key = name.as_bytes();
        read_by_other(
            &mut locks,
            at(0),
            Name { db: 0, key },
            Fence::new(ahead - more),
        );
    }
    assert_eq!(grant(&mut locks, at(0)).get(), honest + 1);
    let mut next = |at_name: usize| {
        let key = names[at_name].as_bytes();
        grant_at(&mut locks, at(0), Name { db: 0, key }).get()
    };
    // 65,536 with the honest one: the first two had to go.
    for forgotten in [0, 1] {
        assert!(next(forgotten) < honest, "{forgotten}");
    }
    for known in [2, 30_000, 65_536] {
        assert!(next(known) > ahead - 65_537, "{known}");
    }
}

#[test]
fn one_fence_for_several_locks_is_above_those_of_all() {
    let mut locks = Locks::default();
    let stored = at(0).micros() + HOUR / 2;
    read_lock(&mut locks, at(0), Fence::new(stored));
    let asked = request("ann", Wait::No);
    let mut holds = [Hold::Free, Hold::Free];
    let names = [OTHER, KEY];
    let step = locks.acquire_all(at(0), &names, &mut holds, &asked, &NO_LIMITS, &Nobody);
    let fence = Fence::new(stored + 1).expect("a fence");
    assert_eq!(step.map(|it| it.reply), Ok(Admission::Granted(fence)));
    // Now it is in both keys.
    assert_eq!(grant_at(&mut locks, at(0), OTHER).get(), stored + 2);
    assert_eq!(grant_at(&mut locks, at(0), KEY).get(), stored + 2);
}

#[test]
fn stored_fence_counts_as_the_fence_of_its_hold() {
    let mut locks = Locks::default();
    let huge = Fence::new(Fence::MAX);
    let mut hold = entered(1, huge, at(1000));
    let step = locks.renew(at(0), KEY, &mut hold, b"ann", &RENEWAL, 0);
    assert_eq!(step.map(|it| it.reply), Ok(huge));
    assert!(grant(&mut locks, at(0)).get() < Fence::MAX);
}

/// Renews the hold of `ann`, and returns its fence after that.
fn raise(locks: &mut Locks, hold: &mut Hold, fence: u64) -> Result<Option<u64>, Refusal> {
    let renewal = Renewal {
        fence: Fence::new(fence),
        ..RENEWAL
    };
    let step = locks.renew(at(0), KEY, hold, b"ann", &renewal, 0);
    step.map(|step| step.reply.map(Fence::get))
}

#[test]
fn renewal_raises_the_fence_and_all_later_fences_of_its_lock() {
    let mut locks = Locks::default();
    let mut hold = taken(&mut locks, at(0), "ann");
    let first = hold.fence().map(Fence::get).expect("it was granted here");
    let fence = |hold: &Hold| hold.fence().map(Fence::get);
    assert_eq!(raise(&mut locks, &mut hold, first - 1), Ok(Some(first)));
    assert_eq!(raise(&mut locks, &mut hold, first), Ok(Some(first)));
    assert_eq!(raise(&mut locks, &mut hold, first + 7), Ok(Some(first + 7)));
    assert_eq!(fence(&hold), Some(first + 7));
    assert_eq!(raise(&mut locks, &mut hold, first), Ok(Some(first + 7)));
    assert_eq!(grant(&mut locks, at(0)).get(), first + 8);
    assert_eq!(grant_at(&mut locks, at(0), OTHER).get(), first + 1);
}

#[test]
fn fence_of_another_holder_is_taken_whatever_the_store_says_was_granted_last() {
    let mut locks = Locks::default();
    let fence = Fence::new(at(0).micros()).expect("a fence");
    let holder = |fence| Holder::new(fence, at(1000));
    let holders = [("ann", Fence::new(fence.get() - 1)), ("bob", Some(fence))];
    let holders = holders.map(|(owner, fence)| (owner.as_bytes().into(), holder(fence)));
    // Somebody has set it below the holders' fences.
    let mut hold = Hold::Shared(Shared::stored(holders, Fence::new(5)));
    let before = hold.clone();
    let refused = Err(Refusal::FenceTaken { fence });
    assert_eq!(raise(&mut locks, &mut hold, fence.get()), refused);
    assert_eq!(hold, before);
}

#[test]
fn fence_may_be_raised_to_an_hour_ahead_of_the_clock() {
    let mut locks = Locks::default();
    let mut hold = taken(&mut locks, at(0), "ann");
    let before = hold.clone();
    let limit = at(0).micros() + HOUR;
    let fence = Fence::new(limit + 1).expect("a fence");
    let refused = Err(Refusal::FenceTooLarge { fence, limit });
    assert_eq!(raise(&mut locks, &mut hold, limit + 1), refused);
    assert_eq!(hold, before);
    assert_eq!(raise(&mut locks, &mut hold, limit), Ok(Some(limit)));
    assert_eq!(grant(&mut locks, at(0)).get(), limit + 1);
}

#[test]
fn fence_is_not_raised_without_a_hold() {
    let mut locks = Locks::default();
    let last = grant(&mut locks, at(0)).get();
    assert_eq!(raise(&mut locks, &mut Hold::Free, last + 50), Ok(None));
    assert_eq!(grant(&mut locks, at(0)).get(), last + 1);
    // The fence belongs to the current holder.
    let mut hold = Hold::exclusive(Who::Other, Fence::new(last), at(1000));
    assert_eq!(raise(&mut locks, &mut hold, last), Ok(None));
}

#[test]
fn extreme_clock_gives_fences_that_fit_into_53_bits() {
    let mut locks = Locks::default();
    let first = grant(&mut locks, Timestamp::NEVER);
    let second = grant(&mut locks, Timestamp::NEVER);
    assert!(first <= second && second.get() <= Fence::MAX);
}

#[test]
fn hold_count_ends_at_its_limit() {
    let mut locks = Locks::default();
    let fence = Fence::new(7);
    let full = entered(2_147_483_647, fence, at(1000));
    let mut hold = full.clone();
    let again = rlock_core::Request {
        options: AcquireOptions {
            reenter: true,
            ..OPTIONS
        },
        ..request("ann", Wait::No)
    };
    let step = locks.acquire(at(1), KEY, &mut hold, &again, &NO_LIMITS, &Nobody);
    assert_eq!(step.map(|it| it.reply), Err(Refusal::CountOverflow));
    assert_eq!(hold, full);

    let mut hold = entered(2_147_483_646, fence, at(1000));
    let step = locks.acquire(at(1), KEY, &mut hold, &again, &NO_LIMITS, &Nobody);
    assert!(step.is_ok());
    assert_eq!(hold, entered(2_147_483_647, fence, at(1001)));

    let once = request("ann", Wait::No);
    assert!(
        locks
            .acquire(at(2), KEY, &mut hold, &once, &NO_LIMITS, &Nobody)
            .is_ok()
    );
    assert_eq!(hold, entered(2_147_483_647, fence, at(1002)));
}

#[test]
fn lease_that_never_ends_is_handled() {
    let mut locks = Locks::default();
    let hold = Hold::exclusive(Who::Other, None, Timestamp::from_millis(u64::MAX));
    crate::requests::call(&mut locks, at(0), &hold, "bob", Wait::Forever, 1);
    assert!(locks.next_due(at(1_000_000)).is_none());
    assert!(locks.next_deadline(at(0)) > Some(at(1_000_000)));
}
