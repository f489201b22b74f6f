//! Holds that end with their connection.

use crate::{Announce, Hold, Locks, Name, Step, Timestamp};

impl Locks {
    /// Cuts a hold whose connection has closed: it ends after its grace, at
    /// once if there is none. Nothing happens if it has been renewed by another
    /// connection since.
    pub fn unbind(
        &mut self,
        now: Timestamp,
        name: Name<'_>,
        hold: &mut Hold,
        owner: &[u8],
    ) -> Step<()> {
        self.view(now, name, hold, Some(owner));
        let watch = self.table.watch_named(name, owner);
        let watch = watch.filter(|it| hold.fence_of(owner) == Some(it.fence));
        let binding = watch.and_then(|it| it.binding);
        let ends = binding.and_then(|it| it.ends());
        let (Some(mut held), Some(ends)) = (hold.of_caller(owner), ends) else {
            return Step::quiet(());
        };
        if binding.is_some_and(|it| it.grace_ms == 0) {
            hold.lose(owner);
            let step = self.settle(now, name, hold);
            return step.announcing(Announce::IfFreed);
        }
        let before = hold.deadline();
        if ends < held.deadline {
            held.deadline = ends;
            hold.set_of_caller(owner, held);
        }
        self.hold_changed(now, name, hold);
        Step::quiet(()).announcing(Announce::if_sooner(hold.deadline(), before))
    }
}
