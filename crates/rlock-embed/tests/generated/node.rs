//! `format.cjs`: a function for each event, which takes its fields as an object.

use rlock_embed::format::{Field, Form, VERSION};
use rlock_embed::messages::{Action, Event, configuration};

use crate::{FIRST, camel, joined, parts, pick};

const VERBS: &str = "u8|u16|u32|u64|u64|big|flag|bytes|bytes|text|list|raw|fences|value";

pub(crate) fn file(_: &str) -> String {
    let choices = parts().0;
    let names = joined(&choices, ", ", |it| camel(it.name));
    let choices = joined(&choices, "", |of| {
        let options = joined(of.options, ", ", |it| format!("{}: {}", camel(it.1), it.0));
        format!("const {} = {{ {options} }};\n", camel(of.name))
    });
    let actions = joined(Action::ALL, ", ", |it| {
        format!("{}: {}", camel(it.name), it.number)
    });
    let begun = written(configuration());
    let events = joined(Event::ALL, "", |it| {
        let fields = written(&it.fields[usize::from(it.starts_call)..]);
        let call = if it.starts_call { ".u64(call)" } else { "" };
        let takes = match (it.starts_call, fields.is_empty()) {
            (true, true) => "(to, call)",
            (true, false) => "(to, call, it)",
            (false, true) => "to",
            (false, false) => "(to, it)",
        };
        format!(
            "  {}: {takes} => to.u8({}){call}{fields},\n",
            camel(it.name),
            it.number
        )
    });
    let reads = joined(Action::ALL, "", |it| {
        format!(
            "    case {}: return {{ kind, {} }};\n",
            it.number,
            read(it.fields)
        )
    });
    format!(
        r"// Generated {FIRST}.
'use strict';
// The events and actions of docs/embedding.md.

const VERSION = {VERSION};
const action = {{ {actions} }};
{choices}
const configuration = (to, it) => to{begun};

/** Each writes an event: the kind, the number of the call if it starts one, and the fields. */
const event = {{
{events}}};

/** Reads an action. */
const read = from => {{
  const kind = from.u8();
  switch (kind) {{
{reads}    default: throw new Error(`rlock: unknown action ${{kind}}`);
  }}
}};

module.exports = {{ VERSION, action, configuration, event, read, {names} }};
"
    )
}

fn written(fields: &[Field]) -> String {
    joined(fields, "", |it| match it.form {
        Form::Group(group) => written(group.fields),
        form => format!(".{}(it.{})", pick(form, VERBS), camel(it.name)),
    })
}

fn read(fields: &[Field]) -> String {
    joined(fields, ", ", |it| {
        let (name, verb) = (camel(it.name), pick(it.form, VERBS));
        match it.form {
            Form::Optional(group) => {
                format!(
                    "{name}: from.optional(() => ({{ {} }}))",
                    read(group.fields)
                )
            }
            _ => format!("{name}: from.{verb}()"),
        }
    })
}
