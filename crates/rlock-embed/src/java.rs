//! The machine as functions of Java's native library, through JNI. It starts no thread and keeps no state of the process.
//!
//! A machine and its host share a direct `ByteBuffer`: an event is in it before a call, and the output after the call.
//! A panic ends a machine, and not the JVM: the call returns [`FAILED`], as does every later one of that machine.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Machine, VERSION};

#[cfg(not(panic = "unwind"))]
compile_error!("a panic must not end the JVM: build with panic = \"unwind\"");

/// A call returns this instead of a length: the event was malformed.
const MALFORMED: i32 = -1;
/// The machine has failed, and can no longer be used.
const FAILED: i32 = -2;

/// JNI's table of functions, as far as it is used here. Their places are the same in each version of JNI.
#[repr(C)]
pub struct Functions {
    others: [*const c_void; 230],
    address: unsafe extern "system" fn(*const Environment, Object) -> *mut u8,
    capacity: unsafe extern "system" fn(*const Environment, Object) -> i64,
}

/// What JNI passes to each function, by address: the address of the table.
pub type Environment = *const Functions;

/// A reference to an object of Java.
type Object = *mut c_void;

/// A direct `ByteBuffer`, which the host keeps alive.
struct Shared {
    address: *mut u8,
    capacity: usize,
}

impl Shared {
    /// # Safety
    ///
    /// JNI has passed `environment` to the function that runs now, and `buffer` is a direct `ByteBuffer`.
    unsafe fn of(environment: *const Environment, buffer: Object) -> Self {
        // SAFETY: the caller promises it. The table lives as long as the JVM.
        let (address, capacity) = unsafe {
            let functions = &**environment;
            (
                (functions.address)(environment, buffer),
                (functions.capacity)(environment, buffer),
            )
        };
        let capacity = usize::try_from(capacity).unwrap_or(0);
        Self { address, capacity }
    }

    /// # Safety
    ///
    /// The buffer is alive, and nobody else uses it.
    unsafe fn input(&self, length: i32) -> &[u8] {
        let length = usize::try_from(length).unwrap_or(0).min(self.capacity);
        // SAFETY: the caller promises that the buffer is alive, and its bytes are initialized by Java.
        unsafe { std::slice::from_raw_parts(self.address, length) }
    }

    /// Writes as many bytes as there is room for, and returns how many there are.
    ///
    /// # Safety
    ///
    /// As for [`input`](Self::input).
    unsafe fn put(&self, bytes: &[u8]) -> i32 {
        let length = bytes.len().min(self.capacity);
        // SAFETY: the caller promises that the buffer is alive. It does not overlap with memory of Rust.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address, length) };
        i32::try_from(bytes.len()).unwrap_or(FAILED)
    }
}

/// A machine with its buffer.
struct Instance {
    /// None after a panic.
    machine: Option<Machine>,
    shared: Shared,
    output: Vec<u8>,
}

impl Instance {
    /// # Safety
    ///
    /// The buffer is alive, and nobody else uses it.
    unsafe fn handle(&mut self, now: u64, length: i32) -> i32 {
        // It comes back unless the call panics.
        let Some(mut machine) = self.machine.take() else {
            return FAILED;
        };
        // SAFETY: the caller promises it.
        let event = unsafe { self.shared.input(length) };
        let handled = machine.handle(now, event, std::mem::take(&mut self.output));
        self.machine = Some(machine);
        let Ok(output) = handled else {
            return MALFORMED;
        };
        self.output = output;
        // SAFETY: the caller promises it.
        unsafe { self.shared.put(&self.output) }
    }
}

/// Does `work`, or returns `failed` if it panics. The message of the panic is on standard error.
fn guarded<T>(failed: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(failed)
}

/// The version of the format of events and actions.
// SAFETY: no other function has this name. The same is true for the functions below.
#[unsafe(no_mangle)]
pub extern "system" fn Java_rlock_Native_formatVersion(_: *const Environment, _: Object) -> i32 {
    VERSION.cast_signed()
}

/// Makes a machine from the configuration in the buffer, and returns its address. Returns minus the length of an error's
/// text, which is in the buffer, or 0 if it has failed.
///
/// # Safety
///
/// `buffer` is a direct `ByteBuffer`, which the host keeps alive until it attaches another one or closes the machine.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_rlock_Native_open(
    environment: *const Environment,
    _: Object,
    buffer: Object,
    length: i32,
) -> i64 {
    guarded(0, || {
        // SAFETY: the caller promises it.
        let shared = unsafe { Shared::of(environment, buffer) };
        // SAFETY: the caller promises it.
        match Machine::new(unsafe { shared.input(length) }) {
            Ok(machine) => {
                let (machine, output) = (Some(machine), Vec::new());
                let instance = Instance {
                    machine,
                    shared,
                    output,
                };
                Box::into_raw(Box::new(instance)).expose_provenance() as i64
            }
            // SAFETY: the caller promises it.
            Err(text) => -i64::from(unsafe { shared.put(text.as_bytes()) }),
        }
    })
}

/// # Safety
///
/// `machine` is an address from `open` that is not closed, and no other call uses it.
unsafe fn instance<'a>(machine: i64) -> &'a mut Instance {
    let address = std::ptr::with_exposed_provenance_mut(machine as usize);
    // SAFETY: the caller promises it.
    unsafe { &mut *address }
}

/// Handles the event in the buffer; returns the length of the output. If the buffer has no room for it, the host attaches
/// a larger one.
///
/// # Safety
///
/// `machine` is an address from `open` that is not closed, and no other call uses it or its buffer.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_rlock_Native_handle(
    _: *const Environment,
    _: Object,
    machine: i64,
    now: i64,
    length: i32,
) -> i32 {
    // SAFETY: the caller promises it.
    guarded(FAILED, || unsafe {
        instance(machine).handle(now.cast_unsigned(), length)
    })
}

/// Uses another buffer from now on, and writes the last output into it.
///
/// # Safety
///
/// As for `open` and `handle`.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_rlock_Native_attach(
    environment: *const Environment,
    _: Object,
    machine: i64,
    buffer: Object,
) {
    // SAFETY: the caller promises it.
    unsafe {
        let instance = instance(machine);
        instance.shared = Shared::of(environment, buffer);
        instance.shared.put(&instance.output);
    }
}

/// How many nanoseconds from `now` a guard stays valid; see [`Machine::remaining`].
///
/// # Safety
///
/// As for `handle`.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_rlock_Native_remaining(
    _: *const Environment,
    _: Object,
    machine: i64,
    guard: i64,
    now: i64,
) -> i64 {
    guarded(0, || {
        // SAFETY: the caller promises it.
        let machine = unsafe { &instance(machine).machine };
        let (guard, now) = (guard.cast_unsigned(), now.cast_unsigned());
        let left = machine.as_ref().map_or(0, |it| it.remaining(guard, now));
        left.cast_signed()
    })
}

/// Frees a machine.
///
/// # Safety
///
/// As for `handle`; no later call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_rlock_Native_close(
    _: *const Environment,
    _: Object,
    machine: i64,
) {
    guarded((), || {
        // SAFETY: the caller promises it, and the address is of a box.
        drop(unsafe { Box::from_raw(instance(machine)) });
    });
}
