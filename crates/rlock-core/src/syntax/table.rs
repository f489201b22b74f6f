//! The commands and their options, each defined once. The parser, the help, the
//! server's description of the commands, the words for fuzzing and the tests of
//! limits all use these definitions.

use std::fmt::Write;

use crate::Fence;

/// The most permits of a lock.
const PERMITS_MAX: u64 = 1_000_000;
/// The longest time for which a place is kept, in milliseconds.
const KEEP_MAX_MS: u64 = 600_000;
/// The most locks in a list.
const LIST_MAX: u64 = 1000;

/// A command.
#[allow(missing_docs, reason = "each is the command of its name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Acquire,
    Renew,
    Release,
    Downgrade,
    AcquireAll,
    RenewAll,
    ReleaseAll,
    Cancel,
    Force,
    Info,
    List,
    Help,
}

/// An argument at a fixed position.
#[allow(missing_docs, reason = "each is the argument of its name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positional {
    Key,
    Owner,
    LeaseMs,
    /// The number of keys that follow.
    NumKeys,
    /// One key or several.
    Keys,
}

/// An option of one or several commands.
#[allow(missing_docs, reason = "each is the option of its name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opt {
    Shared,
    Limit,
    Permits,
    Reenter,
    Wait,
    Keep,
    All,
    /// `PERMITS` of a release.
    ReleasedPermits,
    Fence,
    Notify,
    Snotify,
    Bind,
    Value,
    Queue,
    Count,
}

/// The properties of an option.
#[derive(Debug)]
pub struct Spec {
    /// Its first word.
    pub token: &'static str,
    /// Its name in `COMMAND DOCS`.
    pub name: &'static str,
    /// The word after the token.
    pub value: Value,
    /// The commands that have it.
    pub commands: &'static [Command],
    /// The option that it requires.
    pub needs: Option<Opt>,
    /// The option that it excludes.
    pub excludes: Option<Opt>,
}

/// The value of an option.
#[derive(Debug)]
pub enum Value {
    /// None: the option is a flag.
    None,
    /// A whole number.
    Number {
        /// Its name in the syntax.
        shown: &'static str,
        /// Its name in errors.
        argument: &'static str,
        /// The smallest.
        min: u64,
        /// The largest.
        max: Max,
    },
    /// The name of a channel.
    Channel,
    /// The published value: any bytes.
    Bytes,
}

/// The largest number of an option.
#[derive(Clone, Copy, Debug)]
pub enum Max {
    /// A fixed number.
    Of(u64),
    /// The longest lease that the settings allow, in milliseconds.
    LeaseMs,
    /// The number of another option, which this one requires.
    Given(Opt),
}

impl Command {
    /// All commands, in the order of the help.
    pub const ALL: [Self; 12] = [
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Downgrade,
        Self::AcquireAll,
        Self::RenewAll,
        Self::ReleaseAll,
        Self::Cancel,
        Self::Force,
        Self::Info,
        Self::List,
        Self::Help,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "RLOCK.ACQUIRE",
            Self::Renew => "RLOCK.RENEW",
            Self::Release => "RLOCK.RELEASE",
            Self::Downgrade => "RLOCK.DOWNGRADE",
            Self::AcquireAll => "RLOCK.MACQUIRE",
            Self::RenewAll => "RLOCK.MRENEW",
            Self::ReleaseAll => "RLOCK.MRELEASE",
            Self::Cancel => "RLOCK.CANCEL",
            Self::Force => "RLOCK.FORCE",
            Self::Info => "RLOCK.INFO",
            Self::List => "RLOCK.LIST",
            Self::Help => "RLOCK.HELP",
        }
    }

    /// The arguments that come before the options.
    #[must_use]
    pub const fn positionals(self) -> &'static [Positional] {
        use Positional::{Key, Keys, LeaseMs, NumKeys, Owner};
        match self {
            Self::Acquire | Self::Renew => &[Key, Owner, LeaseMs],
            Self::Release | Self::Downgrade | Self::Cancel => &[Key, Owner],
            Self::AcquireAll | Self::RenewAll => &[Owner, LeaseMs, NumKeys, Keys],
            Self::ReleaseAll => &[Owner, NumKeys, Keys],
            Self::Force | Self::Info => &[Key],
            Self::List | Self::Help => &[],
        }
    }

    /// Its options, in the order of the help.
    pub fn options(self) -> impl Iterator<Item = Opt> {
        let all = Opt::ALL.into_iter();
        all.filter(move |it| it.is_of(self))
    }

    /// The index of the word with the number of keys, counted from the command's
    /// name.
    #[must_use]
    pub fn num_keys_at(self) -> Option<usize> {
        let at = |it: &Positional| *it == Positional::NumKeys;
        Some(self.positionals().iter().position(at)? + 1)
    }

    /// Its syntax, in one line.
    #[must_use]
    pub fn syntax(self) -> String {
        let mut line = self.name().to_owned();
        for positional in self.positionals() {
            line.push(' ');
            line.push_str(match positional {
                Positional::Keys => "key [key ...]",
                other => other.name(),
            });
        }
        for option in self.options() {
            if option.is_independent(self) {
                line.push_str(" [");
                option.show(self, &mut line);
                line.push(']');
            }
        }
        line
    }
}

impl Positional {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key | Self::Keys => "key",
            Self::Owner => "owner",
            Self::LeaseMs => "lease-ms",
            Self::NumKeys => "numkeys",
        }
    }
}

impl Opt {
    /// All options, in the order of the help. Options that require or exclude
    /// another one come after it.
    pub const ALL: [Self; 15] = [
        Self::Shared,
        Self::Limit,
        Self::Permits,
        Self::Reenter,
        Self::Wait,
        Self::Keep,
        Self::All,
        Self::ReleasedPermits,
        Self::Fence,
        Self::Notify,
        Self::Snotify,
        Self::Bind,
        Self::Value,
        Self::Queue,
        Self::Count,
    ];

    /// Its properties. One long table, so that all options are visible together.
    #[must_use]
    pub const fn spec(self) -> &'static Spec {
        use Command::{Acquire, AcquireAll, Force, List, Release, ReleaseAll, Renew, RenewAll};
        match self {
            Self::Shared => &Spec {
                token: "SHARED",
                name: "shared",
                value: Value::None,
                commands: &[Acquire],
                needs: None,
                excludes: None,
            },
            Self::Limit => &Spec {
                token: "LIMIT",
                name: "limit",
                value: Value::Number {
                    shown: "n",
                    argument: "LIMIT",
                    min: 1,
                    max: Max::Of(PERMITS_MAX),
                },
                commands: &[Acquire],
                needs: Some(Self::Shared),
                excludes: None,
            },
            Self::Permits => &Spec {
                token: "PERMITS",
                name: "permits",
                value: Value::Number {
                    shown: "k",
                    argument: "PERMITS",
                    min: 1,
                    max: Max::Given(Self::Limit),
                },
                commands: &[Acquire],
                needs: Some(Self::Limit),
                excludes: None,
            },
            Self::Reenter => &Spec {
                token: "REENTER",
                name: "reenter",
                value: Value::None,
                commands: &[Acquire, AcquireAll],
                needs: None,
                excludes: None,
            },
            Self::Wait => &Spec {
                token: "WAIT",
                name: "wait-ms",
                value: Value::Number {
                    shown: "wait-ms",
                    argument: "wait-ms",
                    min: 0,
                    max: Max::LeaseMs,
                },
                commands: &[Acquire, AcquireAll],
                needs: None,
                excludes: None,
            },
            Self::Keep => &Spec {
                token: "KEEP",
                name: "keep-ms",
                value: Value::Number {
                    shown: "grace-ms",
                    argument: "KEEP grace-ms",
                    min: 1,
                    max: Max::Of(KEEP_MAX_MS),
                },
                commands: &[Acquire, AcquireAll],
                needs: Some(Self::Wait),
                excludes: None,
            },
            Self::All => &Spec {
                token: "ALL",
                name: "all",
                value: Value::None,
                commands: &[Release, ReleaseAll],
                needs: None,
                excludes: None,
            },
            Self::ReleasedPermits => &Spec {
                token: "PERMITS",
                name: "permits",
                value: Value::Number {
                    shown: "k",
                    argument: "PERMITS",
                    min: 1,
                    max: Max::Of(PERMITS_MAX),
                },
                commands: &[Release],
                needs: None,
                excludes: Some(Self::All),
            },
            Self::Fence => &Spec {
                token: "FENCE",
                name: "fence",
                value: Value::Number {
                    shown: "n",
                    argument: "FENCE",
                    min: 1,
                    max: Max::Of(Fence::MAX),
                },
                commands: &[Renew, RenewAll, Release, ReleaseAll, Force],
                needs: None,
                excludes: None,
            },
            Self::Notify => &Spec {
                token: "NOTIFY",
                name: "channel",
                value: Value::Channel,
                commands: &[Acquire, AcquireAll, Renew, RenewAll],
                needs: None,
                excludes: None,
            },
            Self::Snotify => &Spec {
                token: "SNOTIFY",
                name: "shard-channel",
                value: Value::Channel,
                commands: &[Acquire, AcquireAll, Renew, RenewAll],
                needs: None,
                excludes: Some(Self::Notify),
            },
            Self::Bind => &Spec {
                token: "BIND",
                name: "grace-ms",
                value: Value::Number {
                    shown: "grace-ms",
                    argument: "BIND grace-ms",
                    min: 0,
                    max: Max::LeaseMs,
                },
                commands: &[Acquire, Renew],
                needs: None,
                excludes: None,
            },
            Self::Value => &Spec {
                token: "VALUE",
                name: "value",
                value: Value::Bytes,
                commands: &[Acquire, Renew],
                needs: None,
                excludes: None,
            },
            Self::Queue => &Spec {
                token: "QUEUE",
                name: "queue",
                value: Value::None,
                commands: &[Force],
                needs: None,
                excludes: None,
            },
            Self::Count => &Spec {
                token: "COUNT",
                name: "count",
                value: Value::Number {
                    shown: "n",
                    argument: "COUNT",
                    min: 1,
                    max: Max::Of(LIST_MAX),
                },
                commands: &[List],
                needs: None,
                excludes: None,
            },
        }
    }

    /// Whether it neither requires nor excludes another option of the command.
    #[must_use]
    pub fn is_independent(self, command: Command) -> bool {
        let Spec {
            needs, excludes, ..
        } = self.spec();
        let others = needs.iter().chain(excludes);
        !others.into_iter().any(|it| it.is_of(command))
    }

    /// The options of the command that require this one.
    pub fn needed_by(self, command: Command) -> impl Iterator<Item = Self> {
        let all = command.options();
        all.filter(move |it| it.spec().needs == Some(self))
    }

    /// The options of the command that exclude this one.
    pub fn excluded_by(self, command: Command) -> impl Iterator<Item = Self> {
        let all = command.options();
        all.filter(move |it| it.spec().excludes == Some(self))
    }

    fn is_of(self, command: Command) -> bool {
        self.spec().commands.contains(&command)
    }

    /// Writes it with its value, the options that may follow it, and the
    /// alternatives.
    fn show(self, command: Command, line: &mut String) {
        line.push_str(&self.usage());
        for nested in self.needed_by(command) {
            line.push_str(" [");
            nested.show(command, line);
            line.push(']');
        }
        for other in self.excluded_by(command) {
            line.push_str(" | ");
            other.show(command, line);
        }
    }

    /// Its token and its value.
    #[must_use]
    pub fn usage(self) -> String {
        let mut usage = self.spec().token.to_owned();
        let value = match self.spec().value {
            Value::None => return usage,
            Value::Number { shown, .. } => shown,
            Value::Channel => "channel",
            Value::Bytes => "value",
        };
        // Writing to a string never fails.
        let _ = write!(usage, " {value}");
        usage
    }
}
