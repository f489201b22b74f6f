//! What callbacks have seen while the state was in use, and which keys are
//! being changed by us.

use std::{
    cell::{Cell, RefCell},
    os::raw::c_void,
    ptr,
};

use crate::api::{MainThread, Text};

/// What a callback has seen.
pub(crate) enum Note {
    /// A key was deleted, expired, renamed, or given another time to live.
    KeyChanged {
        db: u32,
        key: Box<[u8]>,
        change: KeyChange,
    },
    /// A database, or all of them, has other keys than before.
    KeysChanged(Option<u32>),
    /// A blocked call has ended without us.
    CallerGone(u64),
    /// A connection has closed.
    SessionClosed(u64),
    /// A blocked call that was granted a lock has ended; `gone` if it could not
    /// be answered.
    GrantEnded { handle: u64, gone: bool },
    /// The server has become a replica, or a master.
    RoleChanged { is_master: bool },
    /// The server has read its data.
    Loaded,
    /// Some setting of the server's has changed.
    ConfigChanged,
}

/// What has been done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyChange {
    /// It was given another time to live.
    TimeToLive,
    /// The server took it for its memory.
    Evicted,
    /// It has another name now, which the next event tells.
    RenamedFrom,
    /// It has this name now.
    RenamedTo,
    Other,
}

static NOTES: MainThread<RefCell<Vec<Note>>> = MainThread::new(RefCell::new(Vec::new()));
/// Where the name of the key is that is being changed by us; events that name
/// it are our own doing.
static CHANGING: MainThread<Cell<*const c_void>> = MainThread::new(Cell::new(ptr::null()));
/// The same for several keys at once. One costs no list.
static CHANGING_ALL: MainThread<RefCell<Vec<*const c_void>>> =
    MainThread::new(RefCell::new(Vec::new()));

/// Leaves a note.
pub(crate) fn push(note: Note) {
    NOTES.get().borrow_mut().push(note);
}

/// Takes the notes that have been left.
pub(crate) fn take() -> Vec<Note> {
    NOTES.get().take()
}

/// Whether it is us who are changing a key.
pub(crate) fn is_changing(key: Text) -> bool {
    let key = address(key);
    CHANGING.get().get() == key || CHANGING_ALL.get().borrow().contains(&key)
}

fn address(name: Text) -> *const c_void {
    name.raw().cast_const().cast()
}

/// Marks keys as being changed by us until the value is dropped.
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
