//! The module's section of `INFO`.

use std::{ffi::CString, ptr};

use super::raw;

/// A section that is being written.
pub(crate) struct Section(*mut raw::RedisModuleInfoCtx);

impl Section {
    /// Begins the section, named like the module.
    ///
    /// # Safety
    ///
    /// The pointer comes from the server, for a call that lasts as long as this
    /// value is used.
    pub(crate) unsafe fn begin(section: *mut raw::RedisModuleInfoCtx) -> Self {
        // SAFETY: guaranteed by the caller. Without a name, the section is
        // named like the module.
        unsafe { raw::info_add_section(section, ptr::null()) };
        Self(section)
    }

    pub(crate) fn number(&self, name: &str, value: u64) {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the pointer is good as `begin` says; the server copies texts.
        unsafe { raw::info_add_number(self.0, name.as_ptr(), value) };
    }

    pub(crate) fn text(&self, name: &str, value: &str) {
        let name = CString::new(name).unwrap_or_default();
        let value = CString::new(value).unwrap_or_default();
        // SAFETY: as above.
        unsafe { raw::info_add_text(self.0, name.as_ptr(), value.as_ptr()) };
    }

    /// A field that consists of numbers: `name:one=1,two=2`.
    pub(crate) fn numbers(&self, name: &str, values: impl Iterator<Item = (String, u64)>) {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: as above.
        unsafe { raw::info_begin_dict(self.0, name.as_ptr()) };
        for (name, value) in values {
            self.number(&name, value);
        }
        // SAFETY: as above.
        unsafe { raw::info_end_dict(self.0) };
    }
}
