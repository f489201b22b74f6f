//! Messages by the names of their fields, as the record has them.

use rlock_embed::format::{Field, Form, Message, NONE, Reader, Value as Answer};
use rlock_embed::messages::{Action, Event};
use serde_json::{Map, Value, json};

/// The fields of an event, each with its name, its type and its value.
pub(crate) fn fields_of_event(event: &[u8]) -> Vec<Value> {
    let (mut reader, kind) = (Reader::new(&event[1..]), event[0]);
    let begun = vec![json!(["kind", "u8", kind])];
    fields(of(Event::ALL, kind).fields, &mut reader, begun)
}

/// The same for the fields of a group.
pub(crate) fn fields(of: &[Field], reader: &mut Reader<'_>, mut to: Vec<Value>) -> Vec<Value> {
    for field in of {
        let kind = match field.form {
            Form::Group(group) => {
                to = fields(group.fields, reader, to);
                continue;
            }
            Form::Seed => {
                let bytes: [u8; 32] = reader.get().unwrap();
                to.extend(bytes.map(|it| json!([field.name, "u8", it])));
                continue;
            }
            Form::U8 | Form::Flag | Form::Choice(_) => "u8",
            Form::U16 => "u16",
            Form::U32 => "u32",
            Form::U64 | Form::Millis => "u64",
            Form::List => "list",
            _ => "bytes",
        };
        let value = match field.form {
            Form::Flag => json!(reader.get::<u8>().unwrap()),
            // A time without a limit is left out of the record.
            Form::Millis => json!(Some(reader.get::<u64>().unwrap()).filter(|it| *it != NONE)),
            form => value(form, reader),
        };
        to.push(json!([field.name.replace('_', " "), kind, value]));
    }
    to
}

/// An action by the names of its fields. The first one has the name of the action.
pub(crate) fn shown(action: &Action<'_>) -> Value {
    let bytes = action.to_bytes();
    let (mut reader, action) = (Reader::new(&bytes[1..]), of(Action::ALL, bytes[0]));
    let name = action.name.to_lowercase();
    let mut shown = Map::new();
    for (at, field) in action.fields.iter().enumerate() {
        let is_named_so = action.fields.iter().any(|it| it.name == name);
        let key = if at == 0 && !is_named_so {
            &*name
        } else {
            field.name
        };
        shown.insert(key.to_owned(), value(field.form, &mut reader));
    }
    Value::Object(shown)
}

fn of(all: &'static [Message], number: u8) -> &'static Message {
    all.iter()
        .find(|it| it.number == number)
        .expect("it is in the table")
}

fn value(form: Form, reader: &mut Reader<'_>) -> Value {
    let text = |bytes: &[u8]| Value::String(String::from_utf8_lossy(bytes).into_owned());
    match form {
        Form::U8 | Form::Choice(_) => json!(reader.get::<u8>().unwrap()),
        Form::U16 => json!(reader.get::<u16>().unwrap()),
        Form::U32 => json!(reader.get::<u32>().unwrap()),
        Form::U64 | Form::Millis | Form::Fence => json!(reader.get::<u64>().unwrap()),
        Form::Flag => json!(reader.get::<bool>().unwrap()),
        Form::List => {
            let items: Vec<&[u8]> = reader.get().unwrap();
            items.into_iter().map(text).collect()
        }
        Form::Fences => {
            let count = reader.get::<u32>().unwrap();
            let pair = |_| json!([value(Form::Bytes, reader), value(Form::U64, reader)]);
            (0..count).map(pair).collect()
        }
        Form::Value => answer(&reader.get().unwrap()),
        Form::Optional(group) => {
            let is_there = reader.get().unwrap();
            let fields = group.fields.iter().map(|it| value(it.form, reader));
            json!(Some(fields.collect::<Vec<_>>()).filter(|_| is_there))
        }
        _ => text(reader.get().unwrap()),
    }
}

pub(crate) fn answer(value: &Answer<'_>) -> Value {
    match value {
        Answer::Nil => Value::Null,
        Answer::Integer(number) => json!(number),
        Answer::Bytes(bytes) => json!(str::from_utf8(bytes).expect("text")),
        Answer::List(items) => items.iter().map(answer).collect(),
        Answer::Map(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| {
                let key = answer(key).as_str().expect("a name").to_owned();
                (key, answer(value))
            });
            Value::Object(pairs.collect())
        }
        Answer::Error(text) => json!({ "error": text }),
    }
}
