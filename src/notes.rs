//! Events that callbacks have recorded while the state was in use, and the keys
//! that this module is changing.

use std::{
    cell::{Cell, RefCell},
    os::raw::c_void,
    ptr,
};

use crate::api::{MainThread, Text};

/// What a callback has recorded.
pub(crate) enum Note {
    /// A key was deleted, expired, renamed, or given another time to live.
    KeyChanged {
        db: u32,
        key: Box<[u8]>,
        change: KeyChange,
    },
    /// One database, or all of them, has other keys than before.
    KeysChanged(Option<u32>),
    /// A blocked call has ended without the module.
    CallerGone(u64),
    /// A connection has closed.
    SessionClosed(u64),
    /// A blocked call that was granted a lock has ended; `gone` if the reply
    /// could not be sent.
    GrantEnded { handle: u64, gone: bool },
    /// The server has become a replica, or a master.
    RoleChanged { is_master: bool },
    /// The server has read its data.
    Loaded,
    /// A setting of the server has changed.
    ConfigChanged,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyChange {
    /// It got another time to live.
    TimeToLive,
    /// The server evicted it.
    Evicted,
    /// It has a new name, which the next event contains.
    RenamedFrom,
    /// It has this name now.
    RenamedTo,
    Other,
}

static NOTES: MainThread<RefCell<Vec<Note>>> = MainThread::new(RefCell::new(Vec::new()));
/// The address of the name of the key that this module is changing; events with
/// it come from the module.
static CHANGING: MainThread<Cell<*const c_void>> = MainThread::new(Cell::new(ptr::null()));
/// The same for several keys at once. A single key needs no list.
static CHANGING_ALL: MainThread<RefCell<Vec<*const c_void>>> =
    MainThread::new(RefCell::new(Vec::new()));

/// Adds a note.
pub(crate) fn push(note: Note) {
    NOTES.get().borrow_mut().push(note);
}

/// Takes the recorded notes.
pub(crate) fn take() -> Vec<Note> {
    NOTES.get().take()
}

/// Whether this module is changing a key.
pub(crate) fn is_changing(key: Text) -> bool {
    let key = address(key);
    CHANGING.get().get() == key || CHANGING_ALL.get().borrow().contains(&key)
}

fn address(name: Text) -> *const c_void {
    name.raw().cast_const().cast()
}

/// Marks keys as being changed by this module until the value is dropped.
pub(crate) struct Changing {
    is_list: bool,
}

impl Changing {
    pub(crate) fn new(names: &[Text]) -> Self {
        let is_list = names.len() > 1;
        if let [name] = names {
            CHANGING.get().set(address(*name));
        } else {
            let addresses = names.iter().map(|name| address(*name));
            CHANGING_ALL.get().replace(addresses.collect());
        }
        Self { is_list }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.get().set(ptr::null());
        if self.is_list {
            CHANGING_ALL.get().take();
        }
    }
}
