//! The settings, and what the `loadmodule` line may say of them. How the server
//! reads and writes them is in `events::settings`.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering},
};

use lazy_static::lazy_static;
use rlock_core::syntax::{Shown, decimal};

use crate::api::{MainThread, OwnedText, Text, raw};

/// The most bytes of `channel-prefix`.
const CHANNEL_PREFIX_LEN_MAX: usize = 256;

/// A setting that is a whole number.
pub(crate) struct Number {
    pub(crate) name: &'static str,
    pub(crate) default: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
    pub(crate) value: AtomicI64,
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
    /// What suits the server: `spublish` in a cluster, else `publish`.
    Auto,
    Publish,
    Spublish,
    Both,
    None,
}

/// The names of the kinds, in the order of their numbers.
pub(crate) const PUBLISH_NAMES: [&str; 5] = ["auto", "publish", "spublish", "both", "none"];

/// The settings of this server.
pub(crate) struct Settings {
    /// The upper bound of leases and waits, in milliseconds.
    pub(crate) max_lease_ms: Number,
    /// The most places in queues.
    pub(crate) max_waiters: Number,
    /// The most places of each user; 0 for no limit of its own.
    pub(crate) max_places_per_user: Number,
    /// The most holds and queued requests with `NOTIFY`.
    pub(crate) max_watches: Number,
    /// The most shared holders of all locks together.
    pub(crate) max_shared_holders: Number,
    /// The hand-offs in a row after which others get a chance.
    pub(crate) yield_after: Number,
    /// How long after a start nothing is granted, in milliseconds.
    pub(crate) startup_grace_ms: Number,
    pub(crate) deadlock_detection: AtomicBool,
    /// The number of the kind of unlock message.
    pub(crate) publish: AtomicI32,
}

lazy_static! {
    static ref SETTINGS: Settings = Settings {
        max_lease_ms: Number::new("max-lease-ms", 86_400_000, 1000, 2_592_000_000),
        max_waiters: Number::new("max-waiters", 10_000, 1, 1_000_000),
        max_places_per_user: Number::new("max-places-per-user", 0, 0, 1_000_000),
        max_watches: Number::new("max-watches", 100_000, 0, 10_000_000),
        max_shared_holders: Number::new("max-shared-holders", 262_144, 1, 10_000_000),
        yield_after: Number::new("yield-after", 64, 0, 1_000_000),
        startup_grace_ms: Number::new("startup-grace-ms", 0, 0, 86_400_000),
        deadlock_detection: AtomicBool::new(true),
        publish: AtomicI32::new(0),
    };
}

/// The first part of the unlock channel: as bytes, and as `CONFIG GET` wants it.
static CHANNEL_PREFIX: MainThread<RefCell<Option<OwnedText>>> = MainThread::new(RefCell::new(None));
pub(crate) const CHANNEL_PREFIX_DEFAULT: &str = "redisson_lock__channel";

pub(crate) fn settings() -> &'static Settings {
    &SETTINGS
}

impl Settings {
    pub(crate) fn unlock_message(&self) -> UnlockMessage {
        match self.publish.load(Ordering::Relaxed) {
            0 => UnlockMessage::Auto,
            1 => UnlockMessage::Publish,
            2 => UnlockMessage::Spublish,
            3 => UnlockMessage::Both,
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

    /// The first part of the unlock channel as a string of the server's, good
    /// until it is set anew.
    pub(crate) fn channel_prefix(&self) -> *mut raw::RedisModuleString {
        let mut prefix = CHANNEL_PREFIX.get().borrow_mut();
        prefix
            .get_or_insert_with(|| OwnedText::new(CHANNEL_PREFIX_DEFAULT.as_bytes()))
            .raw()
    }

    /// How many shared holders may be remembered: more than there may be, as
    /// there can be others from before a restart.
    pub(crate) fn shared_holders_kept(&self) -> usize {
        let most = self.max_shared_holders.get().saturating_mul(2);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Whether a request that would close a cycle of waiters is refused.
    pub(crate) fn detects_deadlocks(&self) -> bool {
        self.deadlock_detection.load(Ordering::Relaxed)
    }

    pub(crate) const fn numbers(&self) -> [&Number; 7] {
        [
            &self.max_lease_ms,
            &self.max_waiters,
            &self.max_places_per_user,
            &self.max_watches,
            &self.max_shared_holders,
            &self.yield_after,
            &self.startup_grace_ms,
        ]
    }
}

/// Gives the memory of the settings back, as the module is about to go.
pub(crate) fn end() {
    CHANNEL_PREFIX.get().take();
}

/// Sets what the `loadmodule` line says.
///
/// # Errors
///
/// What is wrong about it, in words.
pub(crate) fn set_from_line(name: &[u8], value: &Text) -> Result<(), String> {
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

/// Sets the first part of the unlock channel.
///
/// # Errors
///
/// It is too short or too long, in words.
pub(crate) fn set_prefix(value: &Text) -> Result<(), String> {
    let len = value.bytes().len();
    if !(1..=CHANNEL_PREFIX_LEN_MAX).contains(&len) {
        return Err(format!(
            "channel-prefix has {len} bytes, must have 1 to {CHANNEL_PREFIX_LEN_MAX}"
        ));
    }
    *CHANNEL_PREFIX.get().borrow_mut() = Some(OwnedText::new(value.bytes()));
    Ok(())
}
