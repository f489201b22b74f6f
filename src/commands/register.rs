//! Registers the commands with the server: their functions, and what clients
//! and access rules must know of them.

use std::{
    ffi::{CStr, CString},
    os::raw::{c_char, c_int},
    ptr,
};

use rlock_core::syntax::{Command, Opt, Positional, Value};

use super::table::{COMMANDS, Row};
use crate::api::{Context, raw};

/// The version of the module that introduced the commands.
const SINCE: &CStr = c"0.1.0";

/// Registers all commands.
///
/// # Errors
///
/// The name of the command that the server did not accept.
pub(crate) fn register(ctx: &Context) -> Result<(), String> {
    COMMANDS.iter().try_for_each(|row| {
        let name = row.command.name().to_ascii_lowercase();
        let registered = CString::new(name.as_str()).ok().and_then(|name| {
            create(ctx, row, &name)?;
            describe(ctx, row, &name)
        });
        registered.ok_or_else(|| format!("the server did not accept the command {name}"))
    })
}

fn create(ctx: &Context, row: &Row, name: &CStr) -> Option<()> {
    // Where keys are counted, only the key specification can say where they are.
    let position = c_int::from(row.command.positionals().first() == Some(&Positional::Key));
    // SAFETY: the server copies name and flags; the function lives as long as
    // the module.
    let status = unsafe {
        raw::create_command(
            ctx.raw(),
            name.as_ptr(),
            Some(row.function),
            row.flags.as_ptr(),
            position,
            position,
            position,
        )
    };
    (status == raw::REDISMODULE_OK as c_int).then_some(())
}

fn describe(ctx: &Context, row: &Row, name: &CStr) -> Option<()> {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut kept = Kept::default();
    let positionals = row.command.positionals();
    let options = row.command.options();
    let options = options.filter(|it| it.is_independent(row.command));
    let mut arguments = Vec::new();
    for positional in positionals {
        arguments.push(kept.positional(*positional)?);
    }
    for option in options {
        arguments.push(kept.option(row.command, option)?);
    }
    let least = c_int::try_from(1 + positionals.len()).ok()?;
    let is_open = positionals.len() < arguments.len() || positionals.contains(&Positional::Keys);
    let key_spec = key_spec(row);
    let mut key_specs = [key_spec.unwrap_or(NO_KEY_SPEC), NO_KEY_SPEC];
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: row.summary.as_ptr(),
        complexity: row.complexity.as_ptr(),
        since: SINCE.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        // The smallest number of words, negative; or their exact number.
        arity: if is_open { -least } else { least },
        key_specs: key_spec.map_or(ptr::null_mut(), |_| key_specs.as_mut_ptr()),
        args: kept.list(arguments),
    };
    // SAFETY: the lists are terminated as the API requires, and the server
    // copies all of them.
    unsafe {
        let handle = raw::get_command(ctx.raw(), name.as_ptr());
        if handle.is_null() || raw::set_command_info(handle, &raw const info) != 0 {
            return None;
        }
        // Redis 7.0 has no categories for the commands of modules.
        let Some(set_categories) = raw::RedisModule_SetCommandACLCategories else {
            return Some(());
        };
        (set_categories(handle, row.categories.as_ptr()) == 0).then_some(())
    }
}

/// The memory that descriptions point to, kept until the server has copied it.
#[derive(Default)]
struct Kept {
    texts: Vec<CString>,
    lists: Vec<Vec<raw::RedisModuleCommandArg>>,
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
const OPTIONAL: c_int = raw::REDISMODULE_CMD_ARG_OPTIONAL as c_int;

impl Kept {
    fn text(&mut self, text: &str) -> Option<*const c_char> {
        let text = CString::new(text).ok()?;
        let pointer = text.as_ptr();
        self.texts.push(text);
        Some(pointer)
    }

    fn list(
        &mut self,
        mut list: Vec<raw::RedisModuleCommandArg>,
    ) -> *mut raw::RedisModuleCommandArg {
        if list.is_empty() {
            return ptr::null_mut();
        }
        list.push(NO_ARGUMENT);
        let pointer = list.as_mut_ptr();
        self.lists.push(list);
        pointer
    }

    fn positional(&mut self, positional: Positional) -> Option<raw::RedisModuleCommandArg> {
        let (type_, key_spec_index) = match positional {
            Positional::Key | Positional::Keys => {
                (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, 0)
            }
            Positional::Owner => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
                -1,
            ),
            Positional::LeaseMs | Positional::NumKeys => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                -1,
            ),
        };
        Some(raw::RedisModuleCommandArg {
            name: self.text(positional.name())?,
            type_,
            key_spec_index,
            flags: match positional {
                Positional::Keys => raw::REDISMODULE_CMD_ARG_MULTIPLE as c_int,
                _ => 0,
            },
            ..NO_ARGUMENT
        })
    }

    /// An option, in a block with its dependents and its alternatives.
    fn option(&mut self, command: Command, option: Opt) -> Option<raw::RedisModuleCommandArg> {
        let own = self.own(option)?;
        let (mut block, mut choice) = (vec![own], vec![own]);
        let mut choice_name = option.spec().name.to_owned();
        for nested in option.needed_by(command) {
            block.push(self.option(command, nested)?);
        }
        for other in option.excluded_by(command) {
            choice.push(self.own(other)?);
            choice_name = format!("{choice_name}-or-{}", other.spec().name);
        }
        let simple = raw::RedisModuleCommandArg {
            flags: OPTIONAL,
            ..own
        };
        let (type_, name, subargs) = if choice.len() > 1 {
            let type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF;
            (type_, self.text(&choice_name)?, self.list(choice))
        } else if block.len() > 1 {
            let type_ = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK;
            (type_, own.name, self.list(block))
        } else {
            return Some(simple);
        };
        Some(raw::RedisModuleCommandArg {
            name,
            type_,
            flags: OPTIONAL,
            subargs,
            ..NO_ARGUMENT
        })
    }

    /// An option without its dependents.
    fn own(&mut self, option: Opt) -> Option<raw::RedisModuleCommandArg> {
        let spec = option.spec();
        Some(raw::RedisModuleCommandArg {
            name: self.text(spec.name)?,
            token: self.text(spec.token)?,
            type_: match spec.value {
                Value::None => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
                Value::Number { .. } => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                Value::Channel | Value::Bytes => {
                    raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING
                }
            },
            ..NO_ARGUMENT
        })
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

/// The position of a command's keys, if it has any.
fn key_spec(row: &Row) -> Option<raw::RedisModuleCommandKeySpec> {
    let spec = |pos| raw::RedisModuleCommandKeySpec {
        flags: row.usage.into(),
        begin_search_type: raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX,
        bs: raw::RedisModuleCommandKeySpec__bindgen_ty_1 {
            index: raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos },
        },
        find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE,
        ..NO_KEY_SPEC
    };
    if let Some(at) = row.command.num_keys_at() {
        return Some(raw::RedisModuleCommandKeySpec {
            find_keys_type: raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM,
            fk: raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
                keynum: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                    keynumidx: 0,
                    firstkey: 1,
                    keystep: 1,
                },
            },
            ..spec(c_int::try_from(at).ok()?)
        });
    }
    (row.command.positionals().first() == Some(&Positional::Key)).then(|| spec(1))
}
