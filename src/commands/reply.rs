//! Turns values and refusals into replies; every error text is made here.

use redis_module_macros::RedisValue;
use rlock_core::{Refusal, syntax::Shown};

use crate::{
    api::{Context, Text},
    operation::Failure,
};

/// The reply of a command that is rarely called.
#[derive(RedisValue)]
pub(crate) enum Answer {
    /// A number of things.
    Count(i64),
    /// Lines of text.
    Lines(Vec<String>),
}

/// Sends the reply of a command that is rarely called.
pub(crate) fn send(ctx: &Context, answer: Answer) {
    redis_module::Context::new(ctx.raw().cast()).reply(Ok(answer.into()));
}

/// Refuses a command about `keys`; nothing has changed.
pub(crate) fn failure(ctx: &Context, failure: &Failure, keys: &[Text], owner: Option<Text>) {
    let owner = owner.as_ref().map_or(&b""[..], Text::bytes);
    ctx.reply_error(&sentence(failure, keys, owner));
}

fn sentence(failure: &Failure, keys: &[Text], owner: &[u8]) -> String {
    match failure {
        Failure::WrongType { key } => format!(
            "WRONGTYPE key {} holds something that is no lock, which is a hash with a time to \
             live and one owner, or several in shared mode; RLOCK.FORCE deletes a hash that has \
             a field rlock:fence or rlock:mode",
            Shown(nth(keys, *key))
        ),
        Failure::CannotBlock => "ERR the server cannot block this connection, so WAIT needs \
                                 NOTIFY <channel> here"
            .to_owned(),
        Failure::Replica => "READONLY this server is a replica, and its master grants the locks, \
                             even if it may be written to"
            .to_owned(),
        Failure::Paused => "TRYAGAIN writes are paused by CLIENT PAUSE or FAILOVER, ask again \
                            when they are not"
            .to_owned(),
        Failure::Refused(refusal) => refused(refusal, keys, Shown(owner)),
    }
}

fn refused(refusal: &Refusal, keys: &[Text], owner: Shown<'_>) -> String {
    let key = |index: usize| Shown(nth(keys, index));
    match refusal {
        Refusal::OtherRequest { key: index } => format!(
            "ERR owner {owner} has a place in the queue of key {}, asked for with another mode or \
             other keys; RLOCK.CANCEL gives it up",
            key(*index)
        ),
        Refusal::PartlyHeld { key: index } => format!(
            "ERR owner {owner} holds key {}, but not all keys exclusively under one fence; \
             release it before asking for all",
            key(*index)
        ),
        Refusal::TooManyWaiters { limit } => {
            format!(
                "QUEUEFULL this would take more places in queues than rlock.max-waiters allows, {limit}"
            )
        }
        Refusal::TooManyOfUser { limit } => format!(
            "QUEUEFULL this would take more places in queues than rlock.max-places-per-user allows \
             this user, {limit}"
        ),
        Refusal::TooManyWatches { limit } => format!(
            "QUEUEFULL as many have asked for NOTIFY, BIND or VALUE as rlock.max-watches allows, {limit}"
        ),
        Refusal::TooManyShared { limit } => format!(
            "QUEUEFULL locks have as many shared holders as rlock.max-shared-holders allows, {limit}"
        ),
        Refusal::TooManyPermits { permits, held } => format!(
            "ERR PERMITS is {permits}, must be at most {held}, which owner {owner} has of key {}",
            key(0)
        ),
        Refusal::CountOverflow => format!(
            "ERR the hold count of owner {owner} is {}, the largest there is; release before \
             entering again",
            i32::MAX
        ),
        Refusal::FenceTooLarge { fence, limit } => format!(
            "ERR FENCE is {fence}, must be at most {limit}, an hour ahead of the server's clock"
        ),
        Refusal::FenceTaken { fence } => format!(
            "ERR FENCE is {fence}, which another holder of key {} has, must be another number",
            key(0)
        ),
        Refusal::ValueOfShared => format!(
            "ERR VALUE is for exclusive holds, owner {owner} holds key {} in shared mode",
            key(0)
        ),
        Refusal::Deadlock { owners } => format!(
            "DEADLOCK waiting for key {} would close a cycle of owners: {}",
            key(0),
            cycle(owners)
        ),
        Refusal::UpgradeDeadlock { owners } => format!(
            "DEADLOCK upgrading key {} would close a cycle of owners: {}",
            key(0),
            cycle(owners)
        ),
    }
}

/// How many owners of a cycle the error names.
const OWNERS_SHOWN: usize = 16;

fn cycle(owners: &[Box<[u8]>]) -> String {
    let shown = owners.iter().take(OWNERS_SHOWN);
    let mut shown: Vec<_> = shown
        .map(|owner| format!("'{}'", owner.escape_ascii()))
        .collect();
    if owners.len() > OWNERS_SHOWN {
        shown.push("...".to_owned());
    }
    shown.join(" ")
}

fn nth<'a>(keys: &[Text<'a>], index: usize) -> &'a [u8] {
    keys.get(index).map_or(b"", Text::bytes)
}

/// Refuses a command that another module has called from within a command or
/// callback of this module.
pub(crate) fn busy(ctx: &Context) {
    ctx.reply_error("ERR rlock is in the middle of another command, which has called this one");
}
