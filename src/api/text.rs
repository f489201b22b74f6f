//! The server's strings.

use std::{ops::Deref, ptr};

use super::raw;

/// A string that somebody else keeps alive: an argument of the running call,
/// or an [`OwnedText`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(pub(super) *mut raw::RedisModuleString);

impl Text {
    pub(crate) const fn from_raw(text: *mut raw::RedisModuleString) -> Self {
        Self(text)
    }

    /// The arguments of a call, without a copy.
    ///
    /// # Safety
    ///
    /// `argv` points to `argc` strings that live as long as `'a`.
    pub(crate) unsafe fn arguments<'a>(
        argv: *mut *mut raw::RedisModuleString,
        argc: i32,
    ) -> &'a [Self] {
        // SAFETY: `Text` has the layout of the pointer; the rest is the caller's.
        unsafe { std::slice::from_raw_parts(argv.cast(), usize::try_from(argc).unwrap_or(0)) }
    }

    pub(crate) const fn raw(self) -> *mut raw::RedisModuleString {
        self.0
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: the string is alive, and its bytes do not move while it is
        // only read.
        unsafe {
            let bytes = raw::string_ptr_len(self.0, &raw mut len);
            std::slice::from_raw_parts(bytes.cast(), len)
        }
    }
}

/// A string of our own, freed with this value.
pub(crate) struct OwnedText(Text);

impl OwnedText {
    /// A copy of `bytes`. Needs no context: the server keeps such strings
    /// outside of its automatic memory management.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        // SAFETY: the server copies the bytes.
        Self(Text(unsafe {
            raw::create_string(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len())
        }))
    }

    pub(crate) fn from_number(number: u64) -> Self {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        // SAFETY: a number needs no memory of ours.
        Self(Text(unsafe {
            raw::create_string_from_long_long(ptr::null_mut(), number)
        }))
    }

    /// Takes over a string that an API function has made for us; `None` if it
    /// made none.
    pub(super) fn take(text: *mut raw::RedisModuleString) -> Option<Self> {
        (!text.is_null()).then(|| Self(Text(text)))
    }
}

impl Deref for OwnedText {
    type Target = Text;

    fn deref(&self) -> &Text {
        &self.0
    }
}

impl Drop for OwnedText {
    fn drop(&mut self) {
        // SAFETY: ours, and freed once.
        unsafe { raw::free_string(ptr::null_mut(), self.0.0) }
    }
}
