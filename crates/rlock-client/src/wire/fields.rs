//! The named fields of a reply, checked one by one: a missing one is an error.

use redis::Value;

use crate::Error;
use crate::wire::reply;

/// A map of the reply: one in RESP3, a flat array in RESP2.
pub(crate) struct Fields<'a>(pub(crate) &'a Value);

impl Fields<'_> {
    fn get(&self, name: &str) -> Result<&Value, Error> {
        self.0
            .as_map_iter()
            .and_then(|mut fields| fields.find(|(field, _)| bytes(field) == Some(name.as_bytes())))
            .map(|(_, value)| value)
            .ok_or_else(|| Error::Protocol(format!("no field `{name}` in {:?}", self.0)))
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64, Error> {
        reply::number(self.get(name)?)
    }

    pub(crate) fn optional(&self, name: &str) -> Result<Option<u64>, Error> {
        match self.get(name)? {
            Value::Nil => Ok(None),
            other => reply::number(other).map(Some),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(self.bytes(name)?).into_owned())
    }

    pub(crate) fn bytes(&self, name: &str) -> Result<&[u8], Error> {
        let found = bytes(self.get(name)?);
        found.ok_or_else(|| Error::Protocol(format!("`{name}` is no text")))
    }

    pub(crate) fn list(&self, name: &str) -> Result<&[Value], Error> {
        let list = self.get(name)?.as_sequence();
        list.ok_or_else(|| Error::Protocol(format!("`{name}` is no list")))
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}
