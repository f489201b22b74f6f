//! Changes as replicas, the AOF and subscribers to key events see them: the
//! same as for the native commands.

use std::{
    cell::Cell,
    ffi::CStr,
    os::raw::{c_char, c_int},
};

use super::{Context, MainThread, Text, questions::Info, raw};

/// A key event of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyEvent {
    Hset,
    Hdel,
    Expire,
    Del,
    Expired,
}

static KEY_EVENTS: [&CStr; 5] = [c"hset", c"hdel", c"expire", c"del", c"expired"];

impl KeyEvent {
    fn text(self) -> &'static CStr {
        let [hset, hdel, expire, del, expired] = KEY_EVENTS;
        match self {
            Self::Hset => hset,
            Self::Hdel => hdel,
            Self::Expire => expire,
            Self::Del => del,
            Self::Expired => expired,
        }
    }

    const fn class(self) -> c_int {
        let class = match self {
            Self::Hset | Self::Hdel => raw::REDISMODULE_NOTIFY_HASH,
            Self::Expire | Self::Del => raw::REDISMODULE_NOTIFY_GENERIC,
            Self::Expired => raw::REDISMODULE_NOTIFY_EXPIRED,
        };
        class as c_int
    }

    /// Whether anybody but this module may hear of it. If nobody does, the server
    /// would only call this module back.
    fn is_heard(self) -> bool {
        // SAFETY: takes nothing.
        let published = unsafe { raw::published_key_events() };
        OTHERS_HEAR.get().get() != Some(false) || published & self.class() != 0
    }

    /// Whether the server passes on one of this module's events: its text then
    /// has the same address, not only the same bytes.
    pub(crate) fn is_ours(event: *const c_char) -> bool {
        KEY_EVENTS.iter().any(|ours| ours.as_ptr() == event)
    }
}

/// Whom the server passes changes on to. ARCHITECTURE.md, "Who hears of a
/// change", has the reasons why the module always knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Audience {
    Nobody,
    /// The append-only file.
    Aof,
    /// Replicas or the backlog, from which they catch up, or other nodes of a
    /// cluster; perhaps the append-only file too.
    Replicas,
}

/// The question who listens costs as much as the changes of a few keys.
const KEYS_FEW: usize = 16;

/// As found in the last cron, unless somebody may have begun to listen since.
static AUDIENCE: MainThread<Cell<Audience>> = MainThread::new(Cell::new(Audience::Replicas));

/// Whether the server reports everything by which somebody may begin to need
/// changes.
static IS_REPORTED: MainThread<Cell<bool>> = MainThread::new(Cell::new(false));

/// Whether other modules may hear of key events, as found in the first cron after a
/// module was loaded or unloaded.
static OTHERS_HEAR: MainThread<Cell<Option<bool>>> = MainThread::new(Cell::new(None));

/// Whether the log already has the line about it.
static IS_DIVERGING: MainThread<Cell<bool>> = MainThread::new(Cell::new(false));

impl Context {
    /// Emits a key event, as the native command would.
    pub(crate) fn notify(&self, event: KeyEvent, name: Text) {
        if !event.is_heard() {
            return;
        }
        let text = event.text().as_ptr();
        // SAFETY: the context belongs to the running call.
        unsafe { raw::notify_keyspace_event(self.raw(), event.class(), text, name.raw()) };
    }

    /// The module gets all events of the server from now on. If the server is of
    /// a version for which these are known to be enough, the module may look who
    /// needs the changes. On others it replicates always.
    pub(crate) fn may_find_audience(&self) {
        // An earlier load of the module may have found nobody.
        Self::assume_audience();
        Self::assume_modules();
        IS_REPORTED.get().set(self.server_is_known());
    }

    /// From now on somebody may need the changes. Must be called when something
    /// happens by which somebody may begin to, and before the next change.
    pub(crate) fn assume_audience() {
        AUDIENCE.get().set(Audience::Replicas);
    }

    /// From now on another module may hear of key events.
    pub(crate) fn assume_modules() {
        OTHERS_HEAR.get().set(None);
    }

    /// Looks who needs the changes, until [`Context::assume_audience`], and who
    /// hears of key events, until [`Context::assume_modules`].
    pub(crate) fn find_audience(&self) {
        if !IS_REPORTED.get().get() {
            return;
        }
        if OTHERS_HEAR.get().get().is_none() {
            OTHERS_HEAR.get().set(Some(self.has_other_modules()));
        }
        let flags = self.flags();
        let replication = Info::of(self, c"replication");
        let has_none = |field| replication.number(field) == Some(0);
        let is_alone = flags.is_master()
            && !flags.is_cluster()
            && !flags.is_loading()
            && has_none(c"connected_slaves")
            && has_none(c"repl_backlog_active");
        AUDIENCE.get().set(match (is_alone, flags.has_aof()) {
            (true, false) => Audience::Nobody,
            (true, true) => Audience::Aof,
            (false, _) => Audience::Replicas,
        });
    }

    /// Prepares for changes of this number of keys in one step. The first replica
    /// may wait for its data since the last cron: each change would be counted by a
    /// copy of the whole command. So with many keys the server is asked.
    pub(crate) fn expect_changes(&self, keys: usize) {
        let has_backlog =
            || Info::of(self, c"replication").number(c"repl_backlog_active") != Some(0);
        if keys > KEYS_FEW && AUDIENCE.get().get() == Audience::Nobody && has_backlog() {
            Self::assume_audience();
        }
    }

    /// Whether nobody needs a change. It is counted then: the server saves its
    /// data after a number of changes.
    #[inline]
    fn is_for_nobody(&self) -> bool {
        let is_for_nobody = self.is_command() && AUDIENCE.get().get() == Audience::Nobody;
        if is_for_nobody {
            // SAFETY: the context has the arguments of its command. The server
            // looks first whether it has to copy them for anybody.
            unsafe { raw::replicate_verbatim(self.raw()) };
        }
        is_for_nobody
    }

    /// Replicates `command name`, to replicas and the AOF.
    pub(crate) fn replicate(&self, command: &CStr, name: Text) {
        // SAFETY: the format names the one string that follows.
        self.pass_on(command, || unsafe {
            raw::RedisModule_Replicate.unwrap_unchecked()(
                self.raw(),
                command.as_ptr(),
                c"s".as_ptr(),
                name.raw(),
            )
        });
    }

    /// Replicates `command name number`, to replicas and the AOF.
    pub(crate) fn replicate_number(&self, command: &CStr, name: Text, number: u64) {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        // SAFETY: the format names the string and the number that follow.
        self.pass_on(command, || unsafe {
            raw::RedisModule_Replicate.unwrap_unchecked()(
                self.raw(),
                command.as_ptr(),
                c"sl".as_ptr(),
                name.raw(),
                number,
            )
        });
    }

    /// Replicates `command name field value`, to replicas and the AOF.
    pub(crate) fn replicate_pair(&self, command: &CStr, name: Text, pair: (Text, Text)) {
        // SAFETY: the format names the three strings that follow.
        self.pass_on(command, || unsafe {
            raw::RedisModule_Replicate.unwrap_unchecked()(
                self.raw(),
                command.as_ptr(),
                c"sss".as_ptr(),
                name.raw(),
                pair.0.raw(),
                pair.1.raw(),
            )
        });
    }

    /// Replicates `command name field value field value`.
    pub(crate) fn replicate_pairs(
        &self,
        command: &CStr,
        name: Text,
        first: (Text, Text),
        second: (Text, Text),
    ) {
        // SAFETY: the format names the five strings that follow.
        self.pass_on(command, || unsafe {
            raw::RedisModule_Replicate.unwrap_unchecked()(
                self.raw(),
                command.as_ptr(),
                c"sssss".as_ptr(),
                name.raw(),
                first.0.raw(),
                first.1.raw(),
                second.0.raw(),
                second.1.raw(),
            )
        });
    }

    /// Replicates `command name word word ...`, to replicas and the AOF.
    pub(crate) fn replicate_words(&self, command: &CStr, name: Text, words: &[Text]) {
        // SAFETY: the format names the string and the list that follow, and
        // `Text` has the layout of a pointer to a string.
        self.pass_on(command, || unsafe {
            raw::RedisModule_Replicate.unwrap_unchecked()(
                self.raw(),
                command.as_ptr(),
                c"sv".as_ptr(),
                name.raw(),
                words.as_ptr(),
                words.len(),
            )
        });
    }

    /// Replicates a published message to replicas, but not to the AOF.
    pub(crate) fn replicate_message(&self, command: &CStr, channel: Text, message: Text) {
        if AUDIENCE.get().get() != Audience::Replicas {
            return;
        }
        // SAFETY: the format names the two strings that follow.
        self.pass_on(command, || unsafe {
            raw::RedisModule_Replicate.unwrap_unchecked()(
                self.raw(),
                command.as_ptr(),
                c"Ass".as_ptr(),
                channel.raw(),
                message.raw(),
            )
        });
    }

    /// Passes a change on by `replicate`, if anybody needs it. The server refuses
    /// a command that it does not know. The module is not loaded then, so the
    /// warning is a safeguard.
    #[inline]
    fn pass_on(&self, command: &CStr, replicate: impl FnOnce() -> c_int) {
        if !self.is_for_nobody() && replicate() != raw::REDISMODULE_OK as c_int {
            self.warn_of_divergence(command);
        }
    }

    #[cold]
    fn warn_of_divergence(&self, command: &CStr) {
        if !IS_DIVERGING.get().replace(true) {
            let text = format!("{command:?} cannot be replicated: replicas and AOF will differ");
            self.log(c"warning", &text);
        }
    }
}
