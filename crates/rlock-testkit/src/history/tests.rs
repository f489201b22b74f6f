//! What the checker of `make chaos` finds in made-up histories, one for each
//! forbidden event, and what it accepts.

use super::checker::{Rule, check};
use super::{Call, Fault, History, Hold, Loses, Moment, Seen, Stall};

const SECOND: Moment = 1_000_000;

/// A hold that was granted at once and held from `from` to `to`.
fn hold(owner: &str, fence: u64, from: Moment, to: Moment) -> Hold {
    Hold {
        contender: 0,
        key: "a",
        owner: owner.into(),
        fence,
        is_shared: false,
        leads: false,
        is_replicated: false,
        lease: SECOND,
        asked: from,
        granted: from,
        believed: Some((from, to)),
        doubted: None,
        ended: Some(to),
        end: "released".into(),
    }
}

fn fault(loses: Loses, begun: Moment, healed: Moment) -> Fault {
    Fault {
        kind: "fault",
        detail: String::new(),
        loses,
        begun,
        healed: Some(healed),
    }
}

fn call(limit: Option<u64>, asked: Moment, ended: Option<Moment>) -> Call {
    Call {
        contender: 0,
        key: "a",
        verb: "try",
        asked,
        limit,
        ended,
        outcome: String::new(),
    }
}

fn history(holds: &[Hold], faults: &[Fault]) -> History {
    let mut history = History::default();
    history.holds.extend_from_slice(holds);
    history.faults.extend_from_slice(faults);
    history
}

fn rules(history: &History) -> Vec<Rule> {
    let violations = check(history);
    violations.iter().map(|violation| violation.rule).collect()
}

/// The second hold was granted by a server that did not know the first.
fn granted_twice(first_until: Moment) -> [Hold; 2] {
    [
        hold("x", 1, SECOND, first_until),
        hold("y", 2, 2 * SECOND, 3 * SECOND),
    ]
}

#[test]
fn two_owners_with_a_valid_lock_at_once_are_found() {
    let twice = granted_twice(2 * SECOND + 1);
    assert_eq!(rules(&history(&twice, &[])), [Rule::Exclusion]);
    assert_eq!(rules(&history(&granted_twice(2 * SECOND - 1), &[])), []);
    let mut readers = twice.clone();
    readers[0].is_shared = true;
    assert_eq!(rules(&history(&readers, &[])), [Rule::Exclusion]);
    readers[1].is_shared = true;
    assert_eq!(rules(&history(&readers, &[])), []);
    let mut entries = twice;
    entries[1].owner = "x".into();
    assert_eq!(rules(&history(&entries, &[])), []);
}

#[test]
fn a_lost_grant_is_allowed_if_its_holder_is_notified_in_time() {
    let promoted = fault(Loses::Unreplicated, SECOND + 1, 2 * SECOND);
    let allowed = granted_twice(3 * SECOND);
    assert_eq!(
        rules(&history(&allowed, std::slice::from_ref(&promoted))),
        []
    );
    let late = granted_twice(5 * SECOND);
    assert_eq!(
        rules(&history(&late, std::slice::from_ref(&promoted))),
        [Rule::Exclusion]
    );
    // An overlap before the fault, or after a fault that loses nothing, is found.
    let later = fault(Loses::Unreplicated, 2 * SECOND + 1, 3 * SECOND);
    assert_eq!(rules(&history(&allowed, &[later])), [Rule::Exclusion]);
    let harmless = fault(Loses::Nothing, SECOND + 1, 2 * SECOND);
    assert_eq!(rules(&history(&allowed, &[harmless])), [Rule::Exclusion]);
}

#[test]
fn a_replicated_grant_survives_every_failover() {
    let promoted = fault(Loses::Unreplicated, SECOND + 1, 2 * SECOND);
    let mut twice = granted_twice(3 * SECOND);
    twice[0].is_replicated = true;
    assert_eq!(rules(&history(&twice, &[promoted])), [Rule::Exclusion]);
    let forced = fault(Loses::Key("a"), SECOND + 1, 2 * SECOND);
    assert_eq!(rules(&history(&twice, &[forced])), []);
    let other = fault(Loses::Key("b"), SECOND + 1, 2 * SECOND);
    assert_eq!(rules(&history(&twice, &[other])), [Rule::Exclusion]);
}

#[test]
fn fences_that_do_not_increase_are_found() {
    let later = |owner, fence| hold(owner, fence, 3 * SECOND, 4 * SECOND);
    let first = || hold("x", 7, SECOND, 2 * SECOND);
    for (owner, fence) in [("y", 6), ("y", 7), ("x", 6)] {
        let found = rules(&history(&[first(), later(owner, fence)], &[]));
        assert_eq!(found, [Rule::Fences], "{owner} under {fence}");
    }
    for (owner, fence) in [("y", 8), ("x", 7)] {
        assert_eq!(rules(&history(&[first(), later(owner, fence)], &[])), []);
    }
    // Two calls at the same moment; the second call received its grant first.
    let mut waited = later("y", 6);
    waited.asked = SECOND;
    assert_eq!(rules(&history(&[first(), waited.clone()], &[])), []);
    waited.fence = 7;
    assert_eq!(rules(&history(&[first(), waited], &[])), [Rule::Fences]);
    // Even with a lost grant: fences are the protection then.
    let mut twice = granted_twice(3 * SECOND);
    twice[0].fence = 3;
    let promoted = fault(Loses::Unreplicated, SECOND + 1, 2 * SECOND);
    let found = rules(&history(&twice, &[promoted]));
    assert!(found.contains(&Rule::Fences), "{found:?}");
}

#[test]
fn a_guard_that_is_valid_again_is_found() {
    let mut back = hold("x", 1, SECOND, 3 * SECOND);
    back.doubted = Some(2 * SECOND);
    assert_eq!(rules(&history(&[back.clone()], &[])), [Rule::Validity]);
    back.doubted = Some(4 * SECOND);
    assert_eq!(rules(&history(&[back], &[])), []);
}

#[test]
fn calls_that_end_too_late_or_never_are_found() {
    let mut made_up = history(&[], &[]);
    made_up.stopped = Some(60 * SECOND);
    made_up.calls.push(call(Some(SECOND), 0, Some(2 * SECOND)));
    made_up.calls.push(call(None, 0, Some(50 * SECOND)));
    assert_eq!(rules(&made_up), []);
    made_up.calls.push(call(Some(SECOND), 0, Some(3 * SECOND)));
    assert_eq!(rules(&made_up), [Rule::Bound]);
    // A paused client receives no answer.
    let (begun, ended) = (SECOND, 2 * SECOND);
    made_up.stalls.push(Stall { begun, ended });
    assert_eq!(rules(&made_up), []);
    made_up.calls.push(call(None, 0, None));
    made_up.calls.push(call(Some(SECOND), 0, None));
    assert_eq!(rules(&made_up), [Rule::Bound, Rule::Bound]);
}

#[test]
fn a_holder_that_is_not_notified_of_its_loss_is_found() {
    let forced = || [fault(Loses::Key("a"), 2 * SECOND, 2 * SECOND)];
    let held_until = |until| [hold("x", 1, SECOND, until)];
    assert_eq!(rules(&history(&held_until(4 * SECOND), &forced())), []);
    assert_eq!(
        rules(&history(&held_until(5 * SECOND), &forced())),
        [Rule::Notified]
    );
    let after = [hold("x", 1, 2 * SECOND + 1, 9 * SECOND)];
    assert_eq!(rules(&history(&after, &forced())), []);
}

#[test]
fn leftovers_at_the_end_are_found() {
    let mut made_up = history(&[], &[]);
    made_up.remains.push("`a` is still held".into());
    assert_eq!(rules(&made_up), [Rule::Remains]);
}

#[test]
fn a_lock_that_is_not_granted_without_faults_is_found() {
    let grants = [
        hold("x", 1, 0, 1),
        hold("y", 2, 10 * SECOND, 10 * SECOND + 1),
    ];
    let mut made_up = history(&grants, &[]);
    made_up.stopped = Some(11 * SECOND);
    assert_eq!(rules(&made_up), [Rule::Liveness]);
    // The time from a fault's start until its recovery is not calm.
    made_up
        .faults
        .push(fault(Loses::Nothing, 3 * SECOND, 7 * SECOND));
    assert_eq!(rules(&made_up), []);
    made_up.stopped = Some(30 * SECOND);
    assert_eq!(rules(&made_up), [Rule::Liveness]);
}

fn leader(fence: u64, from: Moment, to: Moment) -> Hold {
    Hold {
        leads: true,
        ..hold("ann", fence, from, to)
    }
}

fn seen(moment: Moment, fence: Option<u64>, missed: bool) -> Seen {
    Seen {
        observer: 0,
        moment,
        fence,
        missed,
    }
}

/// A calm history in which `ann` leads for two seconds under fence 2.
fn observed(seen: &[Seen]) -> Vec<Rule> {
    let mut history = history(&[leader(2, SECOND, 3 * SECOND)], &[]);
    history.stopped = Some(4 * SECOND);
    history.seen.extend_from_slice(seen);
    rules(&history)
}

#[test]
fn leaders_are_seen_in_the_order_of_their_fences() {
    let in_order = [seen(0, Some(1), false), seen(SECOND, Some(2), false)];
    assert_eq!(observed(&in_order), []);
    let back = [seen(SECOND, Some(2), false), seen(SECOND, Some(1), false)];
    assert_eq!(observed(&back), [Rule::Observed]);
    let after_a_reconnect = [
        seen(SECOND, Some(3), false),
        seen(SECOND, None, true),
        seen(SECOND, Some(2), false),
    ];
    assert_eq!(observed(&after_a_reconnect), []);
}

#[test]
fn leader_that_lasts_is_seen_by_all_who_stay_connected() {
    let other = [seen(0, Some(1), false), seen(3 * SECOND, Some(3), false)];
    assert_eq!(observed(&other), [Rule::Observed]);
    let away = [seen(0, Some(1), false), seen(3 * SECOND, Some(3), true)];
    assert_eq!(observed(&away), []);
}
