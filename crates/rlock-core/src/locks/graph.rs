//! Waiting owners, the owners for which they wait, and the owners that can never
//! continue.
//!
//! The invariant: a set of owners is *stuck* if each of them has a wait that
//! stays blocked even if everybody outside the set releases all its locks. The
//! union of two stuck sets is stuck, so there is a largest one. It is found from
//! above: at first all waiting owners count as stuck. Then each owner is freed
//! whose waits are no longer blocked, until nobody else can be freed (the
//! greatest fixpoint).
//!
//! A search for a single cycle would miss this example: A and B hold the only two
//! permits, and both wait for a lock of C. If C asks for a permit, either A or B
//! would have to continue first, and neither can.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Owners as nodes, the asker first, and their waits.
#[derive(Debug)]
pub(super) struct Graph {
    owners: Vec<Rc<[u8]>>,
    nodes: BTreeMap<Rc<[u8]>, usize>,
    waits: Vec<Blocked>,
    edges: Vec<Edge>,
}

/// A wait: it is blocked while stuck owners have more permits than may be
/// missing.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    waiter: usize,
    spare: u64,
    /// Whether it is the wait that the asker would begin.
    is_new: bool,
}

/// An owner that blocks a wait.
#[derive(Clone, Copy, Debug)]
struct Edge {
    wait: usize,
    by: usize,
    permits: u32,
}

/// The result for an asker.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It may wait.
    NoCycle,
    /// It would close this cycle: the asker comes first, each waits for the next,
    /// the last for the asker.
    Cycle(Vec<Box<[u8]>>),
    /// Other owners were stuck before, and the graph is not complete: owners that
    /// represent others may be among them.
    ExistingDeadlock,
}

struct ExistingDeadlock;

impl Graph {
    pub(super) fn new(asker: &[u8]) -> Self {
        let asker: Rc<[u8]> = asker.into();
        Self {
            owners: vec![Rc::clone(&asker)],
            nodes: BTreeMap::from([(asker, 0)]),
            waits: Vec::new(),
            edges: Vec::new(),
        }
    }

    pub(super) fn owner(&self, node: usize) -> Option<Rc<[u8]>> {
        self.owners.get(node).cloned()
    }

    pub(super) fn has(&self, owner: &[u8]) -> bool {
        self.nodes.contains_key(owner)
    }

    pub(super) fn node(&mut self, owner: &[u8]) -> usize {
        if let Some(node) = self.nodes.get(owner) {
            return *node;
        }
        let node = self.owners.len();
        let owner: Rc<[u8]> = owner.into();
        self.owners.push(Rc::clone(&owner));
        self.nodes.insert(owner, node);
        node
    }

    /// Adds a wait of `waiter`, for which `spare` permits may be missing.
    pub(super) fn wait(&mut self, waiter: usize, spare: u64, is_new: bool) -> usize {
        self.waits.push(Blocked {
            waiter,
            spare,
            is_new,
        });
        self.waits.len() - 1
    }

    /// Adds an owner that blocks a wait with some permits. An owner does not
    /// block itself.
    pub(super) fn add_blocker(&mut self, wait: usize, by: usize, permits: u32) {
        if self.waits.get(wait).is_some_and(|it| it.waiter != by) {
            self.edges.push(Edge { wait, by, permits });
        }
    }

    /// The cycle that the asker would close by waiting, if it would.
    pub(super) fn verdict(self, is_whole: bool) -> Verdict {
        match self.cycle(is_whole) {
            Ok(None) => Verdict::NoCycle,
            Ok(Some(owners)) => Verdict::Cycle(owners),
            Err(ExistingDeadlock) => Verdict::ExistingDeadlock,
        }
    }

    fn cycle(mut self, is_whole: bool) -> Result<Option<Vec<Box<[u8]>>>, ExistingDeadlock> {
        if !self.edges.iter().any(|edge| edge.by == 0) {
            return Ok(None);
        }
        self.edges.sort_unstable_by_key(|edge| edge.by);
        let nobody = vec![false; self.owners.len()];
        let asker_is = |stuck: &[bool]| stuck.first() == Some(&true);
        if !asker_is(&self.stuck(true, &nobody)) {
            return Ok(None);
        }
        // Owners that were stuck before do not depend on the asker, and waiting
        // for them closes no cycle.
        let before = self.stuck(false, &nobody);
        if asker_is(&before) {
            return Ok(None);
        }
        if !is_whole && before.contains(&true) {
            return Err(ExistingDeadlock);
        }
        let stuck = self.stuck(true, &before);
        if !asker_is(&stuck) {
            return Ok(None);
        }
        Ok(self.path(&stuck))
    }

    /// The largest set of stuck owners, with or without the wait that the asker
    /// would begin. Owners in `free` are never stuck.
    fn stuck(&self, with_new: bool, free: &[bool]) -> Vec<bool> {
        let counts = |wait: &Blocked| with_new || !wait.is_new;
        let is_free = |node: usize| free.get(node).copied().unwrap_or(true);
        let mut missing = vec![0_u64; self.waits.len()];
        for edge in self.edges.iter().filter(|edge| !is_free(edge.by)) {
            if let Some(missing) = missing.get_mut(edge.wait) {
                *missing += u64::from(edge.permits);
            }
        }
        let mut blocked = vec![0_usize; self.owners.len()];
        for (wait, missing) in self.waits.iter().zip(&missing) {
            if let Some(blocked) = blocked.get_mut(wait.waiter)
                && counts(wait)
                && *missing > wait.spare
            {
                *blocked += 1;
            }
        }
        let mut stuck: Vec<_> = (0..self.owners.len()).map(|node| !is_free(node)).collect();
        let goes_on = |node: &usize| !is_free(*node) && blocked.get(*node) == Some(&0);
        let mut going: Vec<_> = (0..self.owners.len()).filter(goes_on).collect();
        while let Some(node) = going.pop() {
            if let Some(stuck) = stuck.get_mut(node) {
                *stuck = false;
            }
            for edge in self.edges_by(node) {
                let (Some(wait), Some(missing)) =
                    (self.waits.get(edge.wait), missing.get_mut(edge.wait))
                else {
                    continue;
                };
                let was_blocked = *missing > wait.spare;
                *missing -= u64::from(edge.permits);
                if was_blocked
                    && *missing <= wait.spare
                    && counts(wait)
                    && !is_free(wait.waiter)
                    && let Some(blocked) = blocked.get_mut(wait.waiter)
                {
                    *blocked -= 1;
                    if *blocked == 0 {
                        going.push(wait.waiter);
                    }
                }
            }
        }
        stuck
    }

    /// The edges by which an owner blocks waits.
    fn edges_by(&self, node: usize) -> impl Iterator<Item = &Edge> {
        let first = self.edges.partition_point(|edge| edge.by < node);
        let edges = self.edges.get(first..).unwrap_or_default().iter();
        edges.take_while(move |edge| edge.by == node)
    }

    /// The shortest path from the asker through stuck owners back to it, searched
    /// backwards from the owners that wait for the asker.
    fn path(&self, stuck: &[bool]) -> Option<Vec<Box<[u8]>>> {
        let mut next = vec![None; self.owners.len()];
        let mut new = VecDeque::from([0]);
        while let Some(node) = new.pop_front() {
            for edge in self.edges_by(node) {
                let waiter = self.waits.get(edge.wait)?.waiter;
                let unseen = next.get(waiter)?.is_none();
                if unseen && *stuck.get(waiter)? {
                    *next.get_mut(waiter)? = Some(node);
                    new.push_back(waiter);
                }
            }
        }
        let after = |node: &usize| next.get(*node).copied().flatten().filter(|it| *it != 0);
        next.first()?.as_ref()?;
        let path = std::iter::successors(Some(0), after);
        let owners = path.filter_map(|node| self.owners.get(node).map(|it| (**it).into()));
        Some(owners.collect())
    }
}
