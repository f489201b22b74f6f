//! `RLOCK.RELEASE key owner [ALL]`

use super::Call;
use crate::{
    args::{self, ArgError, Args, Argument},
    reply,
    transact::transact,
};

/// Reads the arguments; `None` if there are too few.
pub(crate) fn parse<A: Argument>(arguments: &[A]) -> Option<Result<(&A, &A, bool), ArgError>> {
    let [_, key, owner, ..] = arguments else {
        return None;
    };
    Some(parse_all(key, owner, Args::after(arguments, 2)))
}

fn parse_all<'a, A: Argument>(
    key: &'a A,
    owner: &'a A,
    mut options: Args<'a, A>,
) -> Result<(&'a A, &'a A, bool), ArgError> {
    let owner = args::owner(owner)?;
    let mut all = false;
    while let Some(option) = options.next() {
        if !option.bytes().eq_ignore_ascii_case(b"ALL") {
            return Err(ArgError::UnknownOption {
                value: option.bytes().into(),
            });
        }
        args::once(&mut all, "ALL")?;
    }
    Ok((key, owner, all))
}

pub(super) fn run(call: &Call<'_>) {
    let (key, owner, all) = match parse(call.arguments) {
        None => return call.wrong_arity(),
        Some(Err(error)) => return reply::bad_argument(call.ctx, &error),
        Some(Ok(syntax)) => syntax,
    };
    let done = call.change(*key, Some(*owner), |state, site| {
        let left = transact(state, site, |locks, name, hold| {
            Ok(locks.release(site.now, name, hold, owner.bytes(), all))
        })?;
        if left.is_some() {
            state.confirm(site.db, key.bytes(), owner.bytes());
        }
        Ok(left)
    });
    match done {
        Some(Ok(Some(left))) => call.ctx.reply_number(left.into()),
        Some(Ok(None)) => call.ctx.reply_nil(),
        Some(Err(failure)) => reply::failure(call.ctx, &failure),
        None => {}
    }
}
