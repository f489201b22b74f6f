//! A quorum without sockets: clients, and members that are the core of the server,
//! in a world with every kind of fault.
//!
//! Time is a number here, and chance comes from a seed, so a failure can be
//! repeated: it is played once more then, and told.

mod world;

use std::time::Duration;

use rlock_testkit::seeds;
use world::World;

/// Seeds that failed at some time.
const FAILED: [u64; 2] = [922721729429, 136650991273];
/// How long new seeds are tried for each number of members.
const TIME: Duration = Duration::from_secs(15);

#[test]
fn no_two_hold_each_call_ends_once_and_nothing_stays_at_three_members() {
    play(3);
}

#[test]
fn no_two_hold_each_call_ends_once_and_nothing_stays_at_five_members() {
    play(5);
}

fn play(members: usize) {
    let (mut granted, mut entered, mut lost) = (0, 0, 0);
    let name = format!("{members} members");
    let cases = seeds::each(&name, &FAILED, TIME, |seed| {
        let mut world = World::new(members, seed, false);
        if let Err(wrong) = world.play() {
            let again = World::new(members, seed, true).play();
            panic!("{wrong}\n{again:?}\n{name}, SEED={seed}");
        }
        granted += world.granted;
        entered += world.entered;
        lost += world.lost;
    });
    println!("{name}: {cases} cases, {granted} grants, {entered} again, {lost} lost");
    assert!(cases == 1 || (granted > 6 * cases && entered > cases / 2 && lost > cases));
}
