//! The server's strings.

use std::{marker::PhantomData, ptr};

use super::raw;

/// A string that its owner keeps alive for `'a`: an argument of the running
/// call, or an [`OwnedText`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text<'a> {
    text: *mut raw::RedisModuleString,
    lifetime: PhantomData<&'a raw::RedisModuleString>,
}

impl<'a> Text<'a> {
    /// A string of the server's.
    ///
    /// # Safety
    ///
    /// It lives as long as `'a`.
    pub(crate) const unsafe fn from_raw(text: *mut raw::RedisModuleString) -> Self {
        Self {
            text,
            lifetime: PhantomData,
        }
    }

    /// The arguments of a call, without a copy.
    ///
    /// # Safety
    ///
    /// `argv` points to `argc` strings that live as long as `'a`; it may be
    /// null if there are none.
    pub(crate) unsafe fn arguments(
        argv: *mut *mut raw::RedisModuleString,
        argc: i32,
    ) -> &'a [Self] {
        match usize::try_from(argc) {
            Ok(len) if len > 0 && !argv.is_null() => {
                // SAFETY: `Text` has the layout of the pointer; the rest is the caller's.
                unsafe { std::slice::from_raw_parts(argv.cast(), len) }
            }
            Ok(_) | Err(_) => &[],
        }
    }

    pub(crate) const fn raw(self) -> *mut raw::RedisModuleString {
        self.text
    }

    /// The bytes. Those of a key must be asked for again after each call that
    /// may emit key events: another module may keep the name of the key then, and
    /// trim it, which moves its bytes.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: the string is alive, and its bytes do not move while it is
        // only read. A slice of no bytes must not be at the address 0 either.
        unsafe {
            let bytes = raw::string_ptr_len(self.text, &raw mut len);
            if bytes.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(bytes.cast(), len)
        }
    }
}

/// A string that this value owns and frees.
pub(crate) struct OwnedText(*mut raw::RedisModuleString);

impl OwnedText {
    /// A copy of `bytes`. Needs no context: the server keeps such strings
    /// outside of its automatic memory management.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        // SAFETY: the server copies the bytes.
        Self(unsafe { raw::create_string(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()) })
    }

    pub(crate) fn from_number(number: u64) -> Self {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        // SAFETY: a number needs no memory of ours.
        Self(unsafe { raw::create_string_from_long_long(ptr::null_mut(), number) })
    }

    /// Takes over a string that an API function has made; `None` if it made
    /// none.
    pub(super) fn take(text: *mut raw::RedisModuleString) -> Option<Self> {
        (!text.is_null()).then(|| Self(text))
    }

    pub(crate) const fn raw(&self) -> *mut raw::RedisModuleString {
        self.0
    }

    pub(crate) fn text(&self) -> Text<'_> {
        // SAFETY: ours, as long as this value.
        unsafe { Text::from_raw(self.0) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.text().bytes()
    }
}

impl Drop for OwnedText {
    fn drop(&mut self) {
        // SAFETY: ours, and freed once.
        unsafe { raw::free_string(ptr::null_mut(), self.0) }
    }
}

/// A borrowed or an owned string.
pub(crate) enum Word<'a> {
    Kept(Text<'a>),
    Owned(OwnedText),
}

impl Word<'_> {
    pub(crate) fn text(&self) -> Text<'_> {
        match self {
            Self::Kept(text) => *text,
            Self::Owned(text) => text.text(),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.text().bytes()
    }
}

impl<'a> From<Text<'a>> for Word<'a> {
    fn from(text: Text<'a>) -> Self {
        Self::Kept(text)
    }
}

impl From<OwnedText> for Word<'_> {
    fn from(text: OwnedText) -> Self {
        Self::Owned(text)
    }
}
