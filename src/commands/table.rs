//! The table of commands: how each is called, what it is for, and what the
//! server, its clients and its access rules have to know of it.

use std::{ffi::CStr, os::raw::c_int};

use super::entry_point;
use crate::api::raw;

/// One command.
pub(super) struct Command {
    pub(super) name: &'static CStr,
    pub(super) syntax: &'static str,
    pub(super) summary: &'static str,
    pub(super) c_summary: &'static CStr,
    pub(super) complexity: &'static CStr,
    pub(super) function: unsafe extern "C" fn(
        *mut raw::RedisModuleCtx,
        *mut *mut raw::RedisModuleString,
        c_int,
    ) -> c_int,
    pub(super) flags: &'static CStr,
    pub(super) categories: &'static CStr,
    /// The least number of words, negative; or their exact number.
    pub(super) arity: c_int,
    pub(super) keys: Keys,
    pub(super) arguments: &'static [Argument],
}

/// Where the keys are among the words, and how they are used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    None,
    /// The first argument is the key.
    First(u32),
    /// The word at `at` is the number of keys that follow it.
    Counted {
        at: c_int,
        usage: u32,
    },
}

/// One argument, for `COMMAND DOCS` and the hints of `redis-cli`.
#[derive(Clone, Copy)]
pub(super) struct Argument {
    pub(super) name: &'static CStr,
    pub(super) kind: Kind,
    pub(super) token: Option<&'static CStr>,
    /// Those that can only be given with this one.
    pub(super) with: &'static [Self],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Key,
    Keys,
    Text,
    Number,
    Token,
    /// One of those in `with`.
    OneOf,
}

const fn argument(name: &'static CStr, kind: Kind) -> Argument {
    Argument {
        name,
        kind,
        token: None,
        with: &[],
    }
}

const fn option(name: &'static CStr, kind: Kind, token: &'static CStr) -> Argument {
    Argument {
        token: Some(token),
        ..argument(name, kind)
    }
}

const KEY: Argument = argument(c"key", Kind::Key);
const OWNER: Argument = argument(c"owner", Kind::Text);
const LEASE: Argument = argument(c"lease-ms", Kind::Number);
const NUMKEYS: Argument = argument(c"numkeys", Kind::Number);
const KEYS: Argument = argument(c"key", Kind::Keys);
const PERMITS: Argument = option(c"permits", Kind::Number, c"PERMITS");
const LIMIT: Argument = Argument {
    with: &[PERMITS],
    ..option(c"limit", Kind::Number, c"LIMIT")
};
const SHARED: Argument = Argument {
    with: &[LIMIT],
    ..option(c"shared", Kind::Token, c"SHARED")
};
const REENTER: Argument = option(c"reenter", Kind::Token, c"REENTER");
const KEEP: Argument = option(c"keep-ms", Kind::Number, c"KEEP");
const WAIT: Argument = Argument {
    with: &[KEEP],
    ..option(c"wait-ms", Kind::Number, c"WAIT")
};
const NOTIFY: Argument = Argument {
    with: &[
        option(c"channel", Kind::Text, c"NOTIFY"),
        option(c"shard-channel", Kind::Text, c"SNOTIFY"),
    ],
    ..argument(c"listener", Kind::OneOf)
};
const FENCE: Argument = option(c"fence", Kind::Number, c"FENCE");
const BIND: Argument = option(c"grace-ms", Kind::Number, c"BIND");
const QUEUE: Argument = option(c"queue", Kind::Token, c"QUEUE");
const ALL: Argument = option(c"all", Kind::Token, c"ALL");
const COUNT: Argument = option(c"count", Kind::Number, c"COUNT");

const RW: u32 = raw::REDISMODULE_CMD_KEY_RW;
const ACCESS: u32 = raw::REDISMODULE_CMD_KEY_ACCESS;
const UPDATE: u32 = raw::REDISMODULE_CMD_KEY_UPDATE;
const DELETE: u32 = raw::REDISMODULE_CMD_KEY_DELETE;
const RO: u32 = raw::REDISMODULE_CMD_KEY_RO;

/// A text for both sides.
macro_rules! summary {
    ($text:literal) => {
        ($text, {
            match CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
                Ok(text) => text,
                Err(_) => c"",
            }
        })
    };
}

const ACQUIRE_SUMMARY: (&str, &CStr) =
    summary!("Takes a lock, or waits for it in the server's queue; replies with the fence.");
const RENEW_SUMMARY: (&str, &CStr) = summary!("Sets the lease of a hold anew, from now.");
const RELEASE_SUMMARY: (&str, &CStr) =
    summary!("Gives a lock back; the next waiter holds it within the same command.");
const DOWNGRADE_SUMMARY: (&str, &CStr) =
    summary!("Turns an exclusive hold into a shared one, and lets readers in.");
const MACQUIRE_SUMMARY: (&str, &CStr) =
    summary!("Takes several locks, all or none of them; replies with their one fence.");
const MRENEW_SUMMARY: (&str, &CStr) =
    summary!("Sets the leases of several holds anew; replies with how many there are.");
const MRELEASE_SUMMARY: (&str, &CStr) =
    summary!("Gives several locks back; replies with how many were held.");
const LIST_SUMMARY: (&str, &CStr) = summary!("Lists the locks with the most waiters.");
const CANCEL_SUMMARY: (&str, &CStr) = summary!("Withdraws a queued request.");
const FORCE_SUMMARY: (&str, &CStr) = summary!("Ends every hold of a lock, of any owner.");
const INFO_SUMMARY: (&str, &CStr) = summary!("Shows who holds a lock and who waits for it.");
const HELP_SUMMARY: (&str, &CStr) = summary!("Lists the commands of this module.");

pub(super) static COMMANDS: [Command; 12] = [
    Command {
        name: c"rlock.acquire",
        syntax: "RLOCK.ACQUIRE key owner lease-ms [SHARED [LIMIT n [PERMITS k]]] [REENTER] \
                 [WAIT wait-ms [KEEP grace-ms]] [NOTIFY channel | SNOTIFY channel] \
                 [BIND grace-ms]",
        summary: ACQUIRE_SUMMARY.0,
        c_summary: ACQUIRE_SUMMARY.1,
        complexity:
            c"O(1), O(log N) with N shared holders, or to queue with N waiters on the server",
        function: entry_point::acquire,
        flags: c"write deny-oom fast blocking",
        categories: c"write fast blocking",
        arity: -4,
        keys: Keys::First(RW | ACCESS | UPDATE),
        arguments: &[KEY, OWNER, LEASE, SHARED, REENTER, WAIT, NOTIFY, BIND],
    },
    Command {
        name: c"rlock.renew",
        syntax: "RLOCK.RENEW key owner lease-ms [FENCE n] [NOTIFY channel | SNOTIFY channel] \
                 [BIND grace-ms]",
        summary: RENEW_SUMMARY.0,
        c_summary: RENEW_SUMMARY.1,
        complexity: c"O(1)",
        function: entry_point::renew,
        flags: c"write fast",
        categories: c"write fast",
        arity: -4,
        keys: Keys::First(RW | ACCESS | UPDATE),
        arguments: &[KEY, OWNER, LEASE, FENCE, NOTIFY, BIND],
    },
    Command {
        name: c"rlock.release",
        syntax: "RLOCK.RELEASE key owner [ALL] [FENCE n]",
        summary: RELEASE_SUMMARY.0,
        c_summary: RELEASE_SUMMARY.1,
        complexity: c"O(1), O(log N) to hand the lock over with N waiters on the server",
        function: entry_point::release,
        flags: c"write fast",
        categories: c"write fast",
        arity: -3,
        keys: Keys::First(RW | ACCESS | UPDATE),
        arguments: &[KEY, OWNER, ALL, FENCE],
    },
    Command {
        name: c"rlock.downgrade",
        syntax: "RLOCK.DOWNGRADE key owner",
        summary: DOWNGRADE_SUMMARY.0,
        c_summary: DOWNGRADE_SUMMARY.1,
        complexity: c"O(1), O(M log N) to let M waiters in with N waiters on the server",
        function: entry_point::downgrade,
        flags: c"write fast",
        categories: c"write fast",
        arity: 3,
        keys: Keys::First(RW | ACCESS | UPDATE),
        arguments: &[KEY, OWNER],
    },
    Command {
        name: c"rlock.macquire",
        syntax: "RLOCK.MACQUIRE owner lease-ms numkeys key [key ...] [REENTER] \
                 [WAIT wait-ms [KEEP grace-ms]] [NOTIFY channel | SNOTIFY channel]",
        summary: MACQUIRE_SUMMARY.0,
        c_summary: MACQUIRE_SUMMARY.1,
        complexity: c"O(K) for K keys, O(K log N) to queue with N waiters on the server",
        function: entry_point::acquire_all,
        flags: c"write deny-oom blocking getkeys-api",
        categories: c"write slow blocking",
        arity: -5,
        keys: Keys::Counted {
            at: 3,
            usage: RW | ACCESS | UPDATE,
        },
        arguments: &[OWNER, LEASE, NUMKEYS, KEYS, REENTER, WAIT, NOTIFY],
    },
    Command {
        name: c"rlock.mrenew",
        syntax: "RLOCK.MRENEW owner lease-ms numkeys key [key ...] \
                 [NOTIFY channel | SNOTIFY channel]",
        summary: MRENEW_SUMMARY.0,
        c_summary: MRENEW_SUMMARY.1,
        complexity: c"O(K) for K keys",
        function: entry_point::renew_all,
        flags: c"write getkeys-api",
        categories: c"write slow",
        arity: -5,
        keys: Keys::Counted {
            at: 3,
            usage: RW | ACCESS | UPDATE,
        },
        arguments: &[OWNER, LEASE, NUMKEYS, KEYS, NOTIFY],
    },
    Command {
        name: c"rlock.mrelease",
        syntax: "RLOCK.MRELEASE owner numkeys key [key ...] [ALL] [FENCE n]",
        summary: MRELEASE_SUMMARY.0,
        c_summary: MRELEASE_SUMMARY.1,
        complexity: c"O(K) for K keys, O(K log N) to hand them over with N waiters on the server",
        function: entry_point::release_all,
        flags: c"write getkeys-api",
        categories: c"write slow",
        arity: -4,
        keys: Keys::Counted {
            at: 2,
            usage: RW | ACCESS | UPDATE,
        },
        arguments: &[OWNER, NUMKEYS, KEYS, ALL, FENCE],
    },
    Command {
        name: c"rlock.cancel",
        syntax: "RLOCK.CANCEL key owner",
        summary: CANCEL_SUMMARY.0,
        c_summary: CANCEL_SUMMARY.1,
        complexity: c"O(log N) with N waiters on the server",
        function: entry_point::cancel,
        flags: c"write fast",
        categories: c"write fast",
        arity: 3,
        keys: Keys::First(RW | UPDATE),
        arguments: &[KEY, OWNER],
    },
    Command {
        name: c"rlock.force",
        syntax: "RLOCK.FORCE key [QUEUE]",
        summary: FORCE_SUMMARY.0,
        c_summary: FORCE_SUMMARY.1,
        complexity:
            c"O(H) with H holders, O(log N) to hand the lock over with N waiters on the server",
        function: entry_point::force,
        flags: c"write",
        categories: c"write slow dangerous",
        arity: -2,
        keys: Keys::First(RW | ACCESS | DELETE),
        arguments: &[KEY, QUEUE],
    },
    Command {
        name: c"rlock.info",
        syntax: "RLOCK.INFO key",
        summary: INFO_SUMMARY.0,
        c_summary: INFO_SUMMARY.1,
        complexity: c"O(H+N) with H holders and N waiters shown, at most 100 of these",
        function: entry_point::info,
        flags: c"readonly",
        categories: c"read slow",
        arity: 2,
        keys: Keys::First(RO | ACCESS),
        arguments: &[KEY],
    },
    Command {
        name: c"rlock.list",
        syntax: "RLOCK.LIST [COUNT n]",
        summary: LIST_SUMMARY.0,
        c_summary: LIST_SUMMARY.1,
        complexity: c"O(N) with the number of locks shown, at most 1000",
        function: entry_point::list,
        flags: c"readonly",
        categories: c"read slow dangerous",
        arity: -1,
        keys: Keys::None,
        arguments: &[COUNT],
    },
    Command {
        name: c"rlock.help",
        syntax: "RLOCK.HELP",
        summary: HELP_SUMMARY.0,
        c_summary: HELP_SUMMARY.1,
        complexity: c"O(1)",
        function: entry_point::help,
        flags: c"allow-loading allow-stale fast",
        categories: c"fast",
        arity: 1,
        keys: Keys::None,
        arguments: &[],
    },
];
