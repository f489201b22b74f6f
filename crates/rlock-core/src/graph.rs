//! Who waits for whom, and who is stuck because of the asker.

use std::{
    collections::{HashMap, VecDeque},
    rc::Rc,
};

/// Owners as nodes, of whom the first is the asker, and who waits for whom.
#[derive(Debug)]
pub(crate) struct Graph {
    owners: Vec<Rc<[u8]>>,
    nodes: HashMap<Rc<[u8]>, usize>,
    /// For whom somebody waits, who, and what it means.
    edges: Vec<(usize, usize, Edge)>,
    /// Whether anybody waits for the asker.
    asker_is_in_the_way: bool,
    thresholds: Vec<Threshold>,
}

/// What it means for a waiter that somebody in its way is stuck.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edge {
    /// It is stuck too.
    Any,
    /// It is, if more permits are stuck than the threshold allows.
    Permits { threshold: usize, permits: u32 },
}

#[derive(Debug)]
struct Threshold {
    spare: u64,
    stuck: u64,
}

impl Graph {
    pub(crate) fn new(asker: &[u8]) -> Self {
        let asker: Rc<[u8]> = asker.into();
        Self {
            owners: vec![Rc::clone(&asker)],
            nodes: HashMap::from([(asker, 0)]),
            edges: Vec::new(),
            asker_is_in_the_way: false,
            thresholds: Vec::new(),
        }
    }

    pub(crate) fn owner(&self, node: usize) -> Option<Rc<[u8]>> {
        self.owners.get(node).cloned()
    }

    pub(crate) fn has(&self, owner: &[u8]) -> bool {
        self.nodes.contains_key(owner)
    }

    pub(crate) fn node(&mut self, owner: &[u8]) -> usize {
        if let Some(node) = self.nodes.get(owner) {
            return *node;
        }
        let node = self.owners.len();
        let owner: Rc<[u8]> = owner.into();
        self.owners.push(Rc::clone(&owner));
        self.nodes.insert(owner, node);
        node
    }

    /// A number of permits that may be stuck without being in the way.
    pub(crate) fn threshold(&mut self, spare: u64) -> usize {
        self.thresholds.push(Threshold { spare, stuck: 0 });
        self.thresholds.len() - 1
    }

    /// Takes note that `waiter` waits for `node`.
    pub(crate) fn edge(&mut self, waiter: usize, node: usize, edge: Edge) {
        if node != waiter {
            self.asker_is_in_the_way |= node == 0;
            self.edges.push((node, waiter, edge));
        }
    }

    /// Goes back from the asker to all who are stuck because of it. The cycle,
    /// if the asker is one of them: each waits for the next.
    pub(crate) fn cycle(mut self) -> Option<Vec<Box<[u8]>>> {
        if !self.asker_is_in_the_way {
            return None;
        }
        self.edges.sort_unstable_by_key(|edge| edge.0);
        let mut because = vec![None; self.owners.len()];
        let mut new = VecDeque::from([0]);
        while let Some(node) = new.pop_front() {
            let first = self.edges.partition_point(|edge| edge.0 < node);
            let edges = self.edges.get(first..)?.iter();
            for (_, waiter, edge) in edges.take_while(|edge| edge.0 == node) {
                let (waiter, edge) = (*waiter, *edge);
                let reason = because.get_mut(waiter)?;
                if !is_stuck(&mut self.thresholds, edge) || reason.is_some() {
                    continue;
                }
                *reason = Some(node);
                if waiter == 0 {
                    return Some(self.path(&because));
                }
                new.push_back(waiter);
            }
        }
        None
    }

    fn path(&self, because: &[Option<usize>]) -> Vec<Box<[u8]>> {
        let next = |node: &usize| because.get(*node).copied().flatten().filter(|it| *it != 0);
        let path = std::iter::successors(Some(0), next);
        path.filter_map(|node| self.owners.get(node).map(|it| (**it).into()))
            .collect()
    }
}

/// Whether one more who is stuck makes a waiter stuck.
fn is_stuck(thresholds: &mut [Threshold], edge: Edge) -> bool {
    match edge {
        Edge::Any => true,
        Edge::Permits { threshold, permits } => {
            let threshold = thresholds.get_mut(threshold);
            threshold.is_some_and(|it| {
                it.stuck += u64::from(permits);
                it.stuck > it.spare
            })
        }
    }
}
