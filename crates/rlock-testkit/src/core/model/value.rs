//! The published value of a hold, and the messages to its followers.

use rlock_core::Extras;

use super::Model;
use crate::core::messages::Sent;

impl Model {
    /// Replaces the extras of an exclusive hold that are given.
    pub(super) fn change_extras(&mut self, at: usize, extras: Extras<&'static str>) {
        if let Some(hash) = self.locks[at].data.lock_mut() {
            hash.extras.change(extras);
        }
    }

    /// A command, or an action without one, has finished with a lock. Followers do not see values that were replaced
    /// within the command.
    pub(super) fn value_message(&mut self, at: usize) {
        let lock = &mut self.locks[at];
        let is_now = lock.data.published();
        let before = std::mem::replace(&mut lock.followed, is_now);
        let (fence, value, what) = match (before, is_now) {
            (Some(before), Some(now)) if before == now => return,
            (None, None) => return,
            (Some((fence, _)), None) => (fence, None, "ends"),
            (None, Some((fence, value))) => (fence, Some(value), "begins"),
            (Some((before, _)), Some((fence, value))) if before == fence => {
                (fence, Some(value), "changes")
            }
            (Some(_), Some((fence, value))) => (fence, Some(value), "follows another"),
        };
        self.sent.push(Sent::Value {
            key: lock.key.to_owned(),
            fence,
            value: value.map(str::to_owned),
        });
        self.event("value", what);
        self.see(at);
    }

    /// A client has asked who holds a lock. From then on it receives a message about the end of the hold.
    pub fn follow(&mut self, at: usize) {
        self.expire_key(at);
        let lock = &mut self.locks[at];
        if lock.followed.is_none()
            && let Some((fence, value)) = lock.data.published()
        {
            lock.followed = Some((fence, value));
            self.note_fence(at, fence);
            self.event("value", "is asked for");
            self.see(at);
        }
    }
}
