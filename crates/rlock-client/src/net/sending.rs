//! In which order requests are sent, and who awaits their replies.
//!
//! The engine's requests are sent in the order in which it makes them: each is
//! begun under the engine's mutex. A connection has room for so many under way;
//! the others wait in line. While some do, the background awaits all replies,
//! as callers that are slow to look at theirs would hold up everybody.

use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rlock_engine::engine::Id;
use rlock_engine::engine::request::{Reply, Request};
use rlock_engine::error::Fault;
use tokio::sync::OwnedSemaphorePermit;

use crate::net::calling::Caller;
use crate::net::driver::Order;
use crate::net::link::Link;
use crate::net::state::{Afterwards, Core, Line, State};

/// A request that has been sent, and is to be awaited.
pub(crate) type Asking = Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send>>;

/// A request that is to be sent.
pub(super) struct Unsent {
    pub(super) id: Id,
    pub(super) request: Request,
    /// The call that waits for it.
    pub(super) call: Option<Id>,
}

impl State {
    /// Sends a request, or has it wait behind those that have no room yet.
    pub(super) fn send(
        &self,
        core: &mut Core,
        caller: Option<Caller<'_>>,
        link: u64,
        unsent: Unsent,
        afterwards: &mut Afterwards,
    ) {
        let mut lines = core.lines.iter_mut();
        let Some(line) = lines.find(|line| line.link.number == link) else {
            return;
        };
        // What goes by another connection holds up nobody here.
        let needs_room = !unsent.request.goes_beside();
        if needs_room && !line.unsent.is_empty() {
            return line.unsent.push_back(unsent);
        }
        let room = line.link.room().filter(|_| needs_room);
        if needs_room && room.is_none() {
            line.unsent.push_back(unsent);
            return self.await_all(core);
        }
        let link = Arc::clone(&line.link);
        let Unsent { id, request, call } = unsent;
        let slot = call.and_then(|call| core.slots.get(&call));
        let own = caller.filter(|caller| slot.is_some_and(|slot| Arc::ptr_eq(slot, caller.slot)));
        let nobody = Waker::noop();
        let waker = own.map_or(nobody, |caller| caller.waker);
        let (asking, is_awaited) = self.begin_to_ask(link, room, request, waker);
        match slot {
            Some(slot) => {
                let is_awaited = is_awaited && own.is_some();
                let others = slot.put_request(id, asking, is_awaited);
                afterwards.wakers.extend(others.filter(|_| own.is_none()));
            }
            None => self.order(Order::Await(id, asking)),
        }
    }

    /// Has the background await what callers were to await.
    fn await_all(&self, core: &Core) {
        for slot in core.slots.values() {
            if let Some((request, asking)) = slot.take_request() {
                self.order(Order::Await(request, asking));
            }
        }
    }

    /// Sends what waits, as far as there is room now.
    pub(super) fn send_on(&self, core: &mut Core) {
        for Line { link, unsent } in &mut core.lines {
            while !unsent.is_empty()
                && let Some(room) = link.room()
                && let Some(Unsent { id, request, .. }) = unsent.pop_front()
            {
                let link = Arc::clone(link);
                let (asking, _) = self.begin_to_ask(link, Some(room), request, Waker::noop());
                self.order(Order::Await(id, asking));
            }
        }
    }

    /// Begins to ask, so that the request comes before all that are made
    /// afterwards. The answer is what has to be awaited for the reply, and
    /// whether `waker` will be woken for it.
    fn begin_to_ask(
        &self,
        link: Arc<Link>,
        room: Option<OwnedSemaphorePermit>,
        request: Request,
        waker: &Waker,
    ) -> (Asking, bool) {
        tracing::trace!(?request);
        let asking = async move {
            let reply = link.carry_out(&request).await;
            drop(room);
            reply
        };
        // A task that has used up its time would not send anything, and what is
        // asked afterwards by another one would come first.
        let mut asking: Asking = Box::pin(tokio::task::unconstrained(asking));
        // Its time-out belongs to the background's runtime, which may be about
        // to end: then there is nobody to await the reply either.
        let _entered = self.runtime.enter();
        let mut context = Context::from_waker(waker);
        let begin = AssertUnwindSafe(|| asking.as_mut().poll(&mut context));
        match panic::catch_unwind(begin) {
            Ok(Poll::Ready(reply)) => (Box::pin(async move { reply }), false),
            Ok(Poll::Pending) => (asking, true),
            Err(_) => (asking, false),
        }
    }
}
