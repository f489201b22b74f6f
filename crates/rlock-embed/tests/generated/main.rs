//! What hosts in other languages know of the messages, and the tables of `docs/embedding.md`, as the table in
//! `src/messages.rs` gives them.

mod documents;
mod go;
mod java;
mod node;
mod python;

use std::path::Path;

use rlock_embed::format::{Choice, Field, Form, Group};
use rlock_embed::messages::{Action, Event, configuration};

/// A command writes each file, and each file names it.
const FIRST: &str = "from crates/rlock-embed/src/messages.rs by \
    `RLOCK_GENERATE=1 cargo test --package rlock-embed --test generated`";

#[test]
fn files_are_as_the_table_gives_them() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let java = "clients/java/src/main/java/rlock/Format.java";
    for (name, write) in [
        (
            "clients/python/rlock_client/_format.py",
            python::file as fn(&str) -> String,
        ),
        ("clients/node/format.cjs", node::file),
        ("clients/go/format.go", go::file),
        (java, java::file),
        ("docs/embedding.md", documents::page),
    ] {
        let file = top.join(name);
        let before = std::fs::read_to_string(&file).unwrap_or_default();
        let after = write(&before);
        match std::env::var_os("RLOCK_GENERATE") {
            Some(_) => std::fs::write(&file, &after).unwrap(),
            None => assert!(before == after, "{name} must be generated {FIRST}"),
        }
    }
}

/// One of these words, in the order of the forms; for a group its name.
fn pick(form: Form, words: &'static str) -> &'static str {
    let at = match form {
        Form::U8 | Form::Choice(_) => 0,
        Form::U16 => 1,
        Form::U32 => 2,
        Form::U64 => 3,
        Form::Millis => 4,
        Form::Fence => 5,
        Form::Flag => 6,
        Form::Bytes => 7,
        Form::Data => 8,
        Form::Text => 9,
        Form::List => 10,
        Form::Seed => 11,
        Form::Fences => 12,
        Form::Value => 13,
        Form::Group(group) | Form::Optional(group) => return group.name,
    };
    words.split('|').nth(at).unwrap_or_default()
}

/// All choices of the messages and the configuration, and all groups of the
/// messages. Groups inside others come first.
fn parts() -> (Vec<&'static Choice>, Vec<&'static Group>) {
    fn look(fields: &[Field], found: &mut (Vec<&'static Choice>, Vec<&'static Group>)) {
        for field in fields {
            match field.form {
                Form::Choice(it) if found.0.iter().all(|known| known.name != it.name) => {
                    found.0.push(it);
                }
                Form::Group(it) | Form::Optional(it) => {
                    look(it.fields, found);
                    if found.1.iter().all(|known| known.name != it.name) {
                        found.1.push(it);
                    }
                }
                _ => {}
            }
        }
    }
    let mut found = Default::default();
    let messages = Event::ALL.iter().chain(Action::ALL);
    messages.for_each(|it| look(it.fields, &mut found));
    look(configuration(), &mut found);
    found
}

/// Only actions have it, and there it may be empty.
fn is_read(group: &Group) -> bool {
    let is = |form| matches!(form, Form::Optional(it) if it.name == group.name);
    Action::ALL
        .iter()
        .any(|it| it.fields.iter().any(|field| is(field.form)))
}

/// The fields of all actions, each once.
fn of_actions() -> Vec<&'static Field> {
    let mut known: Vec<&Field> = Vec::new();
    for field in Action::ALL.iter().flat_map(|it| it.fields) {
        if known.iter().all(|it| it.name != field.name) {
            known.push(field);
        }
    }
    known
}

/// `LeaveAll` with a sign between its words: `leave_all`.
fn words(name: &str, between: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text += between;
        }
        text.extend(letter.to_lowercase());
    }
    text
}

fn upper(name: &str) -> String {
    words(name, "_").to_uppercase()
}

/// `LeaveAll` or `leave_all` as `leaveAll`.
fn camel(name: &str) -> String {
    let name = words(name, "_");
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    first + &joined(parts, "", |it| it[..1].to_uppercase() + &it[1..])
}

fn joined<T>(
    all: impl IntoIterator<Item = T>,
    between: &str,
    show: impl FnMut(T) -> String,
) -> String {
    all.into_iter().map(show).collect::<Vec<_>>().join(between)
}
