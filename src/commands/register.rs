//! Tells the server of the commands: their functions, and what its clients and
//! access rules have to know of them.

use std::{ffi::CStr, os::raw::c_int, ptr};

use super::table::{Argument, COMMANDS, Command, Keys, Kind};
use crate::api::{Context, raw};

/// The version of the module that the commands came with.
const SINCE: &CStr = c"0.1.0";

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
    // Where keys are counted, only the key specification can say where they are.
    let position = c_int::from(matches!(command.keys, Keys::First(_)));
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
    // What the descriptions point to, kept until the server has copied it.
    let mut nested = Vec::new();
    let mut arguments = describe_all(command.arguments, &mut nested);
    let mut key_specs = [key_spec(command.keys), NO_KEY_SPEC];
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: command.c_summary.as_ptr(),
        complexity: command.complexity.as_ptr(),
        since: SINCE.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: command.arity,
        key_specs: if command.keys != Keys::None {
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

type Described = Vec<raw::RedisModuleCommandArg>;

/// The descriptions of arguments, and those of the options that go with them,
/// which are `nested` and have to be kept as long.
fn describe_all(arguments: &[Argument], nested: &mut Vec<Described>) -> Described {
    let described = arguments.iter().map(|it| describe_one(it, nested));
    let mut described: Described = described.collect();
    described.push(NO_ARGUMENT);
    described
}

fn describe_one(argument: &Argument, nested: &mut Vec<Described>) -> raw::RedisModuleCommandArg {
    let optional = raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int;
    let simple = raw::RedisModuleCommandArg {
        name: argument.name.as_ptr(),
        type_: kind(argument.kind),
        key_spec_index: match argument.kind {
            Kind::Key | Kind::Keys => 0,
            Kind::Text | Kind::Number | Kind::Token | Kind::OneOf => -1,
        },
        token: argument.token.map_or(ptr::null(), CStr::as_ptr),
        flags: match (argument.kind, argument.token) {
            (Kind::Keys, _) => raw::REDISMODULE_CMD_ARG_MULTIPLE as c_int,
            (_, Some(_)) => optional,
            (_, None) => 0,
        },
        ..NO_ARGUMENT
    };
    if argument.with.is_empty() {
        return simple;
    }
    let mut block = describe_all(argument.with, nested);
    let type_ = if argument.kind == Kind::OneOf {
        // One of them it has to be, once this is given.
        block.iter_mut().for_each(|it| it.flags = 0);
        kind(Kind::OneOf)
    } else {
        // The option itself comes first in a block of its own.
        block.insert(0, raw::RedisModuleCommandArg { flags: 0, ..simple });
        raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK
    };
    let subargs = block.as_mut_ptr();
    nested.push(block);
    raw::RedisModuleCommandArg {
        name: argument.name.as_ptr(),
        type_,
        flags: optional,
        subargs,
        ..NO_ARGUMENT
    }
}

const fn kind(kind: Kind) -> raw::RedisModuleCommandArgType {
    match kind {
        Kind::Key | Kind::Keys => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
        Kind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        Kind::Number => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        Kind::Token => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        Kind::OneOf => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
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

/// Where the keys of a command are.
fn key_spec(keys: Keys) -> raw::RedisModuleCommandKeySpec {
    let spec = |flags: u32, pos| raw::RedisModuleCommandKeySpec {
        flags: flags.into(),
        begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX,
        bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
            index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos },
        },
        find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE,
        ..NO_KEY_SPEC
    };
    match keys {
        Keys::None => NO_KEY_SPEC,
        Keys::First(usage) => spec(usage, 1),
        Keys::Counted { at, usage } => raw::RedisModuleCommandKeySpec {
            find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM,
            fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
                keynum: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                    keynumidx: 0,
                    firstkey: 1,
                    keystep: 1,
                },
            },
            ..spec(usage, at)
        },
    }
}
