//! The values of the settings, and how they are read and written: from
//! `redis.conf` and `CONFIG SET` as `rlock.<name>`, or from pairs on the
//! `loadmodule` line. `rlock_core` defines which settings there are.

use std::{
    cell::RefCell,
    ffi::CString,
    os::raw::{c_char, c_int, c_longlong, c_void},
    ptr,
    sync::atomic::{AtomicI64, Ordering},
};

use lazy_static::lazy_static;
use rlock_core::{
    Setting, SettingKind,
    syntax::{Shown, decimal},
};

use crate::api::{Context, MainThread, OwnedText, Text, raw};

lazy_static! {
    /// The numbers: for a choice the number of the word, for a flag 0 or 1.
    static ref VALUES: [AtomicI64; Setting::ALL.len()] = Setting::ALL.map(|setting| {
        AtomicI64::new(match setting.kind() {
            SettingKind::Number { default, .. } => default.into(),
            SettingKind::Flag { default } => default.into(),
            SettingKind::Choice(_) | SettingKind::Text { .. } => 0,
        })
    });
}

/// The only text among the settings, as the server last set it.
static CHANNEL_PREFIX: MainThread<RefCell<Option<OwnedText>>> = MainThread::new(RefCell::new(None));

/// The kind of message that reports a free lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnlockMessage {
    /// Depends on the server: `spublish` in a cluster, else `publish`.
    Auto,
    Publish,
    Spublish,
    Both,
    None,
}

fn get(setting: usize) -> i64 {
    let value = VALUES.get(setting);
    value.map_or(0, |value| value.load(Ordering::Relaxed))
}

fn set(setting: usize, new: i64) {
    if let Some(value) = VALUES.get(setting) {
        value.store(new, Ordering::Relaxed);
    }
}

/// The value of a numeric setting.
pub(crate) fn number(setting: Setting) -> u64 {
    get(setting as usize).unsigned_abs()
}

/// Whether a flag is set.
pub(crate) fn is_on(setting: Setting) -> bool {
    get(setting as usize) != 0
}

pub(crate) fn unlock_message() -> UnlockMessage {
    match get(Setting::Publish as usize) {
        0 => UnlockMessage::Auto,
        1 => UnlockMessage::Publish,
        2 => UnlockMessage::Spublish,
        3 => UnlockMessage::Both,
        _ => UnlockMessage::None,
    }
}

/// How many shared holders may be remembered: more than may exist at once,
/// because there can be holders from before a restart.
pub(crate) fn shared_holders_kept() -> usize {
    let most = number(Setting::MaxSharedHolders).saturating_mul(2);
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Reads the prefix of the unlock channel.
pub(crate) fn with_channel_prefix<R>(read: impl FnOnce(&[u8]) -> R) -> R {
    match CHANNEL_PREFIX.get().borrow().as_ref() {
        Some(prefix) => read(prefix.bytes()),
        None => read(default_prefix().as_bytes()),
    }
}

const fn default_prefix() -> &'static str {
    match Setting::ChannelPrefix.kind() {
        SettingKind::Text { default, .. } => default,
        _ => "",
    }
}

/// Frees the memory of the settings, as the module could not be loaded.
pub(crate) fn end() {
    CHANNEL_PREFIX.get().take();
}

/// Registers all settings with the server, and reads their values from its
/// configuration file. The `loadmodule` line is applied after that.
///
/// # Errors
///
/// What is wrong with the server or the line, as text.
pub(crate) fn load(ctx: &Context, arguments: &[Text]) -> Result<(), String> {
    for setting in Setting::ALL {
        let status = register(ctx, setting);
        accepted(
            status.unwrap_or(raw::REDISMODULE_ERR as c_int),
            setting.name(),
        )?;
    }
    // SAFETY: the context is the one of loading, after all are registered.
    let status = unsafe { raw::load_configs(ctx.raw()) };
    accepted(status, "a setting in the configuration file")?;
    for pair in arguments.chunks(2) {
        let name = pair.first().map(Text::bytes).unwrap_or_default();
        let Some(value) = pair.get(1) else {
            return Err(format!(
                "setting {} on the loadmodule line needs a value",
                Shown(name)
            ));
        };
        let mut all = Setting::ALL.into_iter();
        let setting = all.find(|it| it.name().as_bytes() == name);
        let setting = setting.ok_or_else(|| {
            let shown = Shown(name);
            format!("{shown} on the loadmodule line is not a setting of this module")
        })?;
        set_from_line(setting, value)?;
    }
    Ok(())
}

fn accepted(status: c_int, what: &str) -> Result<(), String> {
    if status == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err(format!("the server did not accept {what}"))
    }
}

/// Registers a setting with the server. `None` if it cannot take a text.
fn register(ctx: &Context, setting: Setting) -> Option<c_int> {
    let name = CString::new(setting.name()).ok()?;
    let flags = raw::REDISMODULE_CONFIG_DEFAULT;
    let which = ptr::without_provenance_mut(setting as usize);
    // SAFETY: the server copies all texts and values; the functions live as long
    // as the module, and what is passed to them is no pointer.
    let status = unsafe {
        match setting.kind() {
            SettingKind::Number {
                default, min, max, ..
            } => raw::register_numeric_config(
                ctx.raw(),
                name.as_ptr(),
                default.into(),
                flags,
                min.into(),
                max.into(),
                Some(get_number),
                Some(set_number),
                None,
                which,
            ),
            SettingKind::Flag { default } => raw::register_bool_config(
                ctx.raw(),
                name.as_ptr(),
                default.into(),
                flags,
                Some(get_word),
                Some(set_word),
                None,
                which,
            ),
            SettingKind::Choice(words) => {
                let words = words.iter().map(|word| CString::new(*word).ok());
                let words: Vec<_> = words.collect::<Option<_>>()?;
                let mut words: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
                let count = c_int::try_from(words.len()).ok()?;
                let numbers: Vec<_> = (0..count).collect();
                raw::register_enum_config(
                    ctx.raw(),
                    name.as_ptr(),
                    0,
                    flags,
                    words.as_mut_ptr(),
                    numbers.as_ptr(),
                    count,
                    Some(get_word),
                    Some(set_word),
                    None,
                    which,
                )
            }
            SettingKind::Text { default, .. } => raw::register_string_config(
                ctx.raw(),
                name.as_ptr(),
                CString::new(default).ok()?.as_ptr(),
                flags,
                Some(get_prefix),
                Some(set_prefix_from_server),
                None,
                which,
            ),
        }
    };
    Some(status)
}

/// Applies the `loadmodule` line.
fn set_from_line(setting: Setting, value: &Text) -> Result<(), String> {
    let wrong = |must_be: &str| {
        let shown = Shown(value.bytes());
        format!("{} is {shown}, must be {must_be}", setting.name())
    };
    let new = match setting.kind() {
        SettingKind::Number { min, max, .. } => decimal(value.bytes())
            .filter(|new| (min.into()..=max.into()).contains(new))
            .and_then(|new| i64::try_from(new).ok())
            .ok_or_else(|| wrong(&format!("a whole number from {min} to {max}")))?,
        SettingKind::Flag { .. } => {
            place_of(value, &["no", "yes"]).ok_or_else(|| wrong("yes or no"))?
        }
        SettingKind::Choice(words) => {
            place_of(value, words).ok_or_else(|| wrong(&format!("one of {}", words.join(", "))))?
        }
        SettingKind::Text { .. } => return set_prefix(value),
    };
    set(setting as usize, new);
    Ok(())
}

/// Which of these words it is, in any case, as with `CONFIG SET`.
fn place_of(value: &Text, words: &[&str]) -> Option<i64> {
    let mut numbered = (0..).zip(words);
    let is_it = |word: &str| value.bytes().eq_ignore_ascii_case(word.as_bytes());
    Some(numbered.find(|(_, word)| is_it(word))?.0)
}

/// Sets the prefix of the unlock channel.
fn set_prefix(value: &Text) -> Result<(), String> {
    let len = value.bytes().len();
    if let SettingKind::Text { len_max, .. } = Setting::ChannelPrefix.kind()
        && !(1..=len_max).contains(&len)
    {
        return Err(format!(
            "channel-prefix has {len} bytes, must have 1 to {len_max}"
        ));
    }
    *CHANNEL_PREFIX.get().borrow_mut() = Some(OwnedText::new(value.bytes()));
    Ok(())
}

unsafe extern "C" fn get_number(_name: *const c_char, which: *mut c_void) -> c_longlong {
    get(which.addr())
}

/// The server has checked the range.
unsafe extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    which: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    set(which.addr(), value);
    raw::REDISMODULE_OK as c_int
}

unsafe extern "C" fn get_word(_name: *const c_char, which: *mut c_void) -> c_int {
    c_int::try_from(get(which.addr())).unwrap_or_default()
}

unsafe extern "C" fn set_word(
    _name: *const c_char,
    value: c_int,
    which: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    set(which.addr(), value.into());
    raw::REDISMODULE_OK as c_int
}

/// The server does not free this string, so it gets the string that is kept.
unsafe extern "C" fn get_prefix(
    _name: *const c_char,
    _which: *mut c_void,
) -> *mut raw::RedisModuleString {
    let mut prefix = CHANNEL_PREFIX.get().borrow_mut();
    prefix
        .get_or_insert_with(|| OwnedText::new(default_prefix().as_bytes()))
        .raw()
}

unsafe extern "C" fn set_prefix_from_server(
    _name: *const c_char,
    value: *mut raw::RedisModuleString,
    _which: *mut c_void,
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
