//! Most tests start here: one client holds a lock, another waits for it.

use rlock_testkit::Server;
use rlock_testkit::client::Client;

/// `owner-a` holds the lock `k` for a minute, and `owner-b` is blocked until it gets it.
pub(crate) struct Contest {
    pub(crate) holder: Client,
    pub(crate) waiter: Client,
    pub(crate) fence: i64,
}

impl Contest {
    #[track_caller]
    pub(crate) fn on(server: &Server) -> Self {
        let holder = server.client();
        let fence = holder.number("RLOCK.ACQUIRE k owner-a 60000");
        let waiter = wait_for(server, "k", "owner-b", 1);
        Self {
            holder,
            waiter,
            fence,
        }
    }

    /// Asserts that the waiter is granted with a larger fence, and returns the fence.
    #[track_caller]
    pub(crate) fn assert_handed_over(&self) -> i64 {
        let fence = self.waiter.fence();
        assert!(fence > self.fence, "{fence} is not above {}", self.fence);
        fence
    }
}

/// A client that is blocked until it gets the lock; it is the last of `queued` then.
#[track_caller]
pub(crate) fn wait_for(server: &Server, key: &str, owner: &str, queued: usize) -> Client {
    let client = server.client();
    client.send(&format!("RLOCK.ACQUIRE {key} {owner} 60000 WAIT 0"));
    server.await_queued(key, queued);
    client
}
