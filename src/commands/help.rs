//! `RLOCK.HELP`

use rlock_core::syntax;

use super::{
    Call,
    reply::{self, Answer},
    table::{COMMANDS, Row},
};

pub(super) fn run(call: &Call<'_>) -> Option<()> {
    call.parsed(syntax::nothing(call.arguments))?;
    let line = |row: &Row| {
        let summary = row.summary.to_string_lossy();
        format!("{} -- {summary}", row.command.syntax())
    };
    reply::send(call.ctx, Answer::Lines(COMMANDS.iter().map(line).collect()));
    Some(())
}
