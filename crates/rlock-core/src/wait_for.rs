//! Deadlocks: whether somebody who is about to wait would wait for itself.
//!
//! An owner waits for every holder in its way and for everyone ahead of it in
//! the queue. For permits, holders are in the way only if those of them that
//! are stuck leave too little. So the search has two halves: who could be
//! stuck at all is collected here, from the asker onwards; who is, in
//! [`Graph`], from the asker backwards. Only owners that wait can be, and of a
//! queue only those who wait elsewhere too matter beside its holders, so
//! unrelated locks and long queues are not looked at.

use std::{collections::BTreeMap, rc::Rc};

use crate::{
    Hold, Mode, Name, TicketId, Who,
    graph::{Edge, Graph},
    queue::{Queue, QueueId},
    table::Table,
    ticket::Rank,
};

/// How much of the graph is looked at before the search is given up, in
/// look-ups of about 0.1 µs. Whoever is then not found waits as long as asked.
const STEPS_MAX: usize = 50_000;

/// Who holds locks that the operation at hand does not concern.
pub trait Holders {
    /// Calls `visit` for each holder whose lease has not ended, with its
    /// permits; `None` if it holds the lock in exclusive mode.
    fn visit(&self, name: Name<'_>, visit: &mut dyn FnMut(&[u8], Option<u32>));
}

/// Where in the queue of a lock somebody would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    First,
    Last,
    At(TicketId),
}

/// One of the locks that an owner is about to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) hold: &'a Hold,
    pub(crate) queue: Option<QueueId>,
    pub(crate) place: Place,
}

/// Those holders of a lock who may be stuck.
#[derive(Debug, Default)]
struct InTheWay {
    exclusive: bool,
    nodes: Vec<(usize, u32)>,
}

/// What a waiter needs of those who hold the lock.
enum Need {
    /// That all of them end.
    All,
    /// That those who are stuck have no more permits than this.
    AtMost(u64),
    /// Nothing.
    Nothing,
}

/// The search for a cycle that an asker would close.
pub(crate) struct Search<'a> {
    table: &'a Table,
    holders: &'a dyn Holders,
    asker: &'a [u8],
    mode: Mode,
    targets: &'a [Target<'a>],
    graph: Graph,
    queues: BTreeMap<QueueId, Rc<InTheWay>>,
    asker_is_queued: bool,
    steps: usize,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        table: &'a Table,
        holders: &'a dyn Holders,
        asker: &'a [u8],
        mode: Mode,
        targets: &'a [Target<'a>],
    ) -> Self {
        Self {
            table,
            holders,
            asker,
            mode,
            targets,
            graph: Graph::new(asker),
            queues: BTreeMap::new(),
            asker_is_queued: table.tickets_of(asker).next().is_some(),
            steps: 0,
        }
    }

    /// The owners of the cycle that would be closed, the asker first, each
    /// waiting for the next and the last for the first.
    pub(crate) fn cycle(mut self) -> Option<Vec<Box<[u8]>>> {
        for target in self.targets {
            let holders = self.in_the_way(target.name, target.queue, Some(target.hold));
            self.depend(0, &holders, target.queue, self.mode, target.place);
        }
        let mut node = 1;
        while let Some(owner) = self.graph.owner(node) {
            for (id, ticket) in self.table.tickets_of(&owner) {
                if let Some(queue) = self.table.queues.get(&ticket.queue) {
                    let (id, queue_id) = (Place::At(id), Some(ticket.queue));
                    let holders = self.in_the_way(name_of(queue), queue_id, None);
                    self.depend(node, &holders, queue_id, ticket.mode, id);
                }
            }
            if self.steps > STEPS_MAX {
                return None;
            }
            node += 1;
        }
        self.graph.cycle()
    }

    /// Adds whom one waiter waits for at one lock.
    fn depend(
        &mut self,
        node: usize,
        holders: &InTheWay,
        queue: Option<QueueId>,
        mode: Mode,
        place: Place,
    ) {
        let others = || holders.nodes.iter().filter(|it| it.0 != node);
        match self.need(holders, queue, mode, place) {
            Need::Nothing => {}
            Need::All => others().for_each(|it| self.graph.edge(node, it.0, Edge::Any)),
            Need::AtMost(spare) => {
                let threshold = self.graph.threshold(spare);
                for (holder, permits) in others().copied() {
                    let edge = Edge::Permits { threshold, permits };
                    self.graph.edge(node, holder, edge);
                }
            }
        }
        self.steps += holders.nodes.len();
        if let Some(queue) = queue {
            self.depend_on_queue(node, queue, place);
        }
    }

    /// Adds whom a waiter waits for as they are ahead of it. One of those who
    /// wait elsewhere too is enough: it waits for the others itself.
    fn depend_on_queue(&mut self, node: usize, queue: QueueId, place: Place) {
        let asks_first = self.targets.first();
        let asks_first =
            asks_first.is_some_and(|it| it.queue == Some(queue) && it.place == Place::First);
        let own = self.asker_is_queued.then_some(self.asker);
        let own = own.and_then(|asker| self.table.ticket_of(queue, asker));
        if asks_first || own.is_some_and(|own| self.is_ahead(own, place)) {
            self.graph.edge(node, 0, Edge::Any);
        }
        let linked = &self.table.linked;
        let first = (queue, Rank::MIN, TicketId::MIN);
        let ahead = linked.range(first..(queue, self.rank(place), TicketId::MIN));
        let nearest = ahead.map(|it| it.2).next_back();
        if let Some(ticket) = nearest.and_then(|id| self.table.tickets.get(&id)) {
            let ahead = self.graph.node(&ticket.owner);
            self.graph.edge(node, ahead, Edge::Any);
        }
        self.steps += 2;
    }

    /// What a waiter needs: what those ahead of it need, and what it needs
    /// itself.
    fn need(
        &mut self,
        holders: &InTheWay,
        queue: Option<QueueId>,
        mode: Mode,
        place: Place,
    ) -> Need {
        if holders.nodes.is_empty() {
            return Need::Nothing;
        }
        if holders.exclusive || mode == Mode::Exclusive {
            return Need::All;
        }
        let mut least = spare(mode);
        let queued = queue.into_iter().flat_map(|it| self.table.in_order(it));
        for (id, ticket) in queued {
            if !self.is_ahead(id, place) || self.steps > STEPS_MAX {
                break;
            }
            self.steps += 1;
            if ticket.mode == Mode::Exclusive {
                return Need::All;
            }
            least = match (least, spare(ticket.mode)) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        least.map_or(Need::Nothing, Need::AtMost)
    }

    fn is_ahead(&self, id: TicketId, place: Place) -> bool {
        self.table.rank(id) < self.rank(place)
    }

    fn rank(&self, place: Place) -> Rank {
        match place {
            Place::First => Rank::MIN,
            Place::Last => Rank::MAX,
            Place::At(id) => self.table.rank(id),
        }
    }

    /// The holders of a lock who may be stuck: the asker, and whoever waits.
    fn in_the_way(
        &mut self,
        name: Name<'_>,
        queue: Option<QueueId>,
        hold: Option<&Hold>,
    ) -> Rc<InTheWay> {
        if let Some(known) = queue.and_then(|queue| self.queues.get(&queue)) {
            return Rc::clone(known);
        }
        let mut found = InTheWay::default();
        let holders = self.holders;
        let mut visit = |owner: &[u8], permits: Option<u32>| {
            self.steps += 1;
            found.exclusive |= permits.is_none();
            let waits = || self.table.tickets_of(owner).next().is_some();
            if self.steps <= STEPS_MAX && (self.graph.has(owner) || waits()) {
                let node = self.graph.node(owner);
                found.nodes.push((node, permits.unwrap_or(1)));
            }
        };
        match hold {
            Some(Hold::Free | Hold::NoLock) => {}
            Some(Hold::Shared(shared)) => {
                let holders = shared.iter();
                holders.for_each(|(owner, it)| visit(owner, Some(it.permits)));
            }
            Some(Hold::Exclusive {
                who: Who::Waiter { owner, .. },
                ..
            }) => visit(owner, None),
            Some(Hold::Exclusive { .. }) | None => holders.visit(name, &mut visit),
        }
        let found = Rc::new(found);
        if let Some(queue) = queue {
            self.queues.insert(queue, Rc::clone(&found));
        }
        found
    }
}

/// How many permits may be stuck without being in the way.
fn spare(mode: Mode) -> Option<u64> {
    match mode {
        Mode::Exclusive | Mode::Shared { limit: None, .. } => None,
        Mode::Shared {
            permits,
            limit: Some(limit),
        } => Some(u64::from(limit.saturating_sub(permits))),
    }
}

/// The name of the lock of a queue.
pub(crate) fn name_of(queue: &Queue) -> Name<'_> {
    Name {
        db: queue.db,
        key: &queue.key,
    }
}
