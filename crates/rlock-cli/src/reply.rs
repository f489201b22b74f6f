//! Reads the maps that the server answers with.
//!
//! An older module may leave fields out, a newer one may add some: what is
//! missing reads as zero, empty or none, what is unknown is passed over.

use redis::Value;

/// A map of a reply: one in RESP3, a flat array in RESP2.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a Value);

impl<'a> Fields<'a> {
    fn get(self, name: &str) -> Option<&'a Value> {
        let mut fields = self.0.as_map_iter()?;
        let field = fields.find(|(field, _)| bytes(field) == Some(name.as_bytes()));
        field.map(|(_, value)| value)
    }

    pub(crate) fn optional(self, name: &str) -> Option<u64> {
        match self.get(name)? {
            Value::Int(number) => u64::try_from(*number).ok(),
            other => std::str::from_utf8(bytes(other)?).ok()?.parse().ok(),
        }
    }

    pub(crate) fn number(self, name: &str) -> u64 {
        self.optional(name).unwrap_or_default()
    }

    pub(crate) fn bytes(self, name: &str) -> &'a [u8] {
        self.get(name).and_then(bytes).unwrap_or_default()
    }

    /// Bytes that are no UTF-8 are replaced.
    pub(crate) fn text(self, name: &str) -> String {
        String::from_utf8_lossy(self.bytes(name)).into_owned()
    }

    pub(crate) fn list(self, name: &str) -> &'a [Value] {
        self.get(name)
            .and_then(Value::as_sequence)
            .unwrap_or_default()
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}
