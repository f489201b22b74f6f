//! The settings, which the server writes into: from `redis.conf` and `CONFIG
//! SET` as `rlock.<name>`, or from pairs on the `loadmodule` line.

use std::{
    cell::RefCell,
    ffi::CString,
    os::raw::{c_char, c_int, c_longlong, c_void},
    ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering},
};

use lazy_static::lazy_static;

use crate::{
    api::{Context, MainThread, OwnedText, Text, raw},
    args::{Shown, decimal},
};

/// The most bytes of `channel-prefix`.
const CHANNEL_PREFIX_LEN_MAX: usize = 256;

/// A setting that is a whole number.
pub(crate) struct Number {
    name: &'static str,
    default: i64,
    min: i64,
    max: i64,
    value: AtomicI64,
}

impl Number {
    const fn new(name: &'static str, default: i64, min: i64, max: i64) -> Self {
        Self {
            name,
            default,
            min,
            max,
            value: AtomicI64::new(default),
        }
    }

    pub(crate) fn get(&self) -> u64 {
        u64::try_from(self.value.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// What kind of message tells that a lock is free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnlockMessage {
    Publish,
    Spublish,
    Both,
    None,
}

const PUBLISH_NAMES: [&str; 4] = ["publish", "spublish", "both", "none"];

/// The settings of this server.
pub(crate) struct Settings {
    /// The upper bound of leases and waits, in milliseconds.
    pub(crate) max_lease_ms: Number,
    /// The most requests that are blocked or queued.
    pub(crate) max_waiters: Number,
    /// The most holds and queued requests with `NOTIFY`.
    pub(crate) max_watches: Number,
    /// The hand-offs in a row after which others get a chance.
    pub(crate) yield_after: Number,
    /// How long after a start nothing is granted, in milliseconds.
    pub(crate) startup_grace_ms: Number,
    deadlock_detection: AtomicBool,
    publish: AtomicI32,
}

lazy_static! {
    static ref SETTINGS: Settings = Settings {
        max_lease_ms: Number::new("max-lease-ms", 86_400_000, 1000, 2_592_000_000),
        max_waiters: Number::new("max-waiters", 10_000, 1, 1_000_000),
        max_watches: Number::new("max-watches", 100_000, 0, 10_000_000),
        yield_after: Number::new("yield-after", 64, 0, 1_000_000),
        startup_grace_ms: Number::new("startup-grace-ms", 0, 0, 86_400_000),
        deadlock_detection: AtomicBool::new(true),
        publish: AtomicI32::new(0),
    };
}

/// The first part of the unlock channel: as bytes, and as `CONFIG GET` wants it.
static CHANNEL_PREFIX: MainThread<RefCell<Option<OwnedText>>> = MainThread::new(RefCell::new(None));
const CHANNEL_PREFIX_DEFAULT: &str = "redisson_lock__channel";

pub(crate) fn settings() -> &'static Settings {
    &SETTINGS
}

impl Settings {
    pub(crate) fn unlock_message(&self) -> UnlockMessage {
        match self.publish.load(Ordering::Relaxed) {
            0 => UnlockMessage::Publish,
            1 => UnlockMessage::Spublish,
            2 => UnlockMessage::Both,
            _ => UnlockMessage::None,
        }
    }

    /// Reads the first part of the unlock channel.
    pub(crate) fn with_channel_prefix<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        match CHANNEL_PREFIX.get().borrow().as_ref() {
            Some(prefix) => read(prefix.bytes()),
            None => read(CHANNEL_PREFIX_DEFAULT.as_bytes()),
        }
    }

    /// Whether a request that would close a cycle of waiters is refused.
    pub(crate) fn detects_deadlocks(&self) -> bool {
        self.deadlock_detection.load(Ordering::Relaxed)
    }

    const fn numbers(&self) -> [&Number; 5] {
        [
            &self.max_lease_ms,
            &self.max_waiters,
            &self.max_watches,
            &self.yield_after,
            &self.startup_grace_ms,
        ]
    }
}

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

fn set_from_line(name: &[u8], value: &Text) -> Result<(), String> {
    if let Some(number) = settings()
        .numbers()
        .into_iter()
        .find(|it| it.name.as_bytes() == name)
    {
        let new = decimal(value.bytes()).and_then(|new| i64::try_from(new).ok());
        let new = new
            .filter(|new| (number.min..=number.max).contains(new))
            .ok_or_else(|| {
                let (shown, min, max) = (Shown(value.bytes()), number.min, number.max);
                format!(
                    "{} is {shown}, must be a whole number from {min} to {max}",
                    number.name
                )
            })?;
        number.value.store(new, Ordering::Relaxed);
        return Ok(());
    }
    match name {
        b"channel-prefix" => set_prefix(value),
        b"deadlock-detection" => {
            let detects = match value.bytes() {
                b"yes" => true,
                b"no" => false,
                other => {
                    let shown = Shown(other);
                    return Err(format!("deadlock-detection is {shown}, must be yes or no"));
                }
            };
            let setting = &settings().deadlock_detection;
            setting.store(detects, Ordering::Relaxed);
            Ok(())
        }
        b"publish" => {
            let kind = PUBLISH_NAMES
                .iter()
                .position(|it| it.as_bytes() == value.bytes());
            let kind = kind
                .and_then(|kind| i32::try_from(kind).ok())
                .ok_or_else(|| {
                    format!(
                        "publish is {}, must be one of {}",
                        Shown(value.bytes()),
                        PUBLISH_NAMES.join(", ")
                    )
                })?;
            settings().publish.store(kind, Ordering::Relaxed);
            Ok(())
        }
        _ => Err(format!(
            "{} on the loadmodule line is no setting of this module",
            Shown(name)
        )),
    }
}

fn set_prefix(value: &Text) -> Result<(), String> {
    let len = value.bytes().len();
    if !(1..=CHANNEL_PREFIX_LEN_MAX).contains(&len) {
        return Err(format!(
            "channel-prefix has {len} bytes, must have 1 to {CHANNEL_PREFIX_LEN_MAX}"
        ));
    }
    *CHANNEL_PREFIX.get().borrow_mut() = Some(OwnedText::new(value.bytes()));
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
    let values: [c_int; 4] = [0, 1, 2, 3];
    // SAFETY: the server copies names and values, four of each.
    let status = unsafe {
        raw::register_enum_config(
            ctx.raw(),
            c"publish".as_ptr(),
            0,
            raw::REDISMODULE_CONFIG_DEFAULT,
            pointers.as_mut_ptr(),
            values.as_ptr(),
            4,
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
    let mut prefix = CHANNEL_PREFIX.get().borrow_mut();
    prefix
        .get_or_insert_with(|| OwnedText::new(CHANNEL_PREFIX_DEFAULT.as_bytes()))
        .raw()
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
