//! `RLOCK.HELP`

use super::{
    Call,
    reply::{self, Answer},
    table::COMMANDS,
};

pub(super) fn run(call: &Call<'_>) {
    if call.arguments.len() != 1 {
        return call.wrong_arity();
    }
    let line =
        |command: &super::table::Command| format!("{} -- {}", command.syntax, command.summary);
    reply::send(call.ctx, Answer::Lines(COMMANDS.iter().map(line).collect()));
}
