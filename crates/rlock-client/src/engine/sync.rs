//! A standard mutex that a panicking thread does not take out of service.
//!
//! Nothing in this crate is left half done while such a mutex is held, so
//! poison carries no information here.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
