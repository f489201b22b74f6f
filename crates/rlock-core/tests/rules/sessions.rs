//! Connections that end, servers that may no longer grant, and stale numbers.

use rlock_core::{
    AcquireOptions, Admission, Announce, Delivery, Due, Effect, Extras, Fence, Gauges, Grace, Hold,
    Holders, Limits, Locks, Mode, Name, Refusal, Renewal, Request, ValueMessage, VisitHolder, Wait,
    Who,
};

use crate::requests::{
    CHANNEL, KEY, NO_LIMITS, Nobody, OPTIONS, RENEWAL, at, call, notified, of_somebody_else,
    request, taken,
};
use rlock_testkit::core::driver::text;

const OTHER: Name<'static> = Name {
    db: 0,
    key: b"other",
};

/// Takes the lock with a watch for its loss.
fn watched(locks: &mut Locks, owner: &str, session: u64) -> Hold {
    let mut hold = Hold::Free;
    let asked = Request {
        session: Some(session),
        channel: Some(CHANNEL),
        ..request(owner, Wait::No)
    };
    let step = locks.acquire(at(0), KEY, &mut hold, &asked, &NO_LIMITS, &Nobody);
    assert!(matches!(step.map(|it| it.reply), Ok(Admission::Granted(_))));
    hold
}

#[test]
fn closed_session_gets_no_loss_message_even_before_it_is_swept() {
    let mut locks = Locks::default();
    let mut hold = watched(&mut locks, "ann", 7);
    locks.session_closed(at(0), 7);
    let step = locks.force(at(1), KEY, &mut hold, None);
    assert_eq!(step.reply, 1);
    assert!(step.effects.is_empty());
    assert!(locks.next_due(at(1)).is_none());
    assert_eq!(locks.gauges(), Gauges::default());
}

#[test]
fn closed_session_leaves_its_hold_to_the_lease() {
    let mut locks = Locks::default();
    let mut hold = watched(&mut locks, "ann", 7);
    locks.session_closed(at(0), 7);
    assert!(locks.next_due(at(0)).is_none());
    assert!(!locks.is_contended(KEY));
    let step = locks.renew(at(1), KEY, &mut hold, b"ann", &RENEWAL, 0);
    assert!(step.is_ok_and(|step| step.reply.is_some()));
}

#[test]
fn session_without_requests_leaves_no_work() {
    let mut locks = Locks::default();
    let hold = taken(&mut locks, at(0), "ann");
    call(&mut locks, at(0), &hold, "bob", Wait::Forever, 7);
    locks.session_closed(at(0), 7);
    locks.session_closed(at(0), 8);
    assert_eq!(locks.next_deadline(at(0)), Some(at(1001)));
    assert!(
        locks.next_due(at(0)).is_none(),
        "a blocked call has its own way to end"
    );
    assert_eq!(locks.gauges().waiters, 1);
}

#[test]
fn place_taken_over_from_a_closed_session_is_kept() {
    let mut locks = Locks::default();
    let mut hold = taken(&mut locks, at(0), "ann");
    let ticket = notified(&mut locks, at(0), &hold, "bob", 7);
    locks.session_closed(at(0), 7);
    assert_eq!(notified(&mut locks, at(1), &hold, "bob", 8), ticket);
    assert!(locks.next_due(at(1)).is_none());
    let step = locks.release(at(1), KEY, &mut hold, b"ann", false, None);
    assert!(matches!(&step.effects[..], [Effect::HandOff(_)]));
}

#[test]
fn call_whose_place_was_taken_over_ends_nothing_else() {
    let mut locks = Locks::default();
    let hold = taken(&mut locks, at(0), "ann");
    let ticket = call(&mut locks, at(0), &hold, "bob", Wait::Forever, 7);
    assert_eq!(
        call(&mut locks, at(0), &hold, "bob", Wait::Forever, 8),
        ticket
    );
    assert!(!locks.caller_gone(at(1), ticket, 7));
    assert_eq!(locks.queued(KEY), 1);
    assert!(locks.caller_gone(at(1), ticket, 8));
    assert!(!locks.caller_gone(at(1), ticket, 8));
    assert_eq!(locks.queued(KEY), 0);
    assert_eq!(locks.counters().waiters_gone, 1);
}

#[test]
fn takeover_ends_the_earlier_call_and_keeps_when_it_began() {
    let mut locks = Locks::default();
    let hold = taken(&mut locks, at(0), "ann");
    call(&mut locks, at(0), &hold, "bob", Wait::Millis(10), 7);
    let delivery = Delivery::blocked(8, 8);
    let asked = request("bob", Wait::Millis(500));
    let (_, effect) = locks.enqueue(at(5), KEY, &of_somebody_else(&hold), &asked, delivery);
    let Some(Effect::Withdrawn(earlier)) = effect else {
        panic!("the earlier call ends: {effect:?}");
    };
    assert_eq!(earlier, Delivery::blocked(7, 7));
    let waiter = locks.waiters(at(6), KEY).next().expect("bob waits");
    assert_eq!(
        (waiter.waited.as_millis(), waiter.wait_left_ms),
        (6, Some(499))
    );
}

#[test]
fn request_after_a_demotion_is_not_turned_away() {
    let mut locks = Locks::default();
    let hold = watched(&mut locks, "ann", 7);
    for owner in ["bob", "cid", "dan"] {
        notified(&mut locks, at(0), &hold, owner, 8);
    }
    locks.demote();
    // It is a master again at once. Two of them ask again, one before it knows.
    let first = notified(&mut locks, at(0), &hold, "bob", 8);
    let mut turned_away = Vec::new();
    while let Some(due) = locks.next_due(at(0)) {
        if let Due::TurnAway(ended) = due {
            notified(&mut locks, at(0), &hold, &text(&ended.owner), 9);
            turned_away.push(text(&ended.owner));
        }
    }
    assert_eq!(turned_away, ["cid", "dan"]);
    assert_eq!(notified(&mut locks, at(0), &hold, "bob", 8), first);
    assert_eq!(locks.gauges().waiters, 3);
    assert_eq!(locks.check_indices(), Ok(()));
}

#[test]
fn watch_requested_after_a_demotion_is_kept() {
    let mut locks = Locks::default();
    let mut hold = watched(&mut locks, "ann", 7);
    notified(&mut locks, at(0), &hold, "bob", 8);
    locks.demote();
    // It is a master again at once, and entries from before are still there.
    let again = Renewal {
        session: Some(9),
        bind: Some(Grace::from_millis(0)),
        ..RENEWAL
    };
    let step = locks.renew(at(1), KEY, &mut hold, b"ann", &again, 1);
    assert!(step.is_ok_and(|step| step.reply.is_some()));
    while locks.next_due(at(1)).is_some() {}
    let left = locks.gauges();
    assert_eq!((left.waiters, left.watches, left.bound_holds), (0, 1, 1));
    locks.session_closed(at(2), 9);
    assert!(matches!(locks.next_due(at(2)), Some(Due::Unbind { .. })));
    assert_eq!(locks.check_indices(), Ok(()));
}

/// Some servers delete a key at the beginning of the last millisecond of its time to
/// live.
#[test]
fn bound_hold_that_ends_in_its_last_millisecond_is_announced() {
    let (mut locks, mut hold) = (Locks::default(), Hold::Free);
    let asked = Request {
        session: Some(7),
        options: AcquireOptions {
            bind: Some(Grace::from_millis(100)),
            ..OPTIONS
        },
        ..request("ann", Wait::No)
    };
    let step = locks.acquire(at(0), KEY, &mut hold, &asked, &NO_LIMITS, &Nobody);
    assert!(matches!(step.map(|it| it.reply), Ok(Admission::Granted(_))));
    locks.session_closed(at(10), 7);
    assert!(matches!(locks.next_due(at(10)), Some(Due::Unbind { .. })));
    let _ = locks.unbind(at(10), KEY, &mut hold, b"ann");
    assert_eq!(hold.deadline(), Some(at(110)));
    let step = locks.settle(at(110), KEY, &mut Hold::Free);
    assert_eq!(step.announce, Announce::IfFree);
}

#[test]
fn value_published_after_a_demotion_is_kept() {
    let mut locks = Locks::default();
    let mut hold = Hold::Free;
    let asked = Request {
        extras: Extras {
            value: Some(b"a:1"),
        },
        ..request("ann", Wait::No)
    };
    let step = locks.acquire(at(0), KEY, &mut hold, &asked, &NO_LIMITS, &Nobody);
    assert!(matches!(step.map(|it| it.reply), Ok(Admission::Granted(_))));
    let fence = hold.fence().expect("it was granted");
    let sent = |value: Option<&[u8]>| {
        let value = value.map(Into::into);
        Some(ValueMessage { fence, value })
    };
    assert_eq!(locks.value_message(at(0), KEY, &hold), sent(Some(b"a:1")));
    assert_eq!(locks.value_message(at(0), KEY, &hold), None);
    locks.demote();
    // It is a master again at once, and entries from before are still there.
    assert_eq!(locks.value_message(at(1), KEY, &hold), sent(Some(b"a:1")));
    while locks.next_due(at(1)).is_some() {}
    assert_eq!(locks.gauges().watches, 1);
    assert_eq!(locks.value_message(at(2), KEY, &Hold::Free), sent(None));
    assert_eq!(locks.gauges(), Gauges::default());
    assert_eq!(locks.check_indices(), Ok(()));
}

/// Asks to wait for a lock that another owner holds, alone or together with
/// `OTHER`; returns the calls that this ends.
fn wait_for(
    locks: &mut Locks,
    mode: Mode,
    with_other: bool,
    call: u64,
) -> Result<Vec<u64>, Refusal> {
    let now = at(call);
    let held = Hold::exclusive(Who::Other, None, at(1000));
    let asked = Request {
        options: AcquireOptions { mode, ..OPTIONS },
        ..request("bob", Wait::Forever)
    };
    let delivery = Delivery::blocked(call, call);
    let (names, mut holds) = ([KEY, OTHER], [held.clone(), held]);
    let ended: Vec<_> = if with_other {
        let step = locks.acquire_all(now, &names, &mut holds, &asked, &NO_LIMITS, &Nobody)?;
        assert_eq!(step.reply, Admission::MustWait);
        let queued = locks.enqueue_all(now, &names, &holds, &asked, &delivery);
        queued.expect("there are keys").1
    } else {
        let step = locks.acquire(now, KEY, &mut holds[0], &asked, &NO_LIMITS, &Nobody)?;
        assert_eq!(step.reply, Admission::MustWait);
        let (_, ended) = locks.enqueue(now, KEY, &holds[0], &asked, delivery);
        ended.into_iter().collect()
    };
    let handle = |effect| match effect {
        Effect::Withdrawn(Delivery::Blocked(call)) => call.handle,
        other => panic!("{other:?} concerns no call"),
    };
    Ok(ended.into_iter().map(handle).collect())
}

#[test]
fn owner_with_a_place_from_before_a_demotion_may_make_any_new_request() {
    let shared = Mode::Shared {
        permits: 1,
        limit: None,
    };
    let exclusive = Mode::Exclusive;
    let all = [(exclusive, false), (shared, false), (exclusive, true)];
    for before in all {
        for after in all {
            let mut locks = Locks::default();
            assert_eq!(wait_for(&mut locks, before.0, before.1, 1), Ok(vec![]));
            if before != after {
                let refused = wait_for(&mut locks, after.0, after.1, 2);
                assert_eq!(refused, Err(Refusal::OtherRequest { key: 0 }));
            }
            locks.demote();
            // It is a master again at once.
            let ended = wait_for(&mut locks, after.0, after.1, 3);
            assert_eq!(ended, Ok(vec![1]), "{before:?}, {after:?}");
            while let Some(due) = locks.next_due(at(3)) {
                assert!(matches!(due, Due::Settle { .. }), "{due:?}");
            }
            assert_eq!(locks.gauges().waiters, 1 + u64::from(after.1));
            let waiter = locks.waiters(at(4), KEY).next().expect("bob waits");
            assert_eq!((waiter.mode, waiter.waited.as_millis()), (after.0, 1));
            assert_eq!(locks.check_indices(), Ok(()));
        }
    }
}

/// This can happen after a `RENAME`, if the fences of both keys were ahead of the
/// clock.
#[test]
fn loss_is_reported_when_another_holder_with_the_same_fence_changes() {
    let lost = |it: &Effect| matches!(it, Effect::Lost { owner, .. } if **owner == *b"ann");
    for is_raised in [false, true] {
        let mut locks = Locks::default();
        let mut hold = watched(&mut locks, "ann", 7);
        let fence = hold.fence().expect("it was granted");
        let step = if is_raised {
            let raised = Renewal {
                fence: Fence::new(fence.get() + 1),
                ..RENEWAL
            };
            let step = locks.renew(at(1), KEY, &mut hold, b"bob", &raised, 0);
            step.expect("it may be raised")
        } else {
            locks.downgrade(at(1), KEY, &mut hold, b"bob")
        };
        assert_eq!(step.reply, hold.fence());
        assert!(step.effects.iter().any(lost), "{:?}", step.effects);
        assert_eq!(locks.gauges(), Gauges::default());
    }
}

#[test]
fn upgrade_from_before_a_demotion_refuses_no_other_upgrade() {
    let mut locks = Locks::default();
    let mut hold = Hold::Free;
    let shared = Mode::Shared {
        permits: 1,
        limit: None,
    };
    let mut ask = |locks: &mut Locks, owner, mode| {
        let asked = Request {
            options: AcquireOptions { mode, ..OPTIONS },
            ..request(owner, Wait::Forever)
        };
        let step = locks.acquire(at(0), KEY, &mut hold, &asked, &NO_LIMITS, &Nobody);
        let reply = step?.reply;
        if reply == Admission::MustWait {
            let delivery = locks.by_message(1, CHANNEL);
            locks.enqueue(at(0), KEY, &hold, &asked, delivery);
        }
        Ok(reply)
    };
    for owner in ["ann", "bob"] {
        let entered = ask(&mut locks, owner, shared);
        assert!(matches!(entered, Ok(Admission::Granted(_))), "{entered:?}");
    }
    let waits = Ok(Admission::MustWait);
    assert_eq!(ask(&mut locks, "ann", Mode::Exclusive), waits);
    let refused = Err(Refusal::UpgradeDeadlock {
        owners: ["bob", "ann"].map(|it| it.as_bytes().into()).to_vec(),
    });
    assert_eq!(ask(&mut locks, "bob", Mode::Exclusive), refused);
    locks.demote();
    assert_eq!(ask(&mut locks, "bob", Mode::Exclusive), waits);
    assert_eq!(locks.check_indices(), Ok(()));
}

#[test]
fn demoted_server_withdraws_all_requests_and_forgets_the_watches() {
    let mut locks = Locks::default();
    let hold = watched(&mut locks, "ann", 7);
    call(&mut locks, at(0), &hold, "bob", Wait::Millis(10), 1);
    notified(&mut locks, at(0), &hold, "cid", 7);
    let mut owners = Vec::new();
    locks.session_closed(at(0), 7);
    locks.settle_all_later(None);
    locks.demote();
    while let Some(ended) = locks.next_stale() {
        assert_eq!(&*ended.key, KEY.key);
        owners.push(ended.owner);
    }
    assert_eq!(owners, [b"bob".as_slice().into(), b"cid".as_slice().into()]);
    assert_eq!(locks.gauges(), Gauges::default());
    assert_eq!(locks.counters().waiters_gone, 2);
    assert!(locks.next_due(at(0)).is_none());
    assert_eq!(locks.next_deadline(at(0)), None);
    assert_eq!(locks.check_indices(), Ok(()));
}

#[test]
fn moved_slot_removes_its_queue_from_the_front_and_then_the_watches() {
    let mut locks = Locks::default();
    let hold = watched(&mut locks, "ann", 7);
    for (n, owner) in ["bob", "cid"].into_iter().enumerate() {
        call(&mut locks, at(0), &hold, owner, Wait::Forever, n as u64);
    }
    let mut withdraw = || locks.withdraw_one(KEY).map(|it| it.owner);
    assert_eq!(withdraw().as_deref(), Some(b"bob".as_slice()));
    assert_eq!(withdraw().as_deref(), Some(b"cid".as_slice()));
    assert_eq!(withdraw().as_deref(), Some(b"ann".as_slice()));
    assert_eq!(withdraw(), None);
    assert_eq!(locks.gauges(), Gauges::default());
    assert!(!locks.is_contended(KEY));
}

#[test]
fn full_queue_still_accepts_a_takeover() {
    let mut locks = Locks::default();
    let limits = Limits {
        waiters_max: 2,
        watches_max: 0,
        shared_max: u64::MAX,
        shared_elsewhere: 0,
        detects_deadlocks: true,
    };
    let held = Hold::exclusive(Who::Other, None, at(1000));
    let ask = |locks: &mut Locks, asked: &Request<'_>| {
        let step = locks.acquire(at(0), KEY, &mut held.clone(), asked, &limits, &Nobody);
        step.map(|step| step.reply)
    };
    for (session, owner) in [(1, "bob"), (2, "cid")] {
        let asked = request(owner, Wait::Forever);
        assert_eq!(ask(&mut locks, &asked), Ok(Admission::MustWait));
        call(&mut locks, at(0), &held, owner, Wait::Forever, session);
    }
    let refused = Err(Refusal::TooManyWaiters { limit: 2 });
    assert_eq!(ask(&mut locks, &request("dee", Wait::Forever)), refused);
    let again = request("cid", Wait::Forever);
    assert_eq!(ask(&mut locks, &again), Ok(Admission::MustWait));
    let notified = Request {
        session: Some(2),
        channel: Some(CHANNEL),
        ..again
    };
    let refused = Err(Refusal::TooManyWatches { limit: 0 });
    assert_eq!(ask(&mut locks, &notified), refused);
}

#[test]
fn lock_of_a_restored_place_is_checked_when_its_lease_ends() {
    let mut locks = Locks::default();
    let mut hold = taken(&mut locks, at(0), "ann");
    let asked = Request {
        options: AcquireOptions {
            keep: Some(Grace::from_millis(5000)),
            ..OPTIONS
        },
        ..request("bob", Wait::Forever)
    };
    let delivery = Delivery::blocked(7, 7);
    locks.enqueue(at(0), KEY, &of_somebody_else(&hold), &asked, delivery);
    let step = locks.release(at(0), KEY, &mut hold, b"ann", false, None);
    let [Effect::HandOff(granted)] = &step.effects[..] else {
        panic!("bob is next, not {:?}", step.effects);
    };
    let step = locks.undeliver(at(1), KEY, &mut hold, b"bob", granted.fence);
    assert!(step.reply);
    hold = taken(&mut locks, at(1), "cid");
    locks.keep_place(at(1), &[KEY], granted);
    assert!(locks.next_due(at(1)).is_some());
    locks.settle(at(1), KEY, &mut hold);
    assert_eq!(locks.next_deadline(at(1)), Some(at(1002)));
}

#[test]
fn cleared_queue_grants_no_earlier_request_and_keeps_later_ones() {
    let mut locks = Locks::default();
    let mut hold = taken(&mut locks, at(0), "ann");
    for owner in ["bob", "cid", "dan"] {
        notified(&mut locks, at(0), &hold, owner, 8);
    }
    locks.begin_turn(1);
    assert_eq!(locks.clear_queue(KEY).len(), 1, "the others later");
    locks.begin_turn(100);
    let step = locks.force(at(1), KEY, &mut hold, None);
    assert_eq!(step.reply, 1);
    assert!(step.effects.is_empty(), "nobody of them is served");
    notified(&mut locks, at(1), &hold, "bob", 9);
    notified(&mut locks, at(1), &hold, "eve", 9);
    let (mut withdrawn, mut served) = (Vec::new(), Vec::new());
    while let Some(due) = locks.next_due(at(1)) {
        match due {
            Due::Withdraw(ended) => withdrawn.push(text(&ended.owner)),
            Due::Settle { .. } => {
                let step = locks.settle(at(1), KEY, &mut hold);
                for effect in step.effects {
                    if let Effect::HandOff(granted) = effect {
                        served.push(text(&granted.ticket.owner));
                    }
                }
            }
            _ => panic!("{due:?} is due"),
        }
    }
    assert_eq!(withdrawn, ["cid", "dan"]);
    assert_eq!(served, ["bob"]);
    assert_eq!(locks.gauges().waiters, 1);
    assert_eq!(locks.next_deadline(at(1)), Some(at(1002)));
    assert_eq!(locks.check_indices(), Ok(()));
}

/// Queues a request for one lock or several that others hold; returns the calls
/// that this ends.
fn queued(locks: &mut Locks, names: &[Name<'_>], mode: Mode, call: u64) -> Vec<u64> {
    let mut holds =
        vec![of_somebody_else(&taken(&mut Locks::default(), at(0), "ann")); names.len()];
    let asked = Request {
        options: AcquireOptions { mode, ..OPTIONS },
        ..request("bob", Wait::Forever)
    };
    let delivery = Delivery::blocked(call, call);
    let (step, effects) = if let [name] = *names {
        let hold = &mut holds[0];
        let step = locks.acquire(at(1), name, hold, &asked, &NO_LIMITS, &Nobody);
        let (_, effect) = locks.enqueue(at(1), name, hold, &asked, delivery);
        (step, Vec::from_iter(effect))
    } else {
        let step = locks.acquire_all(at(1), names, &mut holds, &asked, &NO_LIMITS, &Nobody);
        let queued = locks.enqueue_all(at(1), names, &holds, &asked, &delivery);
        (step, queued.expect("there are keys").1)
    };
    assert_eq!(
        step.map(|it| it.reply),
        Ok(Admission::MustWait),
        "{names:?} {mode:?}"
    );
    let handle = |effect| match effect {
        Effect::Withdrawn(Delivery::Blocked(call)) => call.handle,
        other => panic!("unexpected effect {other:?}"),
    };
    effects.into_iter().map(handle).collect()
}

#[test]
fn owner_of_a_cleared_queue_may_make_any_request_and_its_earlier_call_ends() {
    let both = [KEY, Name { db: 0, key: b"j" }];
    let shared = Mode::Shared {
        permits: 1,
        limit: None,
    };
    let earlier: [(&[Name<'_>], Mode); 3] = [
        (&both, Mode::Exclusive),
        (&both[..1], Mode::Exclusive),
        (&both[..1], shared),
    ];
    let later = earlier.into_iter().chain([(&both[1..], Mode::Exclusive)]);
    for (first, then) in later.flat_map(|then| earlier.map(|first| (first, then))) {
        let mut locks = Locks::default();
        let hold = taken(&mut locks, at(0), "ann");
        notified(&mut locks, at(0), &hold, "cid", 8);
        assert_eq!(queued(&mut locks, first.0, first.1, 1), []);
        locks.begin_turn(1);
        assert_eq!(locks.clear_queue(KEY).len(), 1, "bob later");
        locks.begin_turn(100);
        // At the other key alone, it may wait there beside its earlier request.
        let beside = first.0.len() == 1 && then.0 == &both[1..];
        let (ended, places) = if beside {
            (vec![], 2)
        } else {
            (vec![1], then.0.len() as u64)
        };
        assert_eq!(
            queued(&mut locks, then.0, then.1, 2),
            ended,
            "{first:?}, {then:?}"
        );
        assert_eq!(locks.gauges().waiters, places, "{first:?}, {then:?}");
        assert_eq!(locks.check_indices(), Ok(()), "{first:?}, {then:?}");
    }
}

/// The holder of [`OTHER`], for a request for another lock.
struct HolderOfOther(&'static str);

impl Holders for HolderOfOther {
    fn visit(&self, name: Name<'_>, visit: &mut VisitHolder<'_>) {
        if name == OTHER {
            let _ = visit(self.0.as_bytes(), None);
        }
    }

    fn is_over(&self) -> bool {
        false
    }
}

#[test]
fn places_of_a_cleared_queue_block_nobody() {
    let mut locks = Locks::default();
    let mut hold = taken(&mut locks, at(0), "ann");
    for owner in ["cid", "bob", "eve"] {
        notified(&mut locks, at(0), &hold, owner, 8);
    }
    let asked = request("bob", Wait::Forever);
    let mut of_other = of_somebody_else(&taken(&mut Locks::default(), at(0), "eve"));
    let ask = |locks: &mut Locks, name, hold: &mut Hold, holder| {
        let holders = HolderOfOther(holder);
        let step = locks.acquire(at(1), name, hold, &asked, &NO_LIMITS, &holders);
        step.map(|it| it.reply)
    };
    let cycle = |owners: [&str; 2]| {
        let owners = owners.map(|it| it.as_bytes().into()).to_vec();
        Err(Refusal::Deadlock { owners })
    };
    assert_eq!(
        ask(&mut locks, OTHER, &mut of_other, "eve"),
        cycle(["bob", "eve"])
    );
    locks.begin_turn(1);
    assert_eq!(locks.clear_queue(KEY).len(), 1, "bob and eve later");
    assert_eq!(
        ask(&mut locks, OTHER, &mut of_other, "eve"),
        Ok(Admission::MustWait)
    );
    // A later request is ahead of an owner that asks again.
    notified(&mut locks, at(1), &hold, "dan", 9);
    let delivery = Delivery::blocked(9, 9);
    let by_dan = request("dan", Wait::Forever);
    locks.enqueue(at(1), OTHER, &of_other, &by_dan, delivery);
    hold = of_somebody_else(&hold);
    assert_eq!(
        ask(&mut locks, KEY, &mut hold, "bob"),
        cycle(["bob", "dan"])
    );
    assert_eq!(locks.check_indices(), Ok(()));
}
