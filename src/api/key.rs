//! An open key, closed when the value is dropped, even while unwinding.

use std::{
    any::Any,
    marker::PhantomData,
    ops::ControlFlow,
    os::raw::{c_char, c_int, c_void},
    panic::{self, AssertUnwindSafe},
    ptr,
};

use super::{Context, OwnedText, Text, raw};

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Empty,
    Hash,
    Other,
}

/// What to do with a field of a hash.
#[derive(Clone, Copy)]
pub(crate) enum Field<'a> {
    Set(Text<'a>, Text<'a>),
    Delete(Text<'a>),
}

/// A field and its value, or null pointers.
type Pair = (*mut raw::RedisModuleString, *mut raw::RedisModuleString);
const NO_PAIR: Pair = (ptr::null_mut(), ptr::null_mut());

pub(crate) struct Key<'a> {
    key: *mut raw::RedisModuleKey,
    context: PhantomData<&'a Context>,
}

impl<'a> Key<'a> {
    /// Opens a key to read and write. If the key has expired, the server
    /// deletes it and replicates the deletion.
    pub(crate) fn open(ctx: &'a Context, name: Text) -> Self {
        let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;
        // SAFETY: context and name are alive; the handle is closed on drop.
        let key = unsafe { raw::open_key(ctx.raw(), name.raw(), mode) };
        Self {
            key,
            context: PhantomData,
        }
    }

    /// Opens a key to read; `None` if it does not exist.
    pub(crate) fn open_to_read(ctx: &'a Context, name: Text) -> Option<Self> {
        // SAFETY: as in `open`; a missing key gives a null pointer here.
        let key = unsafe { raw::open_key(ctx.raw(), name.raw(), raw::REDISMODULE_READ as c_int) };
        (!key.is_null()).then(|| Self {
            key,
            context: PhantomData,
        })
    }

    pub(crate) fn kind(&self) -> KeyKind {
        // SAFETY: the handle is open.
        match unsafe { raw::key_type(self.key) } as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => KeyKind::Empty,
            raw::REDISMODULE_KEYTYPE_HASH => KeyKind::Hash,
            _ => KeyKind::Other,
        }
    }

    /// The number of fields of a hash.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the handle is open.
        unsafe { raw::value_length(self.key) }
    }

    /// When the key expires, in milliseconds since the Unix epoch.
    pub(crate) fn expires_at_ms(&self) -> Option<u64> {
        // SAFETY: the handle is open. "No expiry" is a negative number.
        u64::try_from(unsafe { raw::abs_expire(self.key) }).ok()
    }

    pub(crate) fn set_expires_at_ms(&self, at_ms: u64) {
        let at_ms = i64::try_from(at_ms).unwrap_or(i64::MAX);
        // SAFETY: the handle is open for writing.
        unsafe { raw::set_abs_expire(self.key, at_ms) };
    }

    /// The value of a field of a hash.
    pub(crate) fn field(&self, field: Text) -> Option<OwnedText> {
        let mut value: *mut raw::RedisModuleString = ptr::null_mut();
        // SAFETY: the handle is open; the list of arguments ends with a null
        // pointer; the string that comes back is ours to free.
        unsafe {
            raw::RedisModule_HashGet.unwrap_unchecked()(
                self.key,
                raw::REDISMODULE_HASH_NONE as c_int,
                field.raw(),
                &raw mut value,
                ptr::null::<c_char>(),
            );
        }
        OwnedText::take(value)
    }

    /// The values of two fields of a hash.
    pub(crate) fn fields(&self, first: Text, second: Text) -> [Option<OwnedText>; 2] {
        let mut values: [*mut raw::RedisModuleString; 2] = [ptr::null_mut(); 2];
        // SAFETY: as in `field`.
        unsafe {
            raw::RedisModule_HashGet.unwrap_unchecked()(
                self.key,
                raw::REDISMODULE_HASH_NONE as c_int,
                first.raw(),
                &raw mut values[0],
                second.raw(),
                &raw mut values[1],
                ptr::null::<c_char>(),
            );
        }
        values.map(OwnedText::take)
    }

    /// Changes fields, up to four in one call.
    pub(crate) fn change<'f>(&self, changes: impl Iterator<Item = Field<'f>>) {
        let (mut pairs, mut len) = ([NO_PAIR; 4], 0);
        for change in changes {
            if len == pairs.len() {
                self.change_all(std::mem::replace(&mut pairs, [NO_PAIR; 4]));
                len = 0;
            }
            if let Some(pair) = pairs.get_mut(len) {
                *pair = change.pair();
                len += 1;
            }
        }
        if len > 0 {
            self.change_all(pairs);
        }
    }

    fn change_all(&self, [one, two, three, four]: [Pair; 4]) {
        // SAFETY: as in `field`, with a handle that is open for writing. The
        // server copies fields and values. The list ends at the first null
        // pointer, which follows the last field.
        unsafe {
            raw::RedisModule_HashSet.unwrap_unchecked()(
                self.key,
                raw::REDISMODULE_HASH_NONE as c_int,
                one.0,
                one.1,
                two.0,
                two.1,
                three.0,
                three.1,
                four.0,
                four.1,
                ptr::null::<c_char>(),
            );
        }
    }

    pub(crate) fn delete(&self) {
        // SAFETY: the handle is open for writing; it stays open, and empty.
        unsafe { raw::delete_key(self.key) };
    }

    /// Calls `visit` with each field of a hash and its value, until it breaks.
    pub(crate) fn for_each_field(&self, visit: &mut VisitField<'_>) -> ControlFlow<()> {
        let mut visitor = Visitor {
            visit,
            broken: ControlFlow::Continue(()),
            panic: None,
        };
        // SAFETY: the cursor is destroyed before this returns, and the callback
        // only runs inside `scan_key`, while the visitor is borrowed here.
        unsafe {
            let cursor = raw::scan_cursor_create();
            let data = (&raw mut visitor).cast::<c_void>();
            while raw::scan_key(self.key, cursor, Some(visit_field), data) != 0
                && (*data.cast::<Visitor<'_>>()).broken.is_continue()
            {}
            raw::scan_cursor_destroy(cursor);
        }
        if let Some(panic) = visitor.panic {
            panic::resume_unwind(panic);
        }
        visitor.broken
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: open until here.
        unsafe { raw::close_key(self.key) }
    }
}

impl Field<'_> {
    /// The field, and the value as the variadic function wants it.
    const fn pair(self) -> Pair {
        match self {
            Self::Set(field, value) => (field.raw(), value.raw()),
            // The API's mark for "delete this field": the address 1.
            Self::Delete(field) => (field.raw(), ptr::without_provenance_mut(1)),
        }
    }
}

/// Examines a field of a hash and its value. Breaks to stop the scan.
type VisitField<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// The visitor of the fields of a hash. A panic must not unwind into the
/// server, so it is kept until the scan has returned.
struct Visitor<'a> {
    visit: &'a mut VisitField<'a>,
    broken: ControlFlow<()>,
    panic: Option<Box<dyn Any + Send>>,
}

unsafe extern "C" fn visit_field(
    _key: *mut raw::RedisModuleKey,
    field: *mut raw::RedisModuleString,
    value: *mut raw::RedisModuleString,
    data: *mut c_void,
) {
    if field.is_null() || value.is_null() {
        return;
    }
    // SAFETY: `for_each_field` passes its visitor, and waits for this call; field
    // and value live as long as the call.
    let (visitor, field, value) = unsafe {
        (
            &mut *data.cast::<Visitor<'_>>(),
            Text::from_raw(field),
            Text::from_raw(value),
        )
    };
    if visitor.broken.is_continue() {
        let visited = AssertUnwindSafe(|| (visitor.visit)(field.bytes(), value.bytes()));
        match panic::catch_unwind(visited) {
            Ok(broken) => visitor.broken = broken,
            Err(panic) => {
                visitor.broken = ControlFlow::Break(());
                visitor.panic = Some(panic);
            }
        }
    }
}
