//! The machine as functions of a WebAssembly module, one machine in each instance.
//!
//! The host writes what it hands over to where [`rlock_input`] says, and reads what
//! it is given from where [`rlock_output`] says.

use std::cell::RefCell;

use crate::{Machine, VERSION};

/// What a call gives in place of a length if the event was malformed, or if there
/// is no machine. The text is in the output.
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

/// The version of the form of events and actions.
// SAFETY: no other function here, and none of the standard library, has this name; so for those below.
#[unsafe(no_mangle)]
pub extern "C" fn rlock_version() -> u32 {
    VERSION
}

/// Where to write the next `length` bytes.
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

/// Makes the machine as the input has it: 0, or the length of what is wrong.
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

/// Takes the event in the input; the length of the output.
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

/// For how many nanoseconds from `now` a guard still counts; see
/// [`Machine::remaining`].
#[unsafe(no_mangle)]
pub extern "C" fn rlock_remaining(guard: u64, now: u64) -> u64 {
    with(|it| {
        it.machine
            .as_ref()
            .map_or(0, |machine| machine.remaining(guard, now))
    })
}
