//! The server's API as this module uses it: thin types over raw pointers.
//!
//! All `unsafe` of the project is in this folder and in the entry points that
//! the server calls. The rules that the types rely on:
//!
//! - everything runs on the server's main thread;
//! - a [`Context`] and the [`Text`]s of a call are good until the call returns;
//! - every function of [`raw`] is present, or the module has refused to load.
//!   Functions that only some servers have are checked one by one, by pointer:
//!   the version numbers of Redis and Valkey are not comparable.

mod context;
pub(crate) mod entry;
mod facts;
mod key;
mod questions;
pub(crate) mod raw;
mod section;
mod text;

pub(crate) use context::{Context, Published};
pub(crate) use facts::KeyEvent;
pub(crate) use key::{Field, Key, KeyKind};
pub(crate) use questions::Serves;
pub(crate) use section::Section;
pub(crate) use text::{OwnedText, Text, Word};

use std::{
    cell::{OnceCell, UnsafeCell},
    ffi::CStr,
};

/// The name of the module, which settings, the `INFO` section and commands begin
/// with.
pub(crate) const NAME: &CStr = c"rlock";

/// A value that only the server's main thread touches.
pub(crate) struct MainThread<T>(UnsafeCell<T>);

// SAFETY: the server calls modules on its main thread only, and this module
// starts no thread of its own.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// The value. `T` is a `Cell` or `RefCell` wherever it is changed.
    pub(crate) const fn get(&self) -> &T {
        // SAFETY: no `&mut` to the value is ever made, and there is one thread.
        unsafe { &*self.0.get() }
    }
}

impl<T> MainThread<OnceCell<T>> {
    /// Drops the value, as the module could not be loaded.
    ///
    /// # Safety
    ///
    /// Nothing obtained from it is used any more.
    pub(crate) unsafe fn end(&self) {
        // SAFETY: there is one thread; the rest is the caller's.
        drop(unsafe { (*self.0.get()).take() });
    }
}
