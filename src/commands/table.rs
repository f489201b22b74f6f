//! The table of commands: the purpose of each, and what the server, its clients
//! and its access rules must know of it. Their syntax is in
//! `rlock_core::syntax`.

use std::{ffi::CStr, os::raw::c_int};

use rlock_core::syntax::Command;

use super::entry_point;
use crate::api::raw;

/// One command.
pub(super) struct Row {
    pub(super) command: Command,
    pub(super) summary: &'static CStr,
    pub(super) complexity: &'static CStr,
    pub(super) function: unsafe extern "C" fn(
        *mut raw::RedisModuleCtx,
        *mut *mut raw::RedisModuleString,
        c_int,
    ) -> c_int,
    pub(super) flags: &'static CStr,
    pub(super) categories: &'static CStr,
    /// How its keys are used.
    pub(super) usage: u32,
}

const RW: u32 = raw::REDISMODULE_CMD_KEY_RW;
const ACCESS: u32 = raw::REDISMODULE_CMD_KEY_ACCESS;
const UPDATE: u32 = raw::REDISMODULE_CMD_KEY_UPDATE;
const DELETE: u32 = raw::REDISMODULE_CMD_KEY_DELETE;
const RO: u32 = raw::REDISMODULE_CMD_KEY_RO;

pub(super) static COMMANDS: [Row; 12] = [
    Row {
        command: Command::Acquire,
        summary: c"Takes a lock, or waits for it in the server's queue; replies with the fence.",
        complexity:
            c"O(1), O(log N) with N shared holders, or to queue with N waiters on the server",
        function: entry_point::acquire,
        flags: c"write deny-oom fast blocking",
        categories: c"write fast blocking",
        usage: RW | ACCESS | UPDATE,
    },
    Row {
        command: Command::Renew,
        summary: c"Sets the lease of a hold, from now.",
        complexity: c"O(1)",
        function: entry_point::renew,
        flags: c"write fast",
        categories: c"write fast",
        usage: RW | ACCESS | UPDATE,
    },
    Row {
        command: Command::Release,
        summary: c"Releases a lock; the next waiter holds it within the same command.",
        complexity: c"O(1), O(log N) to hand the lock over with N waiters on the server",
        function: entry_point::release,
        flags: c"write fast",
        categories: c"write fast",
        usage: RW | ACCESS | UPDATE,
    },
    Row {
        command: Command::Downgrade,
        summary: c"Turns an exclusive hold into a shared one, and lets readers in.",
        complexity: c"O(1), O(M log N) to let M waiters in with N waiters on the server",
        function: entry_point::downgrade,
        flags: c"write fast",
        categories: c"write fast",
        usage: RW | ACCESS | UPDATE,
    },
    Row {
        command: Command::AcquireAll,
        summary: c"Takes several locks, all or none of them; replies with their one fence.",
        complexity: c"O(K) for K keys, O(K log N) to queue with N waiters on the server",
        function: entry_point::acquire_all,
        flags: c"write deny-oom blocking getkeys-api",
        categories: c"write slow blocking",
        usage: RW | ACCESS | UPDATE,
    },
    Row {
        command: Command::RenewAll,
        summary: c"Sets the leases of several holds; replies with how many there are.",
        complexity: c"O(K) for K keys",
        function: entry_point::renew_all,
        flags: c"write getkeys-api",
        categories: c"write slow",
        usage: RW | ACCESS | UPDATE,
    },
    Row {
        command: Command::ReleaseAll,
        summary: c"Releases several locks; replies with how many were held.",
        complexity: c"O(K) for K keys, O(K log N) to hand them over with N waiters on the server",
        function: entry_point::release_all,
        flags: c"write getkeys-api",
        categories: c"write slow",
        usage: RW | ACCESS | UPDATE,
    },
    Row {
        command: Command::Cancel,
        summary: c"Withdraws a queued request.",
        complexity: c"O(log N) with N waiters on the server",
        function: entry_point::cancel,
        flags: c"write fast",
        categories: c"write fast",
        usage: RW | UPDATE,
    },
    Row {
        command: Command::Force,
        summary: c"Ends every hold of a lock, of any owner.",
        complexity:
            c"O(H) with H holders, O(log N) to hand the lock over with N waiters on the server",
        function: entry_point::force,
        flags: c"write",
        categories: c"write slow dangerous",
        usage: RW | ACCESS | DELETE,
    },
    Row {
        command: Command::Info,
        summary: c"Shows who holds a lock and who waits for it.",
        complexity: c"O(H+N) with H holders and N waiters shown, at most 100 of these",
        function: entry_point::info,
        flags: c"readonly",
        categories: c"read slow",
        usage: RO | ACCESS,
    },
    Row {
        command: Command::List,
        summary: c"Lists the locks with the most waiters.",
        complexity: c"O(N) with the number of locks shown, at most 1000",
        function: entry_point::list,
        flags: c"readonly",
        categories: c"read slow dangerous",
        usage: 0,
    },
    Row {
        command: Command::Help,
        summary: c"Lists the commands of this module.",
        complexity: c"O(1)",
        function: entry_point::help,
        flags: c"allow-loading allow-stale fast",
        categories: c"fast",
        usage: 0,
    },
];
