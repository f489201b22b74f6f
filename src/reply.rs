//! From values and refusals to replies; every error text is made here.

use redis_module_macros::RedisValue;
use rlock_core::Refusal;

use crate::{api::Context, args::ArgError, transact::Failure};

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
pub(crate) fn failure(ctx: &Context, failure: &Failure) {
    match failure {
        Failure::WrongType => ctx.reply_error(
            "WRONGTYPE the key holds something that is no lock, which is a hash with a time to \
             live and one owner",
        ),
        Failure::CannotBlock => ctx.reply_error(
            "ERR the server cannot block this connection, so WAIT needs NOTIFY <channel> here",
        ),
        Failure::Replica => ctx.reply_error(
            "READONLY this server is a replica, and its master grants the locks, even if it may \
             be written to",
        ),
        Failure::Paused => ctx.reply_error(
            "TRYAGAIN writes are paused by CLIENT PAUSE or FAILOVER, ask again when they are not",
        ),
        Failure::Refused(Refusal::AlreadyQueued) => ctx.reply_error(
            "ALREADYQUEUED the owner is queued for this key; WAIT with ONCE takes its place over",
        ),
        Failure::Refused(Refusal::TooManyWaiters { limit }) => ctx.reply_error(&format!(
            "QUEUEFULL there are {limit} waiters, as many as rlock.max-waiters allows"
        )),
        Failure::Refused(Refusal::TooManyWatches { limit }) => ctx.reply_error(&format!(
            "QUEUEFULL there are {limit} watches (NOTIFY), as many as rlock.max-watches allows"
        )),
        Failure::Refused(Refusal::CountOverflow) => ctx.reply_error(&format!(
            "ERR the hold count is {}, the largest there is; release before entering again",
            i32::MAX
        )),
    }
}

/// Refuses a command that another module has called from within one of ours.
pub(crate) fn busy(ctx: &Context) {
    ctx.reply_error("ERR rlock is in the middle of another command, which has called this one");
}
