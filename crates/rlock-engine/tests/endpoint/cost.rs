//! What an event at one server costs the holds at others.

use std::time::Duration;

use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::node::{self, Node, Routes, slot_of};
use rlock_engine::engine::request::Reply;
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::engine::{Action, Engine, Event};

/// A client of a cluster with this number of holds, all at the first server.
fn holder(count: u64) -> Engine {
    let mut nodes = vec![Node(0); usize::from(node::SLOTS)];
    nodes[1] = Node(1);
    let limits = (Duration::from_secs(10), Duration::from_secs(1));
    let mut engine = Engine::new(limits, 1, Routes::Slots(nodes.into()));
    let (node, link, is_predecessor_gone) = (Node(0), 1, true);
    let up = Event::ConnectionUp {
        node,
        connection: link,
        is_predecessor_gone,
    };
    engine.handle(START, up);
    let keys = (0..).map(|number| format!("key-{number}"));
    let keys = keys.filter(|key| slot_of(key.as_bytes()) != 1);
    for (number, key) in (1..=count).zip(keys) {
        let call = engine.next_id();
        let ask = Event::Ask {
            call,
            claims: Claims::new(Owner::numbered("owner", number), key.as_bytes(), &[]),
            ask: Ask::Exclusive,
            value: None,
            terms: Terms::default(),
            queueing: Queueing::Try,
        };
        engine.handle(START, ask);
        while let Some(action) = engine.poll_action() {
            if let Action::Send { id: request, .. } = action {
                let result = Ok(Reply::Fence(number));
                engine.handle(START, Event::Reply { request, result });
            }
        }
    }
    engine
}

const START: Instant = Instant::from_nanos(1_000_000_000);

/// How long the engine takes when another server connects, disconnects, and
/// loses its slot.
fn time_of_changes_elsewhere(engine: &mut Engine) -> Duration {
    let begun = std::time::Instant::now();
    for number in 0..100 {
        let (slot, node, is_predecessor_gone) = (1, Node(1 + number % 2), true);
        let (link, is_left) = (2 + u64::from(number), false);
        engine.handle(START, Event::SlotMoved { slot, node });
        let up = Event::ConnectionUp {
            node,
            connection: link,
            is_predecessor_gone,
        };
        engine.handle(START, up);
        engine.handle(START, Event::ConnectionDown { node, is_left });
        while engine.poll_action().is_some() {}
    }
    begun.elapsed()
}

#[test]
fn an_event_at_one_server_costs_nothing_for_holds_at_others() {
    let (mut few, mut many) = (holder(1), holder(50_000));
    let few = time_of_changes_elsewhere(&mut few);
    let many = time_of_changes_elsewhere(&mut many);
    assert!(
        many < 10 * few + Duration::from_millis(50),
        "{few:?}, {many:?}"
    );
}
