//! How the server reads and writes the settings: from `redis.conf` and `CONFIG
//! SET` as `rlock.<name>`, or from pairs on the `loadmodule` line.

use std::{
    ffi::CString,
    os::raw::{c_char, c_int, c_longlong, c_void},
    ptr,
    sync::atomic::Ordering,
};

use rlock_core::syntax::Shown;

use crate::{
    api::{Context, Text, raw},
    settings::{
        CHANNEL_PREFIX_DEFAULT, Number, PUBLISH_NAMES, set_from_line, set_prefix, settings,
    },
};

/// Registers all settings with the server and reads what its configuration
/// file says of them. What the `loadmodule` line says comes after that.
///
/// # Errors
///
/// What the server or the line is wrong about, in words.
pub(crate) fn load(ctx: &Context, arguments: &[Text]) -> Result<(), String> {
    for number in settings().numbers() {
        register_number(ctx, number)?;
    }
    register_prefix(ctx)?;
    register_publish(ctx)?;
    register_deadlock_detection(ctx)?;
    // SAFETY: the context is that of loading, after all are registered.
    let status = unsafe { raw::load_configs(ctx.raw()) };
    ok(status, "a setting in the configuration file")?;
    for pair in arguments.chunks(2) {
        let name = pair.first().map(Text::bytes).unwrap_or_default();
        let Some(value) = pair.get(1) else {
            return Err(format!(
                "setting {} on the loadmodule line needs a value",
                Shown(name)
            ));
        };
        set_from_line(name, value)?;
    }
    Ok(())
}

fn register_number(ctx: &Context, number: &'static Number) -> Result<(), String> {
    let name = CString::new(number.name).unwrap_or_default();
    // SAFETY: the data outlives the server; the server copies the name.
    let status = unsafe {
        raw::register_numeric_config(
            ctx.raw(),
            name.as_ptr(),
            number.default,
            raw::REDISMODULE_CONFIG_DEFAULT,
            number.min,
            number.max,
            Some(get_number),
            Some(set_number),
            None,
            ptr::from_ref(number).cast_mut().cast(),
        )
    };
    ok(status, number.name)
}

fn register_prefix(ctx: &Context) -> Result<(), String> {
    let default = CString::new(CHANNEL_PREFIX_DEFAULT).unwrap_or_default();
    // SAFETY: the server copies both texts.
    let status = unsafe {
        raw::register_string_config(
            ctx.raw(),
            c"channel-prefix".as_ptr(),
            default.as_ptr(),
            raw::REDISMODULE_CONFIG_DEFAULT,
            Some(get_prefix),
            Some(set_prefix_from_server),
            None,
            ptr::null_mut(),
        )
    };
    ok(status, "channel-prefix")
}

fn register_publish(ctx: &Context) -> Result<(), String> {
    let names = PUBLISH_NAMES.map(|name| CString::new(name).unwrap_or_default());
    let mut pointers = names.each_ref().map(|name| name.as_ptr());
    let values: [c_int; 5] = [0, 1, 2, 3, 4];
    // SAFETY: the server copies names and values, five of each.
    let status = unsafe {
        raw::register_enum_config(
            ctx.raw(),
            c"publish".as_ptr(),
            0,
            raw::REDISMODULE_CONFIG_DEFAULT,
            pointers.as_mut_ptr(),
            values.as_ptr(),
            5,
            Some(get_publish),
            Some(set_publish),
            None,
            ptr::null_mut(),
        )
    };
    ok(status, "publish")
}

fn register_deadlock_detection(ctx: &Context) -> Result<(), String> {
    // SAFETY: the server copies the name.
    let status = unsafe {
        raw::register_bool_config(
            ctx.raw(),
            c"deadlock-detection".as_ptr(),
            1,
            raw::REDISMODULE_CONFIG_DEFAULT,
            Some(get_deadlock_detection),
            Some(set_deadlock_detection),
            None,
            ptr::null_mut(),
        )
    };
    ok(status, "deadlock-detection")
}

fn ok(status: c_int, what: &str) -> Result<(), String> {
    if status == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err(format!("the server did not accept {what}"))
    }
}

unsafe extern "C" fn get_number(_name: *const c_char, data: *mut c_void) -> c_longlong {
    // SAFETY: `register_number` passed a number that lives for ever.
    unsafe { &*data.cast::<Number>() }
        .value
        .load(Ordering::Relaxed)
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: as in `get_number`. The server has checked the range.
    unsafe { &*data.cast::<Number>() }
        .value
        .store(value, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}

/// The server does not free what it is given here, so it is given the string
/// that is kept.
unsafe extern "C" fn get_prefix(
    _name: *const c_char,
    _data: *mut c_void,
) -> *mut raw::RedisModuleString {
    settings().channel_prefix()
}

unsafe extern "C" fn set_prefix_from_server(
    _name: *const c_char,
    value: *mut raw::RedisModuleString,
    _data: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server's string lives as long as this call.
    match set_prefix(&unsafe { Text::from_raw(value) }) {
        Ok(()) => raw::REDISMODULE_OK as c_int,
        Err(text) => {
            // SAFETY: the server offers a place for an error, and frees it.
            unsafe {
                *error = raw::create_string(ptr::null_mut(), text.as_ptr().cast(), text.len());
            }
            raw::REDISMODULE_ERR as c_int
        }
    }
}

unsafe extern "C" fn get_publish(_name: *const c_char, _data: *mut c_void) -> c_int {
    settings().publish.load(Ordering::Relaxed)
}

unsafe extern "C" fn set_publish(
    _name: *const c_char,
    value: c_int,
    _data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    settings().publish.store(value, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn get_deadlock_detection(_name: *const c_char, _data: *mut c_void) -> c_int {
    settings().detects_deadlocks().into()
}

unsafe extern "C" fn set_deadlock_detection(
    _name: *const c_char,
    value: c_int,
    _data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    let setting = &settings().deadlock_detection;
    setting.store(value != 0, Ordering::Relaxed);
    raw::REDISMODULE_OK as c_int
}
