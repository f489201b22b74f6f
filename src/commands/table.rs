//! The table of commands: how each is called, what it is for, and what the
//! server, its clients and its access rules have to know of it.

use std::{ffi::CStr, os::raw::c_int, ptr};

use super::entry_point;
use crate::api::{Context, raw};

/// The version of the module that the commands came with.
const SINCE: &CStr = c"0.1.0";

/// One command.
pub(super) struct Command {
    name: &'static CStr,
    pub(super) syntax: &'static str,
    pub(super) summary: &'static str,
    c_summary: &'static CStr,
    complexity: &'static CStr,
    function: unsafe extern "C" fn(
        *mut raw::RedisModuleCtx,
        *mut *mut raw::RedisModuleString,
        c_int,
    ) -> c_int,
    flags: &'static CStr,
    categories: &'static CStr,
    /// The least number of words, negative; or their exact number.
    arity: c_int,
    /// How the key, the first argument, is used; `None` without a key.
    key: Option<u32>,
    arguments: &'static [Argument],
}

/// One argument, for `COMMAND DOCS` and the hints of `redis-cli`.
#[derive(Clone, Copy)]
struct Argument {
    name: &'static CStr,
    kind: Kind,
    token: Option<&'static CStr>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Key,
    Text,
    Number,
    Token,
}

const KEY: Argument = Argument {
    name: c"key",
    kind: Kind::Key,
    token: None,
};
const OWNER: Argument = Argument {
    name: c"owner",
    kind: Kind::Text,
    token: None,
};
const LEASE: Argument = Argument {
    name: c"lease-ms",
    kind: Kind::Number,
    token: None,
};
const ONCE: Argument = Argument {
    name: c"once",
    kind: Kind::Token,
    token: Some(c"ONCE"),
};
const WAIT: Argument = Argument {
    name: c"wait-ms",
    kind: Kind::Number,
    token: Some(c"WAIT"),
};
const NOTIFY: Argument = Argument {
    name: c"channel",
    kind: Kind::Text,
    token: Some(c"NOTIFY"),
};
const ALL: Argument = Argument {
    name: c"all",
    kind: Kind::Token,
    token: Some(c"ALL"),
};

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
const CANCEL_SUMMARY: (&str, &CStr) = summary!("Withdraws a queued request.");
const FORCE_SUMMARY: (&str, &CStr) = summary!("Ends every hold of a lock, whoever has it.");
const INFO_SUMMARY: (&str, &CStr) = summary!("Shows who holds a lock and who waits for it.");
const HELP_SUMMARY: (&str, &CStr) = summary!("Lists the commands of this module.");

pub(super) static COMMANDS: [Command; 7] = [
    Command {
        name: c"rlock.acquire",
        syntax: "RLOCK.ACQUIRE key owner lease-ms [ONCE] [WAIT wait-ms] [NOTIFY channel]",
        summary: ACQUIRE_SUMMARY.0,
        c_summary: ACQUIRE_SUMMARY.1,
        complexity: c"O(1), O(log N) to queue behind N waiters of the server",
        function: entry_point::acquire,
        flags: c"write deny-oom fast blocking",
        categories: c"write fast blocking",
        arity: -4,
        key: Some(RW | ACCESS | UPDATE),
        arguments: &[KEY, OWNER, LEASE, ONCE, WAIT, NOTIFY],
    },
    Command {
        name: c"rlock.renew",
        syntax: "RLOCK.RENEW key owner lease-ms",
        summary: RENEW_SUMMARY.0,
        c_summary: RENEW_SUMMARY.1,
        complexity: c"O(1)",
        function: entry_point::renew,
        flags: c"write fast",
        categories: c"write fast",
        arity: 4,
        key: Some(RW | ACCESS | UPDATE),
        arguments: &[KEY, OWNER, LEASE],
    },
    Command {
        name: c"rlock.release",
        syntax: "RLOCK.RELEASE key owner [ALL]",
        summary: RELEASE_SUMMARY.0,
        c_summary: RELEASE_SUMMARY.1,
        complexity: c"O(1), O(log N) to hand the lock over with N waiters on the server",
        function: entry_point::release,
        flags: c"write fast",
        categories: c"write fast",
        arity: -3,
        key: Some(RW | ACCESS | UPDATE),
        arguments: &[KEY, OWNER, ALL],
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
        key: Some(RW | UPDATE),
        arguments: &[KEY, OWNER],
    },
    Command {
        name: c"rlock.force",
        syntax: "RLOCK.FORCE key",
        summary: FORCE_SUMMARY.0,
        c_summary: FORCE_SUMMARY.1,
        complexity: c"O(1), O(log N) to hand the lock over with N waiters on the server",
        function: entry_point::force,
        flags: c"write fast",
        categories: c"write fast dangerous",
        arity: 2,
        key: Some(RW | ACCESS | DELETE),
        arguments: &[KEY],
    },
    Command {
        name: c"rlock.info",
        syntax: "RLOCK.INFO key",
        summary: INFO_SUMMARY.0,
        c_summary: INFO_SUMMARY.1,
        complexity: c"O(N) with the number of waiters shown, at most 100",
        function: entry_point::info,
        flags: c"readonly fast",
        categories: c"read fast",
        arity: 2,
        key: Some(RO | ACCESS),
        arguments: &[KEY],
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
        key: None,
        arguments: &[],
    },
];

/// Registers all commands.
///
/// # Errors
///
/// The name of what the server did not accept.
pub(crate) fn register(ctx: &Context) -> Result<(), String> {
    COMMANDS.iter().try_for_each(|command| {
        create(ctx, command)
            .and_then(|()| describe(ctx, command))
            .ok_or_else(|| format!("the server did not accept the command {:?}", command.name))
    })
}

fn create(ctx: &Context, command: &Command) -> Option<()> {
    let position = c_int::from(command.key.is_some());
    // SAFETY: the server copies name and flags; the function lives as long as
    // the module.
    let status = unsafe {
        raw::create_command(
            ctx.raw(),
            command.name.as_ptr(),
            Some(command.function),
            command.flags.as_ptr(),
            position,
            position,
            position,
        )
    };
    (status == raw::REDISMODULE_OK as c_int).then_some(())
}

fn describe(ctx: &Context, command: &Command) -> Option<()> {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut arguments: Vec<_> = command.arguments.iter().map(argument).collect();
    arguments.push(NO_ARGUMENT);
    let mut key_specs = [key_spec(command.key.unwrap_or(0)), NO_KEY_SPEC];
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: command.c_summary.as_ptr(),
        complexity: command.complexity.as_ptr(),
        since: SINCE.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: command.arity,
        key_specs: if command.key.is_some() {
            key_specs.as_mut_ptr()
        } else {
            ptr::null_mut()
        },
        args: if command.arguments.is_empty() {
            ptr::null_mut()
        } else {
            arguments.as_mut_ptr()
        },
    };
    // SAFETY: the lists end as the API wants it, and the server copies all.
    unsafe {
        let handle = raw::get_command(ctx.raw(), command.name.as_ptr());
        if handle.is_null() || raw::set_command_info(handle, &raw const info) != 0 {
            return None;
        }
        // Redis 7.0 has no categories for the commands of modules.
        let Some(set_categories) = raw::RedisModule_SetCommandACLCategories else {
            return Some(());
        };
        (set_categories(handle, command.categories.as_ptr()) == 0).then_some(())
    }
}

const NO_ARGUMENT: raw::RedisModuleCommandArg = raw::RedisModuleCommandArg {
    name: ptr::null(),
    type_: 0,
    key_spec_index: -1,
    token: ptr::null(),
    summary: ptr::null(),
    since: ptr::null(),
    flags: 0,
    deprecated_since: ptr::null(),
    subargs: ptr::null_mut(),
    display_text: ptr::null(),
};

fn argument(argument: &Argument) -> raw::RedisModuleCommandArg {
    let optional = argument.token.is_some();
    raw::RedisModuleCommandArg {
        name: argument.name.as_ptr(),
        type_: match argument.kind {
            Kind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
            Kind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
            Kind::Number => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
            Kind::Token => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        },
        key_spec_index: if argument.kind == Kind::Key { 0 } else { -1 },
        token: argument.token.map_or(ptr::null(), CStr::as_ptr),
        flags: if optional {
            raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int
        } else {
            0
        },
        ..NO_ARGUMENT
    }
}

const NO_KEY_SPEC: raw::RedisModuleCommandKeySpec = raw::RedisModuleCommandKeySpec {
    notes: ptr::null(),
    flags: 0,
    begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INVALID,
    bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
        index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 0 },
    },
    find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_OMITTED,
    fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
        range: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
            lastkey: 0,
            keystep: 1,
            limit: 0,
        },
    },
};

/// One key, the first argument.
fn key_spec(flags: u32) -> raw::RedisModuleCommandKeySpec {
    raw::RedisModuleCommandKeySpec {
        flags: flags.into(),
        begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX,
        bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
            index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 },
        },
        find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE,
        ..NO_KEY_SPEC
    }
}
