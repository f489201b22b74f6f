//! Places that outlive their calls.

use rlock_core::Extras;

use super::{Kind, Model, Via, Waiting};

impl Model {
    /// A request ends with its call, unless its place is kept: then the place stays empty until the grace ends.
    pub(super) fn end_call(&mut self, id: u64, kept: &'static str) {
        let Some(keep) = self.request(id).wanted.keep else {
            self.drop_request(id);
            return;
        };
        self.event("place", kept);
        let ends = self.now + keep;
        for lock in &mut self.locks {
            lock.touched |= lock.queue.contains(&id);
        }
        let mut requests = self.requests.iter_mut();
        let request = requests.find(|it| it.id == id).expect("it has a place");
        request.via = Via::Kept;
        request.ends = Some(ends);
        (request.wanted.grace, request.wanted.extras) = (None, Extras::NONE);
    }

    /// Records a hand-off whose place must be kept if it was not delivered.
    pub(super) fn may_come_back(&mut self, fence: u64, granted: &Waiting) {
        if granted.wanted.keep.is_some() {
            self.handed_off.push((fence, granted.clone()));
        }
    }

    /// The hand-off of these keys under this fence was not delivered: its place
    /// is kept, unless its owner has asked again.
    pub(super) fn restore_place(&mut self, keys: &[usize], owner: &str, fence: u64) {
        let is_of = |it: &(u64, Waiting)| it.0 == fence && it.1.owner == owner;
        let found = keys.iter().find_map(|at| {
            let mut all = self.handed_off.iter();
            all.position(|it| is_of(it) && it.1.keys.contains(at))
        });
        let Some((_, mut request)) = found.map(|at| self.handed_off.swap_remove(at)) else {
            return;
        };
        let has_asked_again = |at: &usize| self.place(*at, &request.owner).is_some();
        let Some(keep) = request
            .wanted
            .keep
            .filter(|_| !request.keys.iter().any(has_asked_again))
        else {
            return;
        };
        self.event("place", "kept for a grant that did not arrive");
        request.via = Via::Kept;
        request.ends = Some(self.now + keep);
        (request.wanted.grace, request.wanted.extras) = (None, Extras::NONE);
        for at in &request.keys {
            // Upgrades come first, even if their shared holds have ended.
            let order = |it: &Waiting| (it.kind != Kind::Upgrade, it.id);
            let stands_before = |id: &u64| order(self.request(*id)) < order(&request);
            let queue = &self.locks[*at].queue;
            let place = queue.iter().take_while(|id| stands_before(id)).count();
            self.locks[*at].queue.insert(place, request.id);
        }
        self.requests.push(request);
    }
}
