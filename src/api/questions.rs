//! Queries of the server about itself.

use std::{ffi::CStr, io::ErrorKind, os::raw::c_int};

use rlock_core::{Channel, ChannelKind};

use super::{Context, NAME, OwnedText, Text, raw};

const NEWEST_REDIS: (u32, u32) = (8, 6);
const NEWEST_VALKEY: (u32, u32) = (9, 1);

/// Names and paths of modules that are parts of a server, and hear of no key
/// events: those of Redis 8 and Valkey 9.1.
const DEAF_MODULES: [(&[u8], &[u8]); 2] = [(b"vectorset", b""), (b"lua", b"lua")];

/// Whether this node of a cluster may change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    Yes,
    /// Another node does, or must be asked first.
    No,
    /// No node does.
    ClusterIsDown,
}

/// A reply of the server's, freed with this value.
struct Reply(*mut raw::RedisModuleCallReply);

/// A section of the server's own `INFO`, freed with this value.
pub(super) struct Info<'a> {
    ctx: &'a Context,
    fields: *mut raw::RedisModuleServerInfoData,
}

impl Context {
    /// Whether the server has a command under this name, which needs at least
    /// one argument.
    pub(crate) fn has_command(&self, command: &CStr) -> bool {
        // SAFETY: there are no arguments. The error number says whether the
        // server refused the call for the missing arguments or for the command.
        unsafe {
            let reply = raw::RedisModule_Call.unwrap_unchecked()(
                self.raw(),
                command.as_ptr(),
                c"".as_ptr(),
            );
            if !reply.is_null() {
                raw::RedisModule_FreeCallReply.unwrap_unchecked()(reply);
                return true;
            }
        }
        std::io::Error::last_os_error().kind() != std::io::ErrorKind::NotFound
    }

    /// Whether this node of a cluster serves a key, even while its slot moves.
    /// It calls a command that is a write and changes nothing. A missing time
    /// to live ends later than any.
    pub(crate) fn serves(&self, name: Text) -> Serves {
        // SAFETY: the format names the four strings that follow.
        let reply = unsafe {
            raw::RedisModule_Call.unwrap_unchecked()(
                self.raw(),
                c"PEXPIREAT".as_ptr(),
                c"sccc".as_ptr(),
                name.raw(),
                c"9223372036854775807".as_ptr(),
                c"XX".as_ptr(),
                c"LT".as_ptr(),
            )
        };
        match Reply::new(reply) {
            Ok(_) => Serves::Yes,
            Err(ErrorKind::ReadOnlyFilesystem | ErrorKind::NetworkDown) => Serves::ClusterIsDown,
            Err(_) => Serves::No,
        }
    }

    /// Whether this node of a cluster serves a shard channel, even while its
    /// slot moves away. `ASK` for a key says nothing about channels. Then this
    /// checks whether an empty message may be sent to another channel of the
    /// slot.
    pub(crate) fn serves_channel(&self, name: Text) -> bool {
        if self.serves(name) != Serves::No {
            return true;
        }
        let Some(probe) = probe_of(name.bytes()) else {
            return false;
        };
        // SAFETY: the format names the two strings that follow.
        let reply = unsafe {
            raw::RedisModule_Call.unwrap_unchecked()(
                self.raw(),
                c"SPUBLISH".as_ptr(),
                c"sc".as_ptr(),
                OwnedText::new(&probe).text().raw(),
                c"".as_ptr(),
            )
        };
        Reply::new(reply).is_ok()
    }

    /// Whether a message on this channel may reach a client of this server:
    /// the channel has a subscriber, or there are patterns.
    pub(crate) fn may_have_subscribers(&self, channel: Channel<'_>) -> bool {
        let (count, has_patterns) = match channel.kind {
            ChannelKind::Plain => (c"NUMSUB", true),
            ChannelKind::Sharded => (c"SHARDNUMSUB", false),
        };
        let name = OwnedText::new(channel.name);
        let subscribers = self.pubsub(count, Some(name.text()));
        let subscribers = subscribers.and_then(|reply| reply.element_number(1));
        let patterns = || self.pubsub(c"NUMPAT", None).map(|reply| reply.number());
        // If the server does not say, a message may.
        subscribers != Some(0) || (has_patterns && patterns() != Some(0))
    }

    fn pubsub(&self, question: &CStr, channel: Option<Text>) -> Option<Reply> {
        let format = if channel.is_some() { c"cs" } else { c"c" };
        // SAFETY: the format names the texts that follow; the server ignores
        // texts that it does not name.
        let reply = unsafe {
            raw::RedisModule_Call.unwrap_unchecked()(
                self.raw(),
                c"PUBSUB".as_ptr(),
                format.as_ptr(),
                question.as_ptr(),
                channel.map_or(std::ptr::null_mut(), |it| it.raw()),
            )
        };
        Reply::new(reply).ok()
    }

    /// The value of a setting of the server; `None` if the server does not
    /// report it.
    pub(crate) fn config_number(&self, name: &CStr) -> Option<u64> {
        let value = self.ask(c"CONFIG", c"GET", Some(name)).ok()?.element(1)?;
        std::str::from_utf8(&value).ok()?.parse().ok()
    }

    /// Whether the server may have modules beside this one that hear of key events.
    pub(super) fn has_other_modules(&self) -> bool {
        let Ok(modules) = self.ask(c"MODULE", c"LIST", None) else {
            return true;
        };
        (0..modules.len()).any(|index| {
            let [name, path] = [1, 5].map(|it| modules.text_in(index, it));
            !DEAF_MODULES.contains(&(&name, &path)) && *name != *NAME.to_bytes()
        })
    }

    /// The reply to a question of one word or two.
    fn ask(
        &self,
        command: &CStr,
        question: &CStr,
        about: Option<&CStr>,
    ) -> Result<Reply, ErrorKind> {
        let format = if about.is_some() { c"cc" } else { c"c" };
        // SAFETY: as in `pubsub`.
        Reply::new(unsafe {
            raw::RedisModule_Call.unwrap_unchecked()(
                self.raw(),
                command.as_ptr(),
                format.as_ptr(),
                question.as_ptr(),
                about.map_or(std::ptr::null(), CStr::as_ptr),
            )
        })
    }

    /// How many replicas have reported recently, if the server needs any to
    /// accept writes.
    pub(crate) fn good_replicas(&self) -> Option<u64> {
        Info::of(self, c"replication").number(c"min_slaves_good_slaves")
    }

    /// Whether the server is of a version whose source was read for
    /// ARCHITECTURE.md, "Who hears of a change".
    pub(super) fn server_is_known(&self) -> bool {
        let server = Info::of(self, c"server");
        let version = |field| server.text(field).and_then(release);
        // Valkey names the version of Redis with which it is compatible, too.
        match version(c"valkey_version") {
            Some(version) => version <= NEWEST_VALKEY,
            None => version(c"redis_version").is_some_and(|it| it <= NEWEST_REDIS),
        }
    }

    /// How many replicas are connected.
    pub(crate) fn replicas(&self) -> Option<u64> {
        Info::of(self, c"replication").number(c"connected_slaves")
    }

    /// How many of the last AOF write and the last dump failed: 0 to 2.
    pub(crate) fn write_errors(&self) -> u64 {
        let info = Info::of(self, c"persistence");
        let statuses = [c"aof_last_write_status", c"rdb_last_bgsave_status"];
        statuses
            .map(|it| u64::from(info.is(it, c"err")))
            .iter()
            .sum()
    }
}

impl<'a> Info<'a> {
    pub(super) fn of(ctx: &'a Context, section: &CStr) -> Self {
        // SAFETY: the context belongs to the running call.
        let fields = unsafe { raw::server_info(ctx.raw(), section.as_ptr()) };
        Self { ctx, fields }
    }

    /// A field that is a number; `None` if there is none.
    pub(super) fn number(&self, field: &CStr) -> Option<u64> {
        let (mut failed, field): (c_int, _) = (0, field.as_ptr());
        // SAFETY: the fields are not freed yet.
        let number = unsafe { raw::server_info_number(self.fields, field, &raw mut failed) };
        (failed == raw::REDISMODULE_OK as c_int).then_some(number)
    }

    /// Whether there is a field with this value.
    fn is(&self, field: &CStr, value: &CStr) -> bool {
        self.text(field) == Some(value)
    }

    fn text(&self, field: &CStr) -> Option<&CStr> {
        // SAFETY: the fields, including this text, are not freed yet.
        unsafe {
            let text = raw::server_info_text(self.fields, field.as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text))
        }
    }
}

impl Drop for Info<'_> {
    fn drop(&mut self) {
        // SAFETY: this value owns the section, which is freed once, in the call
        // that asked.
        unsafe { raw::free_server_info(self.ctx.raw(), self.fields) }
    }
}

impl Reply {
    /// Takes over a reply; the kind of error if the server refused the call.
    fn new(reply: *mut raw::RedisModuleCallReply) -> Result<Self, ErrorKind> {
        if reply.is_null() {
            Err(std::io::Error::last_os_error().kind())
        } else {
            Ok(Self(reply))
        }
    }

    /// The number in the reply; `None` for another kind of reply.
    fn number(&self) -> i64 {
        // SAFETY: the reply is not freed yet.
        unsafe { raw::call_reply_integer(self.0) }
    }

    /// The number of elements of a list, if the reply is one.
    fn len(&self) -> usize {
        // SAFETY: the reply is not freed yet.
        unsafe { raw::call_reply_length(self.0) }
    }

    /// An element of a list, if the reply is one, as a number.
    fn element_number(&self, index: usize) -> Option<i64> {
        // SAFETY: the element belongs to the reply, which is not freed yet.
        unsafe {
            let element = raw::call_reply_array_element(self.0, index);
            (!element.is_null()).then(|| raw::call_reply_integer(element))
        }
    }

    /// An element of a list, if the reply is one, as bytes.
    fn element(&self, index: usize) -> Option<Box<[u8]>> {
        // SAFETY: the element belongs to the reply, which is not freed yet.
        unsafe { Self::bytes(raw::call_reply_array_element(self.0, index)) }
    }

    /// An element of a list in a list of lists, as bytes; none if it is no text.
    fn text_in(&self, list: usize, index: usize) -> Box<[u8]> {
        // SAFETY: as in `element`.
        let text = unsafe {
            let list = raw::call_reply_array_element(self.0, list);
            let text = (!list.is_null()).then(|| raw::call_reply_array_element(list, index));
            text.and_then(|text| Self::bytes(text))
        };
        text.unwrap_or_default()
    }

    /// # Safety
    ///
    /// `text` is null, or belongs to a reply that is not freed yet.
    unsafe fn bytes(text: *mut raw::RedisModuleCallReply) -> Option<Box<[u8]>> {
        let mut len = 0;
        // SAFETY: the caller's.
        unsafe {
            let bytes =
                (!text.is_null()).then(|| raw::call_reply_string_ptr(text, &raw mut len))?;
            (!bytes.is_null()).then(|| std::slice::from_raw_parts(bytes.cast(), len).into())
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // SAFETY: this value owns the reply, which is freed once.
        unsafe { raw::RedisModule_FreeCallReply.unwrap_unchecked()(self.0) }
    }
}

/// The first two numbers of a version.
fn release(version: &CStr) -> Option<(u32, u32)> {
    let mut numbers = version.to_str().ok()?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A channel of the module in the same slot as another channel; `None` for a
/// name with a misplaced brace.
fn probe_of(channel: &[u8]) -> Option<Vec<u8>> {
    let tag = || {
        let open = channel.iter().position(|byte| *byte == b'{')?;
        let rest = channel.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    };
    let whole = || (!channel.contains(&b'}')).then_some(channel);
    let tag = tag().or_else(whole)?;
    Some([b"rlock:probe:{", tag, b"}"].concat())
}
