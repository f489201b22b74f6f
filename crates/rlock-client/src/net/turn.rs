//! The beginning of a call: its turn among those of the same owner, and what the
//! owner holds by then.

use std::sync::Arc;

use crate::engine::ask::Ask;
use crate::engine::claims::{Claims, Held, Turn};
use crate::engine::hold::Hold;
use crate::engine::terms::Deadline;
use crate::error::Error;
use crate::net::release;
use crate::net::state::State;
use crate::wire::protocol::Queueing;

/// Waits for other calls of the same owner, and looks at what it holds then.
/// `None`: not in time.
pub(crate) async fn take_turn(
    state: &Arc<State>,
    claims: &Claims,
    ask: Ask,
    queueing: Queueing,
    deadline: Deadline,
) -> Result<Option<(Turn, Option<Arc<Hold>>)>, Error> {
    loop {
        let turn = match (claims.try_turn(), queueing) {
            (Some(turn), _) => Some(turn),
            (None, Queueing::Try) => None,
            (None, Queueing::AtMost(_) | Queueing::Unlimited) => {
                deadline.bound(claims.turn()).await
            }
        };
        let Some(turn) = turn else { return Ok(None) };
        let hold = match claims.held() {
            Held::Nothing => return Ok(Some((turn, None))),
            // Nobody needs it as it is held any more.
            Held::These(hold) if hold.is_unused() && hold.ask() != ask => hold,
            Held::These(hold) => return Ok(Some((turn, Some(hold)))),
            Held::Otherwise(hold) => hold,
        };
        if !hold.is_unused() {
            return Err(claims.conflict(&hold));
        }
        // Its guard was dropped; what the background is about to do is done
        // here and now.
        drop(turn);
        let released = deadline
            .bound(release::unused(Arc::clone(state), hold))
            .await;
        if released.is_none() || deadline.is_over() {
            return Ok(None);
        }
    }
}
