//! From values and refusals to replies; every error text is made here.

use redis_module_macros::RedisValue;
use rlock_core::Refusal;

use crate::{
    api::{Context, Text},
    args::{ArgError, Shown},
    transact::Failure,
};

/// The reply of a command that is not called often.
#[derive(RedisValue)]
pub(crate) enum Answer {
    /// A number of things.
    Count(i64),
    /// Lines of text.
    Lines(Vec<String>),
}

/// Sends the reply of a command that is not called often.
pub(crate) fn send(ctx: &Context, answer: Answer) {
    redis_module::Context::new(ctx.raw().cast()).reply(Ok(answer.into()));
}

/// Refuses a command because of one of its arguments.
pub(crate) fn bad_argument(ctx: &Context, error: &ArgError) {
    ctx.reply_error(&format!("ERR {error}"));
}

/// Refuses a command; nothing has changed.
pub(crate) fn failure(ctx: &Context, failure: &Failure, key: Text, owner: Option<Text>) {
    ctx.reply_error(&sentence(
        failure,
        key.bytes(),
        owner.as_ref().map_or(b"", Text::bytes),
    ));
}

fn sentence(failure: &Failure, key: &[u8], owner: &[u8]) -> String {
    let (key, owner) = (Shown(key), Shown(owner));
    match failure {
        Failure::WrongType => format!(
            "WRONGTYPE key {key} holds something that is no lock, which is a hash with a time to \
             live and one owner"
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
        Failure::Refused(Refusal::AlreadyQueued) => format!(
            "ALREADYQUEUED owner {owner} is queued for key {key}; WAIT with ONCE takes its place \
             over"
        ),
        Failure::Refused(Refusal::TooManyWaiters { limit }) => {
            format!("QUEUEFULL as many requests are queued as rlock.max-waiters allows, {limit}")
        }
        Failure::Refused(Refusal::TooManyWatches { limit }) => {
            format!("QUEUEFULL as many have asked for NOTIFY as rlock.max-watches allows, {limit}")
        }
        Failure::Refused(Refusal::CountOverflow) => format!(
            "ERR the hold count of owner {owner} is {}, the largest there is; release before \
             entering again",
            i32::MAX
        ),
    }
}

/// Refuses a command that another module has called from within one of ours.
pub(crate) fn busy(ctx: &Context) {
    ctx.reply_error("ERR rlock is in the middle of another command, which has called this one");
}
