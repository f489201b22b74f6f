//! A machine with a host in Rust, on a real server; and recorded runs, which check every host.

mod form;
mod host;

use std::path::PathBuf;

use form::{Action, Event, NONE, configuration, read};
use host::{Host, asking};
use rlock_embed::{Machine, Malformed};
use rlock_testkit::{Server, eventually};
use serde_json::{Value, json};

const EXCLUSIVE: (u8, u32, u32) = (0, 1, 0);
const SHARED: (u8, u32, u32) = (1, 1, 0);

fn is_over(guard: u64) -> impl Fn(&Action) -> bool {
    move |it| matches!(it, Action::Over { guard: told, .. } if *told == guard)
}

/// A run of one client beside another one, with most kinds of events.
fn run(server: &Server) -> Host {
    let (url, mut other) = (server.url(), Host::new(&server.url(), "other"));
    let mut host = Host::new(&url, "host");
    let connect = host.call(1, |event| event);
    assert_eq!(host.end(connect), "done");

    let first = host.lock(&["k"], EXCLUSIVE);
    let tried = other.ask(&["k"], EXCLUSIVE, 0);
    assert_eq!(other.end(tried), "refused");
    let waits = other.ask(&["k"], EXCLUSIVE, 5_000);
    eventually("it waits", || {
        other.look();
        server.queued("k") == 1
    });
    assert_eq!(host.release(first), "done");
    let fences = other.granted(waits);
    assert_eq!(fences.len(), 1);
    assert_eq!(other.release(waits), "done");

    let all = host.lock(&["b", "a"], EXCLUSIVE);
    assert_eq!(host.release(all), "done");
    let permits = host.lock(&["p"], (2, 2, 3));
    assert_eq!(host.release(permits), "done");

    let reads = host.lock(&["r"], SHARED);
    let upgrade = host.call(4, |event| event.u64("guard", reads).u64("wait", 0));
    assert_eq!(host.granted(upgrade).len(), 1);
    let extend = host.call(5, |event| event.u64("guard", reads).u64("lease", 60_000));
    assert_eq!(host.end(extend), "done");
    let downgrade = host.call(6, |event| event.u64("guard", reads));
    assert_eq!(host.end(downgrade), "done");
    assert_eq!(host.release(reads), "done");

    let question = host.call(7, |event| {
        let event = event.bytes("key", b"k").list("words", &["RLOCK.INFO", "k"]);
        event.u8("changes", 0).u64("limit", NONE)
    });
    let is_answer = |it: &Action| matches!(it, Action::Answered { call, .. } if *call == question);
    let Action::Answered { answers, .. } = host.told("an answer", is_answer) else {
        panic!("no answer");
    };
    assert_eq!(answers[0]["mode"], "free");

    let observer = host.call(21, |event| event.bytes("key", b"led"));
    assert_eq!(host.leader(observer), None);
    let leads = host.campaign("led", "a:1");
    let (fence, value) = host.leader(observer).expect("a leader");
    assert_eq!(value, "a:1");
    let proclaim = host.call(20, |event| event.u64("guard", leads).bytes("value", b"a:2"));
    assert_eq!(host.end(proclaim), "done");
    assert_eq!(host.leader(observer), Some((fence, "a:2".to_owned())));
    let asked = host.call(22, |event| event.bytes("key", b"led"));
    assert_eq!(host.leader(asked), Some((fence, "a:2".to_owned())));
    assert_eq!(host.release(leads), "done");
    assert_eq!(host.leader(observer), None);
    host.handle(Event::of(8).u64("call", observer));

    let lost = host.lock(&["lost"], EXCLUSIVE);
    assert!(host.is_valid(lost));
    server.ask("RLOCK.FORCE lost");
    assert_eq!(
        host.told("the loss", is_over(lost)),
        Action::Over {
            guard: lost,
            why: 1
        }
    );
    assert!(!host.is_valid(lost));
    assert_eq!(host.release(lost), "Lost");

    let held = host.lock(&["held"], EXCLUSIVE);
    host.cut();
    assert!(host.is_valid(held));
    assert_eq!(host.release(held), "done");

    host.handle(Event::of(14));
    let flush = host.call(13, |event| event);
    assert_eq!(host.end(flush), "done");
    host.handle(Event::of(15));
    host
}

#[test]
fn a_machine_with_a_host_is_a_client() {
    let server = Server::start();
    let host = run(&server);
    if std::env::var_os("RLOCK_RECORD").is_some() {
        std::fs::write(recording(), recorded(&host)).unwrap();
    }
}

#[test]
fn a_wait_that_is_given_up_leaves_nothing() {
    let server = Server::start();
    let (mut host, mut other) = (
        Host::new(&server.url(), "host"),
        Host::new(&server.url(), "o"),
    );
    let held = other.lock(&["k"], EXCLUSIVE);
    let waits = host.ask(&["k"], EXCLUSIVE, NONE);
    eventually("it waits", || {
        host.look();
        server.queued("k") == 1
    });
    host.handle(Event::of(8).u64("call", waits));
    eventually("it has left", || {
        host.look();
        server.queued("k") == 0
    });
    assert_eq!(other.release(held), "done");
    // Nobody received this grant.
    let untaken = host.lock(&["k"], EXCLUSIVE);
    host.handle(Event::of(18).u64("guard", untaken));
    eventually("it is free", || {
        host.look();
        server.ask("EXISTS k") == "0"
    });
}

#[test]
fn a_release_with_a_time_out_of_range_frees_nothing() {
    let server = Server::start();
    let mut host = Host::new(&server.url(), "host");
    let guard = host.lock(&["k"], EXCLUSIVE);
    let too_long = 31 * 24 * 60 * 60 * 1000;
    let release = |event: Event| event.u64("guard", guard).u64("least", too_long);
    let call = host.call(3, release);
    assert_eq!(host.end(call), "OutOfRange");
    assert!(!host.is_valid(guard));
    let flush = host.call(13, |event| event);
    assert_eq!(host.end(flush), "done");
    assert_eq!(server.ask("EXISTS k"), "1");
}

#[test]
fn bad_arguments_are_named() {
    for url in ["http://x", "redis://", ""] {
        let wrong = Machine::new(&configuration(url, "").bytes).err().unwrap();
        assert!(wrong.starts_with("url is "), "{url}: {wrong}");
    }
    let wrong = Machine::new(&configuration("redis://x", "a b").bytes)
        .err()
        .unwrap();
    assert!(wrong.contains("name"), "{wrong}");
    assert!(
        Machine::new(&[2, 0, 0, 0])
            .err()
            .unwrap()
            .contains("version")
    );
    let mut host = Host::new("redis://127.0.0.1:1", "");
    for (keys, mode) in [
        (&[][..], EXCLUSIVE),
        (&["a", "a"], EXCLUSIVE),
        (&["a", "b"], SHARED),
        (&["a"], (2, 2, 1)),
        (&["a"], (2, 0, 1)),
    ] {
        let call = host.ask(keys, mode, 0);
        assert_eq!(host.end(call), "OutOfRange", "{keys:?} {mode:?}");
    }
    let value = "x".repeat(1025);
    let call = host.call(19, |event| {
        let event = asking(event, &["a"], EXCLUSIVE, 0);
        event.bytes("value", value.as_bytes())
    });
    assert_eq!(host.end(call), "OutOfRange");
}

#[test]
fn observers_end_with_their_client_and_are_told_why() {
    let server = Server::start();
    let mut host = Host::new(&server.url(), "host");
    let left = host.call(21, |event| event.bytes("key", b"k"));
    assert_eq!(host.leader(left), None);
    host.handle(Event::of(8).u64("call", left));
    let mut observers: Vec<u64> = Vec::new();
    for _ in 0..2 {
        observers.push(host.call(21, |event| event.bytes("key", b"k")));
    }
    for observer in &observers {
        assert_eq!(host.leader(*observer), None);
    }
    let mut other = Host::new(&server.url(), "other");
    other.campaign("k", "v");
    for observer in &observers {
        assert_eq!(host.leader(*observer).expect("a leader").1, "v");
    }
    host.handle(Event::of(15));
    for observer in observers {
        assert_eq!(host.end(observer), "Closed");
    }
    assert!(!host.is_told_of(left), "it was abandoned");
}

#[test]
fn what_is_no_event_changes_nothing() {
    let record = record();
    let mut machine = begun(&record);
    for step in record["steps"].as_array().unwrap() {
        let (now, event) = (step["now"].as_u64().unwrap(), unhex(&step["event"]));
        for end in 0..event.len() {
            let cut = machine.handle(now, &event[..end], Vec::new());
            assert!(cut.is_err(), "{end} bytes of {}", step["fields"]);
        }
        let longer = [&event[..], &[0]].concat();
        assert!(machine.handle(now, &longer, Vec::new()).is_err());
        let output = machine.handle(now, &event, Vec::new()).unwrap();
        assert_eq!(output, unhex(&step["output"]), "{}", step["fields"]);
    }
    let wrong = machine.handle(NONE, &[99], Vec::new());
    assert_eq!(wrong, Err(Malformed("there is no such event")));
}

#[test]
fn what_is_recorded_is_what_hosts_write_and_read() {
    let record = record();
    let mut seen = std::collections::BTreeSet::new();
    for step in record["steps"].as_array().unwrap() {
        let (deadline, actions) = read(&unhex(&step["output"]));
        assert_eq!(
            json!((deadline != NONE).then_some(deadline)),
            step["deadline"]
        );
        let shown: Vec<_> = actions.iter().map(shown).collect();
        assert_eq!(json!(shown), step["actions"]);
        seen.insert(step["fields"][0][2].as_u64().unwrap());
    }
    let rest = seen.iter().copied().collect::<Vec<_>>();
    let all = [
        1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 19, 20, 21, 22,
    ];
    assert_eq!(rest, all);
}

/// The recorded run; `RLOCK_RECORD=1` records it again.
fn recording() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/host/run.json")
}

fn record() -> Value {
    let text = std::fs::read_to_string(recording()).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn begun(record: &Value) -> Machine {
    Machine::new(&unhex(&record["configuration"]["bytes"])).unwrap()
}

/// One line for each step.
fn recorded(host: &Host) -> String {
    let configuration = json!({
        "fields": host.configuration.fields,
        "bytes": hex(&host.configuration.bytes),
    });
    let steps = host.steps.iter().map(|step| {
        let (deadline, actions) = read(&step.output);
        let step = json!({
            "now": step.now,
            "fields": step.event.fields,
            "event": hex(&step.event.bytes),
            "output": hex(&step.output),
            "deadline": (deadline != NONE).then_some(deadline),
            "actions": actions.iter().map(shown).collect::<Vec<_>>(),
        });
        step.to_string()
    });
    let steps: Vec<_> = steps.collect();
    let steps = steps.join(",\n");
    format!("{{\"configuration\":{configuration},\"steps\":[\n{steps}\n]}}\n")
}

/// An action, by the names of its fields.
fn shown(action: &Action) -> Value {
    match action {
        Action::Connect {
            connection,
            how,
            host,
            port,
        } => {
            json!({ "connect": connection, "how": how, "host": host, "port": port })
        }
        Action::Write { connection, bytes } => {
            json!({ "write": connection, "bytes": String::from_utf8_lossy(bytes) })
        }
        Action::Close { connection } => json!({ "close": connection }),
        Action::Granted {
            call,
            guard,
            owner,
            fences,
        } => {
            json!({ "granted": call, "guard": guard, "owner": owner, "fences": fences })
        }
        Action::Refused { call } => json!({ "refused": call }),
        Action::Done { call } => json!({ "done": call }),
        Action::Failed {
            call,
            code,
            text,
            is_transient,
        } => {
            json!({ "failed": call, "code": code, "text": text, "transient": is_transient })
        }
        Action::Answered { call, answers } => json!({ "answered": call, "answers": answers }),
        Action::Over { guard, why } => json!({ "over": guard, "why": why }),
        Action::Note { level, text } => json!({ "note": level, "text": text }),
        Action::Leader {
            call,
            leader,
            missed,
        } => json!({ "leader": leader, "call": call, "missed": missed }),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &Value) -> Vec<u8> {
    let (pairs, _) = text.as_str().unwrap().as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
    pairs.iter().map(|pair| byte(pair).unwrap()).collect()
}
