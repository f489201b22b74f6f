//! The tables in `docs/embedding.md`.

use rlock_embed::format::{Field, Form, Message};
use rlock_embed::messages::{Action, Event, configuration};

use crate::{joined, parts, pick, words};

const KINDS: &str = "`u8`|`u16`|`u32`|`u64`|`ms`|`u64`|`u8`|`bytes`|`bytes`|`text`|`list` of||\
    `u32` number of keys, and for each `bytes` key and `u64` fence|*value*:";

/// The page, with other text between the markers.
pub(crate) fn page(before: &str) -> String {
    let groups = joined(parts().1, "", |it| {
        let (name, fields) = (words(it.name, " "), shown(it.fields));
        format!("- *{name}*: {fields}. {}\n", it.doc.trim())
    });
    let mut page = before.to_owned();
    for (name, text) in [
        ("configuration", shown(configuration()) + ".\n"),
        (
            "events",
            table(
                "| | event | fields | ends with |\n|---|---|---|---|",
                Event::ALL,
            ),
        ),
        ("groups", groups),
        (
            "actions",
            table("| | action | fields |\n|---|---|---|", Action::ALL),
        ),
    ] {
        let begin = format!("<!-- {name}: generated -->\n");
        let end = format!("\n<!-- end of {name} -->\n");
        let (head, rest) = page.split_once(&begin).expect("it has the marker");
        let (_, tail) = rest.split_once(&end).expect("it has the marker of the end");
        page = format!("{head}{begin}\n{text}{end}{tail}");
    }
    page
}

fn table(title: &str, messages: &[Message]) -> String {
    let has_ends = messages.iter().any(|it| !it.ends.is_empty());
    let rows = joined(messages, "", |it| {
        let star = if it.starts_call { "*" } else { "" };
        let fields = shown(&it.fields[usize::from(it.starts_call)..]);
        let ends = if has_ends {
            format!(" {} |", it.ends)
        } else {
            String::new()
        };
        format!(
            "| {} | {}{star} | {fields} |{ends}\n",
            it.number,
            words(it.name, " ")
        )
    });
    format!("{title}\n{rows}").replace("|  |", "| |")
}

fn shown(fields: &[Field]) -> String {
    joined(fields, ", ", |field| {
        let (name, kind) = (field.name.replace('_', " "), pick(field.form, KINDS));
        let doc = if field.doc.is_empty() {
            &*name
        } else {
            field.doc
        };
        let group = words(kind, " ");
        let text = match field.form {
            Form::Choice(it) => {
                let options = joined(it.options, ", ", |it| format!("{} {}", it.0, it.2));
                format!("{kind} {doc} ({options})")
            }
            Form::Fences => kind.to_owned(),
            Form::Optional(_) => format!("`u8` {doc}, *{group}* (empty if not)"),
            Form::Group(_) if doc == group => format!("*{group}*"),
            Form::Group(_) => format!("*{group}* ({doc})"),
            _ => format!("{kind} {doc}"),
        };
        text.trim().to_owned()
    })
}
