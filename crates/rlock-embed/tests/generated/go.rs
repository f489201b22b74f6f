//! `format.go`: a method of the writer for each event.

use rlock_embed::format::{Field, Form, Group, VERSION};
use rlock_embed::messages::{Action, Event, configuration};

use crate::{FIRST, camel, is_read, joined, of_actions, parts, pick};

const VERBS: &str = "u8|u16|u32|u64|u64|u64|flag|text|bytes|text|list|raw|fences|value";
const KINDS: &str = "uint8|uint16|uint32|uint64|uint64|uint64|bool|string|[]byte|string|[]string|\
    []byte|map[string]uint64|any";

pub(crate) fn file(_: &str) -> String {
    let (choices, groups) = parts();
    let choices = joined(choices, "\n", |of| {
        let name = camel(of.name);
        joined(of.options, "", |it| {
            format!("const {name}{} = {}\n", it.1, it.0)
        })
    });
    let actions = joined(Action::ALL, "", |it| {
        format!("const ac{} = {}\n", it.name, it.number)
    });
    let kinds = joined(&groups, "", |it| {
        format!(
            "\ntype {}Form struct {{\n{}}}\n",
            camel(it.name),
            lines(it.fields.iter())
        )
    });
    let written = joined(groups.iter().filter(|it| !is_read(it)), "", |it| {
        let (name, calls) = (camel(it.name), calls(it.fields, "it."));
        format!("\nfunc (w *writer) {name}Form(it {name}Form) *writer {{\n\treturn w{calls}\n}}\n")
    });
    let begun = event("Configuration", "", configuration());
    let events = joined(Event::ALL, "", |it| {
        event(it.name, &format!(".u8({})", it.number), it.fields)
    });
    let read = joined(groups.iter().filter(|it| is_read(it)), "", |it| {
        optional(it)
    });
    let kind = Field {
        name: "kind",
        doc: "",
        form: Form::U8,
    };
    let mut all: Vec<_> = std::iter::once(&kind).chain(of_actions()).collect();
    // The small ones together, so that nothing lies between them.
    all.sort_by_key(|it| matches!(named(it.form, KINDS).as_str(), "uint8" | "uint16" | "bool"));
    let action = lines(all.into_iter());
    let cases = joined(Action::ALL, "", |it| {
        let to = joined(it.fields, ", ", |field| format!("a.{}", camel(field.name)));
        let from = joined(it.fields, ", ", |field| {
            format!("r.{}()", named(field.form, VERBS))
        });
        format!("\tcase ac{}:\n\t\t{to} = {from}\n", it.name)
    });
    format!(
        r#"// Code generated {FIRST}; DO NOT EDIT.

package rlock

import "fmt"

const formVersion = {VERSION}

{actions}
{choices}{kinds}{written}{begun}{events}{read}
// action is an action in an output. Its bytes are a part of the output.
type action struct {{
{action}}}

func (r *reader) action() action {{
	a := action{{kind: r.u8()}}
	switch a.kind {{
{cases}	default:
		panic(fmt.Sprintf("rlock: unknown action %d", a.kind))
	}}
	return a
}}
"#
    )
}

fn named(form: Form, words: &'static str) -> String {
    match form {
        Form::Group(it) | Form::Optional(it) => camel(it.name) + "Form",
        _ => pick(form, words).to_owned(),
    }
}

/// The lines of a struct, as gofmt aligns them.
fn lines<'a>(fields: impl Iterator<Item = &'a Field>) -> String {
    let all: Vec<_> = fields.map(|it| (camel(it.name), it.form)).collect();
    let width = all.iter().map(|it| it.0.len()).max().unwrap_or(0);
    joined(all, "", |(name, form)| {
        let star = if matches!(form, Form::Optional(_)) {
            "*"
        } else {
            ""
        };
        format!("\t{name:width$} {star}{}\n", named(form, KINDS))
    })
}

fn event(name: &str, begin: &str, fields: &[Field]) -> String {
    let takes = joined(fields, ", ", |it| {
        format!("{} {}", camel(it.name), named(it.form, KINDS))
    });
    let (name, calls) = (camel(name), calls(fields, ""));
    format!("\nfunc (w *writer) {name}({takes}) {{\n\tw{begin}{calls}\n}}\n")
}

fn calls(fields: &[Field], of: &str) -> String {
    joined(fields, "", |it| {
        format!(".{}({of}{})", named(it.form, VERBS), camel(it.name))
    })
}

fn optional(group: &Group) -> String {
    let field = |it: &Field| format!("{}: r.{}()", camel(it.name), named(it.form, VERBS));
    let (name, fields) = (
        camel(group.name) + "Form",
        joined(group.fields, ", ", field),
    );
    format!(
        "
func (r *reader) {name}() *{name} {{
	isThere, it := r.flag(), {name}{{{fields}}}
	if !isThere {{
		return nil
	}}
	return &it
}}
"
    )
}
