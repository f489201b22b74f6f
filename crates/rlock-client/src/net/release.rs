//! Ends holds and withdraws requests: for `release`, for dropped guards, and
//! for dropped calls.
//!
//! Everything here may be repeated: an owner that holds nothing and waits for
//! nothing is answered nil, and another owner is never touched.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::engine::claims::{Claims, Held, Turn};
use crate::engine::clock::Instant;
use crate::engine::hold::Hold;
use crate::engine::terms::{Backoff, Deadline};
use crate::error::{Error, Fault, Loss};
use crate::net::driver::Order;
use crate::net::link::Link;
use crate::net::state::{Answer, Asking, State};
use crate::wire::protocol;

/// Releases a hold of which the caller has the last guard and the turn.
pub(crate) async fn release(state: &State, hold: &Hold) -> Result<(), Error> {
    hold.end();
    state.schedule.remove(hold);
    send_release(state, hold, Deadline::after(state.limits.patience)).await?;
    let (key, owner, fence) = (hold.claims.label(), hold.claims.owner(), hold.fence());
    tracing::debug!(%key, %owner, fence, "released");
    Ok(())
}

async fn send_release(state: &State, hold: &Hold, deadline: Deadline) -> Result<(), Error> {
    let cmd = protocol::release(&hold.claims);
    match state.ask_until(deadline, &cmd).await {
        // Nil after an unanswered one: that one released it.
        Ok(Answer { reply, is_repeated }) if is_repeated || released_all(&reply, &hold.claims) => {
            Ok(())
        }
        Ok(_) => Err(Error::Lost(Loss::EndedByServer)),
        Err(error @ (Error::Unavailable { .. } | Error::Closed)) => Err(error),
        Err(refusal) => {
            if let Some(link) = state.link_now() {
                release_each(&hold.claims, &link).await;
            }
            Err(refusal)
        }
    }
}

/// Whether the owner held what it released: all of it, if several keys.
fn released_all(reply: &Value, claims: &Claims) -> bool {
    match reply {
        Value::Nil => false,
        Value::Int(held) if !claims.is_single() => usize::try_from(*held) == Ok(claims.count()),
        _ => true,
    }
}

/// Releases each of several keys by itself, for when one of them holds
/// something that is no lock, and keeps the server from releasing any.
async fn release_each(claims: &Claims, link: &Link) {
    if !claims.is_single() {
        let _ = link.ask_all(&protocol::release_each(claims)).await;
    }
}

/// A release that has been asked for.
pub(crate) struct Releasing {
    hold: Arc<Hold>,
    asking: Asking,
    /// Kept until it is over.
    _turn: Turn,
}

impl std::fmt::Debug for Releasing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Releasing").field(&self.hold).finish()
    }
}

/// Releases a hold whose last guard is being dropped: at once if nothing stands
/// in the way, so that what is asked for next by the same task comes after.
pub(crate) fn dropped(state: &Arc<State>, hold: Arc<Hold>) {
    let order = match begin(state, &hold) {
        Some(releasing) => Order::AwaitRelease(releasing),
        None => Order::Release(hold),
    };
    state.order(order);
}

fn begin(state: &Arc<State>, hold: &Arc<Hold>) -> Option<Releasing> {
    let turn = hold.claims.try_turn()?;
    let link = state.link_now()?;
    if !hold.claims.are_held_by(hold) || !hold.is_unused() || hold.loss().is_some() {
        return None;
    }
    hold.end();
    state.schedule.remove(hold);
    let asking = state.begin_to_ask(link, protocol::release(&hold.claims));
    Some(Releasing {
        hold: Arc::clone(hold),
        asking,
        _turn: turn,
    })
}

/// Awaits a release, and repeats it until it is known to have been made.
pub(crate) async fn await_release(state: Arc<State>, releasing: Releasing) {
    let Releasing {
        hold,
        asking,
        _turn,
    } = releasing;
    if asking.await.is_ok() {
        say_dropped(&hold, &Ok(()));
    } else {
        release_dropped(&state, &hold).await;
    }
}

/// Releases until the lease ends: later the server has ended it by itself.
async fn release_dropped(state: &State, hold: &Hold) {
    let left = hold.lease_end().saturating_duration_since(Instant::now());
    let deadline = Deadline::after(left.max(state.limits.patience));
    say_dropped(hold, &send_release(state, hold, deadline).await);
}

fn say_dropped(hold: &Hold, outcome: &Result<(), Error>) {
    let (key, owner, fence) = (hold.claims.label(), hold.claims.owner(), hold.fence());
    tracing::debug!(%key, %owner, fence, ?outcome, "dropped");
}

/// Releases a hold whose last guard was dropped, unless it was entered again
/// since, or the same owner has a newer hold.
pub(crate) async fn unused(state: Arc<State>, hold: Arc<Hold>) {
    let _turn = hold.claims.turn().await;
    // A newer hold of just one of the keys shows that this one is over.
    if !hold.claims.are_held_by(&hold) || !hold.is_unused() {
        return;
    }
    // Of several keys the loss of one leaves the others.
    let over = hold.loss() == Some(Loss::EndedByServer) && hold.claims.is_single();
    hold.end();
    state.schedule.remove(&hold);
    if !over {
        release_dropped(&state, &hold).await;
    }
}

/// The clean-up after a call for a lock of which nobody awaits the outcome.
///
/// It may have been sent or not, be queued, or be granted. Its turn is kept
/// until this is done, so that a next call of the same owner comes after.
#[derive(Debug)]
pub(crate) struct Withdrawal {
    claims: Claims,
    /// Kept to the end of the clean-up.
    _turn: Turn,
    /// The lease that was asked for: after it no grant is left anyway.
    lease: Duration,
    /// The connection that the call was last made by.
    asked_by: Option<u64>,
    /// The shared hold that the call was to make exclusive.
    upgraded: Option<Arc<Hold>>,
}

/// Undoes a grant that nobody waits for.
pub(crate) async fn give_back(state: Arc<State>, claims: Claims, lease: Duration) {
    let turn = claims.turn().await;
    Withdrawal::new(claims, turn, lease).carry_out(state).await;
}

/// How often clean-up is repeated where an earlier connection may still be
/// open on the server: after 0.1 s, 1 s and 10 s.
const REPEATS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

impl Withdrawal {
    pub(crate) fn new(claims: Claims, turn: Turn, lease: Duration) -> Self {
        Self {
            claims,
            _turn: turn,
            lease,
            asked_by: None,
            upgraded: None,
        }
    }

    /// The same, for a call that was made by that connection, to upgrade that
    /// hold if there is one.
    pub(crate) fn asked_by(mut self, link: u64, upgraded: Option<Arc<Hold>>) -> Self {
        self.asked_by = Some(link);
        self.upgraded = upgraded;
        self
    }

    /// Cancels the request if it is queued, and undoes it if it was granted.
    pub(crate) async fn carry_out(self, state: Arc<State>) {
        let Some(link) = self.send(&state).await else {
            return;
        };
        // On the connection that the call was made by the clean-up cannot
        // overtake it. Nor on a later one, if the server closed the earlier.
        if link.is_sole || self.asked_by.is_none_or(|number| number == link.number) {
            return;
        }
        for pause in REPEATS {
            tokio::time::sleep(pause).await;
            self.send(&state).await;
        }
    }

    /// Sends the clean-up once; `None` if no server could be reached.
    async fn send(&self, state: &State) -> Option<Arc<Link>> {
        let deadline = Deadline::after(self.lease.max(state.limits.patience));
        let mut backoff = Backoff::default();
        while !deadline.is_over() {
            let link = state.link(deadline).await.ok()?;
            match link.ask_all(&self.commands()).await {
                Ok(replies) => {
                    self.take_up(replies.last(), &link).await;
                    return Some(link);
                }
                Err(Fault::Refused(_)) => return Some(link),
                Err(Fault::Broken(_) | Fault::Passing(_)) => backoff.pause(deadline).await,
            }
        }
        None
    }

    /// A hold with guards on it stays: the call was to enter it again, or to
    /// upgrade it. An upgrade that was granted in the meantime is undone.
    fn commands(&self) -> redis::Pipeline {
        let mut commands = redis::pipe();
        commands.add_command(protocol::cancel(&self.claims));
        match (self.claims.held(), &self.upgraded) {
            (Held::Nothing, _) => drop(commands.add_command(protocol::release(&self.claims))),
            (Held::These(_), Some(_)) => {
                commands.add_command(protocol::downgrade(&self.claims));
            }
            (Held::These(_) | Held::Otherwise(_), _) => {}
        }
        commands
    }

    /// Takes up what the last command came to.
    async fn take_up(&self, reply: Option<&Value>, link: &Link) {
        match (reply, &self.upgraded) {
            (Some(Value::ServerError(_)), _) => release_each(&self.claims, link).await,
            (Some(Value::Int(fence @ 1..)), Some(hold)) => {
                let fence = u64::try_from(*fence).unwrap_or(0);
                hold.take_fence(fence);
                if self.claims.is_lost(fence) {
                    hold.lose(Loss::EndedByServer);
                }
            }
            _ => {}
        }
    }
}

impl Drop for Withdrawal {
    /// Only now may the server's word about this hold be taken literally.
    fn drop(&mut self) {
        if let Some(hold) = &self.upgraded {
            hold.set_upgrading(false);
        }
    }
}
