//! One call from the server into the module.

use std::{
    ffi::{CStr, CString},
    os::raw::{c_char, c_int},
};

use super::{OwnedText, Text, raw};

/// The context of a call. It cannot be kept: the entry points make it for the
/// length of a call.
pub(crate) struct Context {
    raw: *mut raw::RedisModuleCtx,
    is_command: bool,
}

/// Facts about the server and the calling client.
#[derive(Clone, Copy)]
pub(crate) struct Flags(u32);

/// How many clients of this server received a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    ToNobody,
    ToSomebody,
}

impl Published {
    /// Whether any client received one of two messages.
    pub(crate) fn or(self, other: Self) -> Self {
        if self == Self::ToSomebody {
            self
        } else {
            other
        }
    }

    const fn to(clients: c_int) -> Self {
        match clients {
            0 => Self::ToNobody,
            _ => Self::ToSomebody,
        }
    }
}

impl Context {
    pub(crate) const fn new(raw: *mut raw::RedisModuleCtx) -> Self {
        let is_command = false;
        Self { raw, is_command }
    }

    /// The context of a command, which has its arguments.
    pub(crate) const fn of_command(raw: *mut raw::RedisModuleCtx) -> Self {
        let is_command = true;
        Self { raw, is_command }
    }

    pub(crate) const fn raw(&self) -> *mut raw::RedisModuleCtx {
        self.raw
    }

    pub(crate) const fn is_command(&self) -> bool {
        self.is_command
    }

    pub(crate) fn flags(&self) -> Flags {
        // SAFETY: the context belongs to the running call.
        Flags(unsafe { raw::context_flags(self.raw) }.cast_unsigned())
    }

    /// Whether writing is an error now: while writes are paused, the server
    /// asserts that nothing is replicated.
    pub(crate) fn avoids_writes(&self) -> bool {
        // SAFETY: takes nothing.
        unsafe { raw::avoid_replica_traffic() != 0 }
    }

    /// The number of the selected database.
    pub(crate) fn db(&self) -> u32 {
        // SAFETY: as in `flags`.
        u32::try_from(unsafe { raw::selected_db(self.raw) }).unwrap_or(0)
    }

    /// Selects a database, in a context that has no client of its own.
    pub(crate) fn select_db(&self, db: u32) -> bool {
        let Ok(db) = c_int::try_from(db) else {
            return false;
        };
        // SAFETY: as in `flags`.
        unsafe { raw::select_db(self.raw, db) == raw::REDISMODULE_OK as c_int }
    }

    /// The id of the calling client.
    pub(crate) fn client_id(&self) -> u64 {
        // SAFETY: as in `flags`.
        unsafe { raw::client_id(self.raw) }
    }

    /// The id of the calling connection; none in a script and in another
    /// module's call.
    pub(crate) fn session(&self) -> Option<u64> {
        if self.flags().is_script() {
            return None;
        }
        let id = self.client_id();
        // SAFETY: the call asks for no details, so the server only looks up the
        // id.
        let found = unsafe { raw::client_info(std::ptr::null_mut(), id) };
        (found == raw::REDISMODULE_OK as c_int).then_some(id)
    }

    /// The name of the calling user; another module's call may have none.
    pub(crate) fn user_name(&self) -> Option<OwnedText> {
        // `GetCurrentUserName` would assume that there is a user.
        // SAFETY: as in `flags`; the text is the caller's to free.
        OwnedText::take(unsafe { raw::client_user_name(self.raw, self.client_id()) })
    }

    /// Whether the calling user may publish and listen on a channel.
    pub(crate) fn may_use_channel(&self, channel: Text) -> bool {
        // SAFETY: name and user are freed here; a call without a user (another
        // module's) is not limited by one.
        unsafe {
            let name = raw::current_user_name(self.raw);
            if name.is_null() {
                return true;
            }
            let user = raw::user_from_name(name);
            raw::free_string(self.raw, name);
            if user.is_null() {
                return false;
            }
            let usage = raw::REDISMODULE_CMD_CHANNEL_PUBLISH as c_int;
            let allowed = raw::acl_check_channel(user, channel.raw(), usage);
            raw::free_user(user);
            allowed == raw::REDISMODULE_OK as c_int
        }
    }

    /// Publishes a message to the subscribers of this server.
    pub(crate) fn publish(&self, channel: Text, message: Text) -> Published {
        // SAFETY: as in `flags`; the server keeps its own references.
        Published::to(unsafe { raw::publish(self.raw, channel.raw(), message.raw()) })
    }

    /// Publishes a message to the subscribers of the shard channel.
    pub(crate) fn publish_to_shard(&self, channel: Text, message: Text) -> Published {
        // SAFETY: as in `publish`.
        Published::to(unsafe { raw::publish_shard(self.raw, channel.raw(), message.raw()) })
    }

    /// Informs watching transactions and caching clients that a key changed.
    pub(crate) fn signal_modified(&self, name: Text) {
        // SAFETY: as in `flags`.
        unsafe { raw::signal_modified_key(self.raw, name.raw()) };
    }

    /// Whether the server only asks for the positions of a command's keys.
    pub(crate) fn asks_for_keys(&self) -> bool {
        // SAFETY: as in `flags`.
        unsafe { raw::is_keys_position_request(self.raw) != 0 }
    }

    /// Reports that the argument at `position` is a key, when the server asks.
    pub(crate) fn key_is_at(&self, position: usize) {
        let position = c_int::try_from(position).unwrap_or(0);
        // SAFETY: as in `flags`; only while the server asks.
        unsafe { raw::key_at_pos(self.raw, position) };
    }

    /// Writes a line to the server's log. The text is an argument and never the
    /// format, because a key may be named `%n`.
    pub(crate) fn log(&self, level: &CStr, text: &str) {
        let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
        // SAFETY: one string for the one `%s`.
        unsafe {
            raw::RedisModule_Log.unwrap_unchecked()(
                self.raw,
                level.as_ptr(),
                c"%s".as_ptr(),
                text.as_ptr(),
            );
        }
    }

    pub(crate) fn reply_number(&self, number: u64) {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        // SAFETY: as in `flags`.
        unsafe { raw::reply_long_long(self.raw, number) };
    }

    pub(crate) fn reply_nil(&self) {
        // SAFETY: as in `flags`.
        unsafe { raw::reply_null(self.raw) };
    }

    pub(crate) fn reply_status(&self, status: &CStr) {
        // SAFETY: as in `flags`; the server copies the text.
        unsafe { raw::reply_simple_string(self.raw, status.as_ptr()) };
    }

    pub(crate) fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: as in `flags`; the server copies the bytes.
        unsafe { raw::reply_string_buffer(self.raw, bytes.as_ptr().cast::<c_char>(), bytes.len()) };
    }

    pub(crate) fn reply_array(&self, len: usize) {
        // SAFETY: as in `flags`; the caller replies with `len` elements.
        unsafe { raw::reply_array(self.raw, len.try_into().unwrap_or(0)) };
    }

    /// Begins a map of `len` pairs; a flat array for RESP2.
    pub(crate) fn reply_map(&self, len: usize) {
        // SAFETY: as in `reply_array`.
        unsafe { raw::reply_map(self.raw, len.try_into().unwrap_or(0)) };
    }

    /// Replies with an error; the text has no line break and no zero byte.
    pub(crate) fn reply_error(&self, text: &str) {
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: as in `flags`; the server copies the text.
        unsafe { raw::reply_error(self.raw, text.as_ptr()) };
    }
}

impl Flags {
    const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    pub(crate) const fn is_script(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LUA)
    }

    /// Whether a call may block: not in a transaction, a script, or another
    /// module's call.
    pub(crate) const fn may_block(self) -> bool {
        !self.has(
            raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
                | raw::REDISMODULE_CTX_FLAGS_MULTI
                | raw::REDISMODULE_CTX_FLAGS_LUA
                | raw::REDISMODULE_CTX_FLAGS_REPLICATED
                | raw::REDISMODULE_CTX_FLAGS_LOADING,
        )
    }

    pub(crate) const fn is_master(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_MASTER)
    }

    pub(crate) const fn is_cluster(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
    }

    /// Whether the server has an append-only file, or begins one.
    pub(crate) const fn has_aof(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_AOF)
    }

    pub(crate) const fn is_loading(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LOADING)
    }

    /// Whether the policy lets the server evict keys that expire, as locks do.
    pub(crate) const fn may_evict(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_EVICT)
    }
}
