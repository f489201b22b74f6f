//! The commands, a file each: parse, change the lock, reply.

mod acquire;
mod cancel;
mod downgrade;
mod force;
mod help;
mod info;
mod list;
mod register;
mod release;
mod renew;
mod renew_release_many;
mod reply;
mod table;

pub(crate) use register::register;

use std::os::raw::c_int;

use rlock_core::syntax::{self, Argument};

use crate::{
    api::{Context, Text, entry, raw},
    site::Site,
    state::{self, State},
};

impl Argument for Text<'_> {
    fn bytes(&self) -> &[u8] {
        Self::bytes(self)
    }
}

/// What a command is called with.
pub(crate) struct Call<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) arguments: &'a [Text<'a>],
}

impl<'a> Call<'a> {
    /// Replies that there are too few or too many arguments.
    fn wrong_arity(&self) {
        // SAFETY: the context is that of the running command.
        unsafe { raw::wrong_arity(self.ctx.raw()) };
    }

    /// Tells the server where the keys are, if it only asks for that: they
    /// follow their number, which is the argument at `counted_at`. Clusters ask
    /// for the node by it: key specifications of commands whose keys are
    /// counted are not looked at for modules.
    fn tells_keys(&self, counted_at: usize) -> bool {
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

    /// Runs a change of `key`, on behalf of `caller`, with the module's state.
    fn change<R>(
        &self,
        key: Text,
        caller: Option<Text>,
        act: impl FnOnce(&mut State, &Site<'_>) -> R,
    ) -> Option<R> {
        let done = state::with(self.ctx, |state, now| {
            let site = Site {
                ctx: self.ctx,
                now,
                db: self.ctx.db(),
                key,
                caller,
            };
            act(state, &site)
        });
        if done.is_none() {
            reply::busy(self.ctx);
        }
        done
    }
}

/// Makes an entry point for the server out of a command's function.
macro_rules! entry_points {
    ($($name:ident = $run:path;)*) => {
        $(
            pub(super) unsafe extern "C" fn $name(
                ctx: *mut raw::RedisModuleCtx,
                argv: *mut *mut raw::RedisModuleString,
                argc: c_int,
            ) -> c_int {
                entry::command(ctx, |ctx| {
                    // SAFETY: the server's arguments live as long as the call.
                    let arguments = unsafe { Text::arguments(argv, argc) };
                    $run(&Call { ctx, arguments });
                })
            }
        )*
    };
}

mod entry_point {
    use super::*;

    entry_points! {
        acquire = super::acquire::run;
        acquire_all = super::acquire::run_many;
        cancel = super::cancel::run;
        downgrade = super::downgrade::run;
        force = super::force::run;
        help = super::help::run;
        info = super::info::run;
        list = super::list::run;
        release = super::release::run;
        release_all = super::renew_release_many::release;
        renew = super::renew::run;
        renew_all = super::renew_release_many::renew;
    }
}
