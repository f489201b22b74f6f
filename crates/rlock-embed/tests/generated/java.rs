//! `Format.java`: a method for each event, and a class for each group.

use rlock_embed::format::{Field, Form, Group, VERSION};
use rlock_embed::messages::{Action, Event, configuration};

use crate::{FIRST, camel, is_read, joined, of_actions, parts, pick, upper};

const VERBS: &str = "u8|u16|u32|u64|u64|u64|flag|bytes|data|text|list|raw|fences|value";
const KINDS: &str = "int|int|int|long|long|long|boolean|byte[]|ByteBuffer|String|List<String>|\
    byte[]|Map<String, Long>|Object";

pub(crate) fn file(_: &str) -> String {
    let (choices, groups) = parts();
    let choices = joined(choices, "", |of| {
        let name = upper(of.name);
        joined(of.options, "", |it| {
            format!("    static final int {name}_{} = {};\n", upper(it.1), it.0)
        })
    });
    let groups = joined(groups, "", class);
    let begun = method("Configuration", "", configuration());
    let events = joined(Event::ALL, "", |it| {
        method(
            it.name,
            &format!("        to.u8({});\n", it.number),
            it.fields,
        )
    });
    let kinds = joined(Action::ALL, "", |it| {
        format!(
            "        static final int {} = {};\n",
            upper(it.name),
            it.number
        )
    });
    let fields = joined(of_actions(), "", |it| {
        format!("        {};\n", declared(it))
    });
    let cases = joined(Action::ALL, "", |it| {
        let reads = joined(it.fields, "", |it| {
            format!("                    it.{} = {};\n", name(it), read(it.form))
        });
        format!(
            "                case {}:\n{reads}                    break;\n",
            upper(it.name)
        )
    });
    format!(
        r#"// Generated {FIRST}.
package rlock;

import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import rlock.Engine.Reader;
import rlock.Engine.Writer;

/** The events and actions of docs/embedding.md. */
final class Format {{
    static final int VERSION = {VERSION};
{choices}
    private Format() {{}}
{groups}{begun}{events}
    /** An action of the engine. */
    static final class Action {{
{kinds}
        int kind;
{fields}
        static Action read(Reader from) {{
            var it = new Action();
            it.kind = from.u8();
            switch (it.kind) {{
{cases}                default:
                    throw new IllegalStateException("unknown action " + it.kind);
            }}
            return it;
        }}
    }}
}}
"#
    )
}

fn name(field: &Field) -> String {
    match field.form {
        Form::Flag => camel(&format!("is_{}", field.name)),
        _ => camel(field.name),
    }
}

fn declared(field: &Field) -> String {
    format!("{} {}", pick(field.form, KINDS), name(field))
}

fn class(of: &Group) -> String {
    let fields = joined(of.fields, "", |it| {
        format!("        final {};\n", declared(it))
    });
    let takes = joined(of.fields, ", ", declared);
    let sets = joined(of.fields, "", |it| {
        format!("            this.{0} = {0};\n", name(it))
    });
    let write = match is_read(of) {
        true => String::new(),
        false => {
            let writes = writes(of.fields, "            ");
            format!("\n        void write(Writer to) {{\n{writes}        }}\n")
        }
    };
    let of = of.name;
    format!(
        "
    static final class {of} {{
{fields}
        {of}({takes}) {{
{sets}        }}
{write}    }}
"
    )
}

fn method(of: &str, begin: &str, fields: &[Field]) -> String {
    let takes = joined(fields, "", |it| format!(", {}", declared(it)));
    let (of, writes) = (camel(of), writes(fields, "        "));
    format!(
        "
    static Writer {of}(Writer to{takes}) {{
{begin}{writes}        return to;
    }}
"
    )
}

fn writes(fields: &[Field], indent: &str) -> String {
    joined(fields, "", |it| match it.form {
        Form::Group(_) => format!("{indent}{}.write(to);\n", name(it)),
        form => format!("{indent}to.{}({});\n", pick(form, VERBS), name(it)),
    })
}

fn read(form: Form) -> String {
    let group = |it: &Group| {
        format!(
            "new {}({})",
            it.name,
            joined(it.fields, ", ", |it| read(it.form))
        )
    };
    match form {
        Form::Group(it) => group(it),
        Form::Optional(it) => format!("Reader.optional(from.flag(), {})", group(it)),
        _ => format!("from.{}()", pick(form, VERBS)),
    }
}
