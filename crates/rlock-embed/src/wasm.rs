//! The machine as functions of a WebAssembly module; each instance has one machine.
//!
//! The host writes its input at [`rlock_input`], and reads the output at [`rlock_output`].

use std::cell::RefCell;

use crate::{Machine, VERSION};

/// A call returns this instead of a length if the event was malformed or there is no machine. The output is the
/// error's text.
const FAILED: u32 = u32::MAX;

#[derive(Default)]
struct Instance {
    machine: Option<Machine>,
    input: Vec<u8>,
    output: Vec<u8>,
}

thread_local! {
    static INSTANCE: RefCell<Instance> = RefCell::default();
}

fn with<T>(work: impl FnOnce(&mut Instance) -> T) -> T {
    INSTANCE.with_borrow_mut(work)
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(FAILED)
}

/// The version of the format of events and actions.
// SAFETY: no other function here or in the standard library has this name. The same is true for the functions below.
#[unsafe(no_mangle)]
pub extern "C" fn rlock_version() -> u32 {
    VERSION
}

/// Where the host must write the next `length` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn rlock_input(length: u32) -> *mut u8 {
    with(|it| {
        it.input.clear();
        it.input.resize(usize::try_from(length).unwrap_or(0), 0);
        it.input.as_mut_ptr()
    })
}

/// Where the output of the last call is.
#[unsafe(no_mangle)]
pub extern "C" fn rlock_output() -> *const u8 {
    with(|it| it.output.as_ptr())
}

/// Makes the machine from the configuration in the input; returns 0, or the length of an error's text.
#[unsafe(no_mangle)]
pub extern "C" fn rlock_open() -> u32 {
    with(|it| match Machine::new(&it.input) {
        Ok(machine) => {
            it.machine = Some(machine);
            0
        }
        Err(text) => {
            it.output = text.into_bytes();
            length(&it.output)
        }
    })
}

/// Handles the event in the input; returns the length of the output.
#[unsafe(no_mangle)]
pub extern "C" fn rlock_handle(now: u64) -> u32 {
    with(|it| {
        let Some(machine) = &mut it.machine else {
            return FAILED;
        };
        match machine.handle(now, &it.input, std::mem::take(&mut it.output)) {
            Ok(output) => {
                it.output = output;
                length(&it.output)
            }
            Err(_) => FAILED,
        }
    })
}

/// How many nanoseconds from `now` a guard stays valid; see [`Machine::remaining`].
#[unsafe(no_mangle)]
pub extern "C" fn rlock_remaining(guard: u64, now: u64) -> u64 {
    with(|it| {
        it.machine
            .as_ref()
            .map_or(0, |machine| machine.remaining(guard, now))
    })
}
