//! What an earlier connection still reports to the engine.

use std::time::Duration;

use rlock_engine::engine::claims::{Claims, Name, Owner};
use rlock_engine::engine::instant::Instant;
use rlock_engine::engine::node::{Node, Routes};
use rlock_engine::engine::request::{Notice, NoticeKind, Reply};
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::engine::{Action, Engine, Event};

const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// Handles an event; each request is answered with "queued". Whether a call ended.
fn ends(engine: &mut Engine, event: Event) -> bool {
    let mut ends = false;
    engine.handle(NOW, event);
    while let Some(action) = engine.poll_action() {
        match action {
            Action::Send { id: request, .. } => {
                let result = Ok(Reply::Queued);
                engine.handle(NOW, Event::Reply { request, result });
            }
            Action::Resolve { .. } => ends = true,
            _ => {}
        }
    }
    ends
}

/// The call has asked again by the next connection, which reports the outcome.
#[test]
fn a_grant_that_an_earlier_connection_reports_does_not_count() {
    let limits = (Duration::from_secs(10), Duration::from_secs(1));
    let (mut engine, node) = (Engine::new(limits, 1, Routes::One), Node(0));
    let up = |connection| Event::ConnectionUp {
        node,
        connection,
        is_predecessor_gone: true,
    };
    ends(&mut engine, up(1));
    let call = engine.next_id();
    let ask = Event::Ask {
        call,
        claims: Claims::new(Owner::new("o").unwrap(), b"k", &[]),
        ask: Ask::Exclusive,
        value: None,
        terms: Terms::default(),
        queueing: Queueing::Unlimited,
    };
    ends(&mut engine, ask);
    let is_left = false;
    ends(&mut engine, Event::ConnectionDown { node, is_left });
    ends(&mut engine, up(2));
    let granted_by = |connection| {
        Event::Notice(Notice {
            kind: NoticeKind::Grant,
            fence: 7,
            name: Name::new(b"o k"),
            connection,
        })
    };
    assert!(!ends(&mut engine, granted_by(1)));
    assert!(ends(&mut engine, granted_by(2)));
}
