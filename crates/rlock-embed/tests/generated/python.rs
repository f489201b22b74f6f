//! `_format.py`: a function for each event, and for each group that is encoded before its event.

use std::collections::BTreeSet;

use rlock_embed::format::{Field, Form, VERSION};
use rlock_embed::messages::{Action, Event, configuration};

use crate::{FIRST, is_read, joined, parts, pick, upper, words};

const LETTERS: &str = "B|H|I|Q|Q|Q|B|I|I|I";
const KINDS: &str = "int|int|int|int|int|int|bool|bytes|bytes|str|Sequence[bytes]|bytes";

pub(crate) fn file(_: &str) -> String {
    let (choices, groups) = parts();
    let mut structs = BTreeSet::new();
    let written = groups
        .iter()
        .filter(|it| !is_read(it))
        .map(|it| (it.name, None, it.fields));
    let events = Event::ALL
        .iter()
        .map(|it| (it.name, Some(it.number), it.fields));
    let all = written
        .chain([("Configuration", None, configuration())])
        .chain(events);
    let functions = joined(all, "", |it| function(it.0, it.1, it.2, &mut structs));
    let actions = joined(Action::ALL, "", |it| {
        format!("{} = {}\n", upper(it.name), it.number)
    });
    let choices = joined(choices, "\n", |of| {
        let name = upper(of.name);
        joined(of.options, "", |it| {
            format!("{name}_{} = {}\n", upper(it.1), it.0)
        })
    });
    let structs = joined(structs, "", |it| {
        format!("_{it} = struct.Struct(\"<{it}\").pack\n")
    });
    format!(
        r#"# Generated {FIRST}.
"""Encodes events, and names the kinds of actions; docs/embedding.md describes them."""

import struct
from typing import Sequence

VERSION = {VERSION}
NONE = 2**64 - 1  # Instead of a time: no limit, or no time at all.

# The first field of an action.
{actions}
{choices}
{structs}

def _list(values: Sequence[bytes]) -> bytes:
    return _I(len(values)) + b"".join([_I(len(value)) + value for value in values])
{functions}"#
    )
}

/// Fields of a fixed size that follow each other are packed at once.
fn function(
    of: &str,
    kind: Option<u8>,
    fields: &[Field],
    structs: &mut BTreeSet<String>,
) -> String {
    let mut format = kind.map_or(String::new(), |_| "B".to_owned());
    let mut values: Vec<_> = kind.iter().map(u8::to_string).collect();
    let mut parts = Vec::new();
    let mut pack = |format: &mut String, values: &mut Vec<String>| {
        let format = std::mem::take(format);
        structs.insert(format.clone());
        format!("_{format}({})", std::mem::take(values).join(", "))
    };
    for field in fields {
        let name = field.name.to_owned();
        let rest = match field.form {
            Form::Bytes | Form::Data | Form::Seed | Form::Group(_) => Some(name.clone()),
            Form::Text => Some(format!("{name}_")),
            Form::List => Some(format!("_list({name})")),
            _ => None,
        };
        if !matches!(field.form, Form::List | Form::Seed | Form::Group(_)) {
            format += pick(field.form, LETTERS);
            values.push(rest.as_ref().map_or(name, |it| format!("len({it})")));
        }
        if rest.is_some() && !values.is_empty() {
            parts.push(pack(&mut format, &mut values));
        }
        parts.extend(rest);
    }
    if !values.is_empty() {
        parts.push(pack(&mut format, &mut values));
    }
    let texts = fields.iter().filter(|it| matches!(it.form, Form::Text));
    let texts = joined(texts, "", |it| {
        format!("    {0}_ = {0}.encode()\n", it.name)
    });
    let takes = joined(fields, ", ", |it| match it.form {
        Form::Group(_) => format!("{}: bytes", it.name),
        form => format!("{}: {}", it.name, pick(form, KINDS)),
    });
    let (name, parts) = (words(of, "_"), parts.join(" + "));
    format!("\n\ndef {name}({takes}) -> bytes:\n{texts}    return {parts}\n")
}
