//! Deadlocks: whether an owner that is about to wait would wait for itself.
//!
//! An owner waits for every holder that blocks it, and for everyone ahead of it
//! in the queue. For permits, holders block it only if the stuck ones leave too
//! few permits. So the search has two halves. This file collects the owners that
//! could be stuck, starting from the asker; [`Graph`] decides which of them are.
//! Only owners that wait can be stuck. In a queue, only the holders matter, and
//! waiters that also wait elsewhere. So unrelated locks and long queues are not
//! searched.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;

use super::graph::{Graph, Verdict};
use crate::table::QueueId;
use crate::table::Table;
use crate::ticket::Rank;
use crate::{Hold, Locks, Mode, Name, Request, Ticket, TicketId, Timestamp, Who};

/// The number of steps between checks of the time limit. A step takes up to a
/// microsecond.
const STEPS_AT_ONCE: u64 = 32;
/// The number of steps that are always taken: even a server that had to wait for
/// a processor finds the cycles of a few hundred owners.
const STEPS_SURE: u64 = 2048;

/// Called for one holder: its owner, and its permits; `None` for an exclusive
/// holder. Breaks when it has seen enough.
pub type VisitHolder<'a> = dyn FnMut(&[u8], Option<u32>) -> ControlFlow<()> + 'a;

/// The holders of locks that the current operation does not concern.
pub trait Holders {
    /// Calls `visit` for each holder whose lease has not ended, until `visit`
    /// breaks.
    fn visit(&self, name: Name<'_>, visit: &mut VisitHolder<'_>);

    /// Whether the search has reached its time limit. It ends then, and owners
    /// that it has not reached count as able to continue: it may miss a cycle,
    /// but never invents one.
    fn is_over(&self) -> bool;
}

/// The progress of the search.
#[derive(Default)]
struct Pace {
    steps: u64,
    is_over: bool,
}

impl Pace {
    /// Takes a step, unless the search is over.
    fn step(&mut self, holders: &dyn Holders) -> ControlFlow<()> {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_AT_ONCE) && !self.is_over {
            self.is_over = holders.is_over() && self.steps >= STEPS_SURE;
        }
        if self.is_over {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// A position in the queue of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Last,
    At(TicketId),
}

/// One of the locks for which an owner is about to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) name: Name<'a>,
    pub(super) hold: &'a Hold,
    pub(super) queue: Option<QueueId>,
    pub(super) place: Place,
}

/// The holders of a lock that may be stuck.
#[derive(Debug, Default)]
struct Blockers {
    exclusive: bool,
    nodes: Vec<(usize, u32)>,
}

/// What a waiter needs from the holders of the lock.
enum Need {
    /// The end of all holds.
    All,
    /// That stuck holders have no more permits than this.
    AtMost(u64),
    /// Nothing.
    Nothing,
}

/// One wait of one owner, in one queue.
#[derive(Clone, Copy)]
struct OneWait {
    node: usize,
    queue: Option<QueueId>,
    mode: Mode,
    rank: Rank,
    is_new: bool,
}

/// Whether neither the asker nor anybody for whom it would wait at its only target
/// waits elsewhere, so that there is nothing to search. False if that is not known
/// at once.
pub(super) fn nobody_waits(
    locks: &Locks,
    now: Timestamp,
    request: &Request<'_>,
    targets: &[Target<'_>],
    holders: &dyn Holders,
) -> bool {
    let [
        Target {
            name,
            hold,
            queue,
            place,
        },
    ] = *targets
    else {
        return false;
    };
    let table = &locks.table;
    let is_linked = |queue| {
        table
            .linked_ahead(queue, rank(table, place))
            .next()
            .is_some()
    };
    let waits = |owner: &[u8]| table.waits_of(owner).next().is_some();
    if queue.is_some_and(is_linked) || waits(request.owner) {
        return false;
    }
    // Whether permits are missing is for the search.
    let mut is_sure = true;
    visit_holders(now, name, Some(hold), holders, &mut |owner, permits| {
        is_sure = permits.is_none() && *owner != *request.owner && !waits(owner);
        ControlFlow::Break(())
    });
    is_sure
}

/// Calls `visit` for each holder of a lock whose lease has not ended: of this
/// hold, or as stored.
fn visit_holders(
    now: Timestamp,
    name: Name<'_>,
    hold: Option<&Hold>,
    holders: &dyn Holders,
    visit: &mut VisitHolder<'_>,
) {
    match hold {
        Some(Hold::Free | Hold::NoLock) => {}
        Some(Hold::Shared(shared)) => {
            let mut holders = shared.iter().filter(|it| !it.1.deadline.has_passed(now));
            let _ = holders.try_for_each(|(owner, it)| visit(owner, Some(it.permits)));
        }
        Some(Hold::Exclusive {
            who: Who::Waiter(owner),
            ..
        }) => {
            let _ = visit(owner, None);
        }
        Some(Hold::Exclusive { .. }) | None => holders.visit(name, visit),
    }
}

/// The search for a cycle that an asker would close.
pub(super) struct Search<'a> {
    now: Timestamp,
    locks: &'a Locks,
    table: &'a Table,
    holders: &'a dyn Holders,
    asker: &'a [u8],
    mode: Mode,
    targets: &'a [Target<'a>],
    graph: Graph,
    queues: BTreeMap<QueueId, Rc<Blockers>>,
    /// Where the asker waits or would wait, and whether it only would.
    asker_at: BTreeMap<QueueId, (Rank, bool)>,
    /// Whether all owners ahead in a queue are followed, not only the nearest
    /// one that waits elsewhere too.
    is_whole: bool,
    pace: Pace,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        now: Timestamp,
        locks: &'a Locks,
        holders: &'a dyn Holders,
        asker: &'a [u8],
        mode: Mode,
        targets: &'a [Target<'a>],
    ) -> Self {
        let table = &locks.table;
        let mut pace = Pace::default();
        let waits = table.waits_of(asker);
        let waits = waits.take_while(|_| pace.step(holders).is_continue());
        let waits = waits.filter(|(id, _)| !locks.is_request_stale(*id));
        let waits = waits.map(|(id, ticket)| (ticket.queue, (table.rank(id), false)));
        let targets_at = targets.iter();
        let targets_at =
            targets_at.filter_map(|it| Some((it.queue?, (rank(table, it.place), true))));
        let asker_at = waits.chain(targets_at).collect();
        Self {
            now,
            locks,
            table,
            holders,
            asker,
            mode,
            targets,
            graph: Graph::new(asker),
            queues: BTreeMap::new(),
            asker_at,
            is_whole: false,
            pace,
        }
    }

    /// The same search, in which no owner represents others.
    pub(super) fn whole(self) -> Self {
        Self {
            is_whole: true,
            ..self
        }
    }

    /// Whether waiting would close a cycle.
    pub(super) fn verdict(mut self) -> Verdict {
        for target in self.targets {
            if self.pace.is_over {
                break;
            }
            let holders = self.blockers(target.name, target.queue, Some(target.hold));
            let wait = OneWait {
                node: 0,
                queue: target.queue,
                mode: self.mode,
                rank: rank(self.table, target.place),
                is_new: true,
            };
            self.depend(&holders, wait);
        }
        let mut node = 0;
        while let Some(owner) = self.graph.owner(node) {
            self.follow(node, &owner);
            if self.pace.is_over {
                break;
            }
            node += 1;
        }
        self.graph.verdict(self.is_whole)
    }

    /// Adds all existing waits of an owner.
    fn follow(&mut self, node: usize, owner: &[u8]) {
        let table = self.table;
        for (id, ticket) in table.waits_of(owner) {
            if self.pace.step(self.holders).is_break() {
                return;
            }
            if self.is_over(id, ticket) {
                continue;
            }
            if let Some(queue) = table.queue(ticket.queue) {
                let holders = self.blockers(queue.name(), Some(ticket.queue), None);
                let wait = OneWait {
                    node,
                    queue: Some(ticket.queue),
                    mode: ticket.options.mode,
                    rank: table.rank(id),
                    is_new: false,
                };
                self.depend(&holders, wait);
            }
        }
    }

    /// Adds the owners for which one waiter waits at one lock.
    fn depend(&mut self, holders: &Blockers, wait: OneWait) {
        let spare = match self.need(holders, wait) {
            Need::Nothing => None,
            Need::All => Some(0),
            Need::AtMost(spare) => Some(spare),
        };
        if let Some(spare) = spare {
            let blocked = self.graph.wait(wait.node, spare, wait.is_new);
            for (holder, permits) in &holders.nodes {
                if self.pace.step(self.holders).is_break() {
                    return;
                }
                self.graph.add_blocker(blocked, *holder, (*permits).max(1));
            }
        }
        if let Some(queue) = wait.queue {
            self.depend_on_queue(queue, wait);
            let holds_it = || holders.nodes.iter().any(|it| it.0 == wait.node);
            if self.is_whole || holds_it() {
                self.depend_on_all_ahead(queue, wait);
            }
        }
    }

    /// Adds the owners ahead of a waiter. One owner that waits elsewhere too is
    /// enough: it waits for the others itself.
    fn depend_on_queue(&mut self, queue: QueueId, wait: OneWait) {
        if let Some((at, is_new)) = self.asker_at.get(&queue).copied()
            && at < wait.rank
        {
            let blocked = self.graph.wait(wait.node, 0, wait.is_new || is_new);
            self.graph.add_blocker(blocked, 0, 1);
        }
        let ahead = self.table.linked_ahead(queue, wait.rank);
        // In a cleared queue, each ticket may have to be passed.
        for id in ahead {
            if self.pace.step(self.holders).is_break() {
                return;
            }
            let ticket = self.table.ticket(id);
            let Some(ticket) = ticket.filter(|it| !self.is_over(id, it)) else {
                continue;
            };
            let nearest = self.graph.node(&ticket.owner);
            let blocked = self.graph.wait(wait.node, 0, wait.is_new);
            self.graph.add_blocker(blocked, nearest, 1);
            return;
        }
    }

    /// Adds every owner ahead of a waiter. This is necessary if others are
    /// already stuck, and if the waiter holds the lock itself, possibly after a
    /// rename, because the owners ahead may wait for that hold.
    fn depend_on_all_ahead(&mut self, queue: QueueId, wait: OneWait) {
        let table = self.table;
        for (id, ticket) in table.in_order(queue) {
            if table.rank(id) >= wait.rank || self.pace.step(self.holders).is_break() {
                return;
            }
            if !self.is_over(id, ticket) {
                let ahead = self.graph.node(&ticket.owner);
                let blocked = self.graph.wait(wait.node, 0, wait.is_new);
                self.graph.add_blocker(blocked, ahead, 1);
            }
        }
    }

    /// Whether a ticket no longer counts: it only waits for its withdrawal, or
    /// the asker's request would replace it.
    fn is_over(&self, id: TicketId, ticket: &Ticket) -> bool {
        let asked = |target: &Target<'_>| target.queue == Some(ticket.queue);
        (*ticket.owner == *self.asker && self.targets.iter().any(asked))
            || self.locks.is_request_stale(id)
    }

    /// What a waiter needs: its own needs, and the needs of those ahead of it.
    fn need(&mut self, holders: &Blockers, wait: OneWait) -> Need {
        if holders.nodes.is_empty() {
            return Need::Nothing;
        }
        if holders.exclusive || wait.mode == Mode::Exclusive {
            return Need::All;
        }
        let mut least = spare(wait.mode);
        let queued = wait
            .queue
            .into_iter()
            .flat_map(|it| self.table.in_order(it));
        for (id, ticket) in queued {
            if self.table.rank(id) >= wait.rank || self.pace.step(self.holders).is_break() {
                break;
            }
            if self.is_over(id, ticket) {
                continue;
            }
            if ticket.options.mode == Mode::Exclusive {
                return Need::All;
            }
            least = match (least, spare(ticket.options.mode)) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        least.map_or(Need::Nothing, Need::AtMost)
    }

    /// The holders of a lock that may be stuck: the asker, and owners that wait.
    fn blockers(
        &mut self,
        name: Name<'_>,
        queue: Option<QueueId>,
        hold: Option<&Hold>,
    ) -> Rc<Blockers> {
        if let Some(known) = queue.and_then(|queue| self.queues.get(&queue)) {
            return Rc::clone(known);
        }
        let mut found = Blockers::default();
        let holders = self.holders;
        let mut visit = |owner: &[u8], permits: Option<u32>| {
            self.pace.step(holders)?;
            found.exclusive |= permits.is_none();
            let waits = || self.table.waits_of(owner).next().is_some();
            if self.graph.has(owner) || waits() {
                let node = self.graph.node(owner);
                found.nodes.push((node, permits.unwrap_or(1)));
            }
            ControlFlow::Continue(())
        };
        visit_holders(self.now, name, hold, holders, &mut visit);
        let found = Rc::new(found);
        if let Some(queue) = queue {
            self.queues.insert(queue, Rc::clone(&found));
        }
        found
    }
}

fn rank(table: &Table, place: Place) -> Rank {
    match place {
        Place::First => Rank::MIN,
        Place::Last => Rank::MAX,
        Place::At(id) => table.rank(id),
    }
}

/// How many permits of stuck holders block nobody.
fn spare(mode: Mode) -> Option<u64> {
    match mode {
        Mode::Exclusive | Mode::Shared { limit: None, .. } => None,
        Mode::Shared {
            permits,
            limit: Some(limit),
        } => Some(u64::from(limit.saturating_sub(permits))),
    }
}
