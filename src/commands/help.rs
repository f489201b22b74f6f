//! `RLOCK.HELP`

use rlock_core::syntax;

use super::{
    Call,
    reply::{self, Answer},
    table::COMMANDS,
};

pub(super) fn run(call: &Call<'_>) -> Option<()> {
    call.parsed(syntax::nothing(call.arguments))?;
    let line =
        |command: &super::table::Command| format!("{} -- {}", command.syntax, command.summary);
    reply::send(call.ctx, Answer::Lines(COMMANDS.iter().map(line).collect()));
    Some(())
}
