//! The commands: parse, change the lock, reply.

mod acquire;
mod cancel;
mod force;
mod help;
mod hold;
mod info;
mod register;
mod reply;
mod table;

pub(crate) use register::register;

use std::os::raw::c_int;

use rlock_core::syntax::{self, ArgError, Argument, Command};

use crate::{
    api::{Context, Text, entry, raw},
    operation::{Failure, Operation},
    state::{self, State},
};

impl Argument for Text<'_> {
    fn bytes(&self) -> &[u8] {
        Self::bytes(self)
    }
}

/// The input of a command.
pub(crate) struct Call<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) arguments: &'a [Text<'a>],
}

impl<'a> Call<'a> {
    /// The parsed arguments. `None` if they are refused; the caller has the
    /// reason by then. Always inlined: otherwise they are copied once more.
    #[inline(always)]
    fn parsed<T>(&self, parsed: Result<T, ArgError>) -> Option<T> {
        parsed.inspect_err(|error| self.refuse(error)).ok()
    }

    #[cold]
    fn refuse(&self, error: &ArgError) {
        if *error == ArgError::Arity {
            // SAFETY: the context belongs to the running command.
            unsafe { raw::wrong_arity(self.ctx.raw()) };
        } else {
            self.ctx.reply_error(&format!("ERR {error}"));
        }
    }

    /// The value of `result`. For an error, the caller gets the reply.
    fn accepted<T>(&self, done: Result<T, String>) -> Option<T> {
        done.inspect_err(|text| self.ctx.reply_error(text)).ok()
    }

    /// Reports where the keys are, if the server only asks for that and the
    /// keys are counted. Clusters find the node in this way: the server ignores
    /// the key specifications of modules for such commands.
    fn reports_keys(&self, command: Command) -> bool {
        let Some(counted_at) = command.num_keys_at() else {
            return false;
        };
        if !self.ctx.asks_for_keys() {
            return false;
        }
        let number = self.arguments.get(counted_at).map(Text::bytes);
        let number = number.and_then(syntax::decimal).unwrap_or(0);
        let first = counted_at + 1;
        let keys = self.arguments.len().saturating_sub(first);
        let number = usize::try_from(number).unwrap_or(usize::MAX).min(keys);
        (first..first + number).for_each(|position| self.ctx.key_is_at(position));
        true
    }

    /// Changes `keys` on behalf of `caller`, with the module's state, in the
    /// database of the first. `None` if it is refused; the caller has the
    /// reason by then.
    fn change<R>(
        &self,
        keys: &[Text],
        caller: Option<Text>,
        act: impl FnOnce(&mut State, &Operation<'_>) -> Result<R, Failure>,
    ) -> Option<R> {
        let key = *keys.first()?;
        self.ctx.expect_changes(keys.len());
        let done = state::with(self.ctx, |state, now| {
            let op = Operation::new(self.ctx, now, (self.ctx.db(), key), caller);
            act(state, &op)
        });
        match done {
            Some(Ok(done)) => return Some(done),
            Some(Err(failure)) => reply::failure(self.ctx, &failure, keys, caller),
            None => reply::busy(self.ctx),
        }
        None
    }
}

/// Makes an entry point for the server out of a command's function.
macro_rules! entry_points {
    ($($name:ident = $command:ident, $run:path;)*) => {
        $(
            pub(super) unsafe extern "C" fn $name(
                ctx: *mut raw::RedisModuleCtx,
                argv: *mut *mut raw::RedisModuleString,
                argc: c_int,
            ) -> c_int {
                entry::command(ctx, |ctx| {
                    // SAFETY: the server's arguments live as long as the call.
                    let arguments = unsafe { Text::arguments(argv, argc) };
                    let call = Call { ctx, arguments };
                    if !call.reports_keys(Command::$command) {
                        // `None` means that the command was refused, and its
                        // caller has the reply.
                        let _: Option<()> = $run(&call);
                    }
                })
            }
        )*
    };
}

mod entry_point {
    use super::*;

    entry_points! {
        acquire = Acquire, super::acquire::run;
        acquire_all = AcquireAll, super::acquire::run_all;
        cancel = Cancel, super::cancel::run;
        downgrade = Downgrade, super::hold::downgrade;
        force = Force, super::force::run;
        help = Help, super::help::run;
        info = Info, super::info::info;
        list = List, super::info::list;
        release = Release, super::hold::release;
        release_all = ReleaseAll, super::hold::release_all;
        renew = Renew, super::hold::renew;
        renew_all = RenewAll, super::hold::renew_all;
    }
}
