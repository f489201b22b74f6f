//! What locks of all kinds do alike: each behaviour is written once, and tested with each kind.

use std::time::{Duration, Instant};

use rlock_client::{
    Client, Error, Exclusive, Guard, Kind, Lease, Loss, MultiLock, Mutex, Owner, Permit, RwLock,
    Semaphore, Several, Shared, Terms, Write,
};
use tokio::task::JoinHandle;

use crate::connects::Connects;
use rlock_testkit::asynchronous::{Admin, PATIENCE, Server, eventually};
use rlock_testkit::proxy::{Proxy, Weather};

/// How a test asks for locks of one kind: always for all that a writer would keep from others.
trait Contender: Clone + Send + Sync + 'static {
    type Kind: Kind<Grants: Send + Sync>;
    /// What it holds.
    const KEYS: &[&str];

    fn of(client: &Client, terms: Terms) -> Self;
    fn take(&self) -> impl Future<Output = Result<Guard<Self::Kind>, Error>> + Send;
    fn try_take(&self) -> impl Future<Output = Result<Option<Guard<Self::Kind>>, Error>> + Send;
    fn take_within(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Guard<Self::Kind>>, Error>> + Send;
}

/// Makes a [`Contender`] of a lock: what it is, how it is made, and the names of its calls.
macro_rules! contender {
    ($name:ident, $lock:ty, $kind:ty, $keys:expr, $of:expr, $take:ident($($many:expr)?), $try:ident, $within:ident) => {
        #[derive(Clone)]
        struct $name($lock);

        impl Contender for $name {
            type Kind = $kind;
            const KEYS: &[&str] = &$keys;

            fn of(client: &Client, terms: Terms) -> Self {
                let of: fn(&Client) -> $lock = $of;
                Self(of(client).with(terms))
            }

            async fn take(&self) -> Result<Guard<$kind>, Error> {
                self.0.$take($($many)?).await
            }

            async fn try_take(&self) -> Result<Option<Guard<$kind>>, Error> {
                self.0.$try($($many)?).await
            }

            async fn take_within(&self, wait: Duration) -> Result<Option<Guard<$kind>>, Error> {
                self.0.$within($($many,)? wait).await
            }
        }
    };
}

#[rustfmt::skip]
contender!(Alone, Mutex, Exclusive, ["k"], |it| it.mutex("k"), lock(), try_lock, lock_timeout);
#[rustfmt::skip]
contender!(Reader, RwLock, Shared, ["k"], |it| it.rwlock("k"), read(), try_read, read_timeout);
#[rustfmt::skip]
contender!(Writer, RwLock, Write, ["k"], |it| it.rwlock("k"), write(), try_write, write_timeout);
#[rustfmt::skip]
contender!(AllPermits, Semaphore, Permit, ["k"], |it| it.semaphore("k", 2), acquire_many(2), try_acquire_many, acquire_many_timeout);
#[rustfmt::skip]
contender!(Both, MultiLock, Several, ["k", "l"], |it| it.multi(["k", "l"]), lock(), try_lock, lock_timeout);

/// What an owner can enter again.
trait Reentrant: Contender {
    fn by(&self, owner: &Owner) -> Self;
}

macro_rules! reentrant {
    ($($name:ident),+) => {$(
        impl Reentrant for $name {
            fn by(&self, owner: &Owner) -> Self {
                Self(self.0.by(owner))
            }
        }
    )+};
}

reentrant!(Alone, Reader, Writer, Both);

/// Makes a test of a behaviour for each of some kinds.
macro_rules! of_kinds {
    ($behaviour:ident: $($name:ident $kind:ident),+) => {
        mod $behaviour {
            $(#[test]
            fn $name() {
                crate::calm::on_a_calm_machine(super::$behaviour::<super::$kind>);
            })+
        }
    };
}

macro_rules! of_each_kind {
    ($($behaviour:ident),+ $(,)?) => {
        $(of_kinds!($behaviour: mutex Alone, reader Reader, writer Writer, permits AllPermits, several Both);)+
    };
}

of_each_kind!(
    the_lock_is_waited_for_and_handed_on,
    a_hold_ended_by_others_is_lost_at_once,
    a_fixed_lease_ends_and_the_holder_knows_first,
    the_watchdog_keeps_a_lock_for_longer_than_its_lease,
    lost_replies_give_the_same_grant_once_and_one_release,
    calls_given_up_while_their_replies_were_lost_leave_nothing,
    a_holder_that_hears_nothing_knows_its_loss_before_others_can_have_it,
    holds_and_waits_outlast_their_connection,
);
of_kinds!(an_owner_enters_again_under_the_same_fence_past_every_waiter: mutex Alone, reader Reader, writer Writer, several Both);

fn usual<C: Contender>(client: &Client) -> C {
    C::of(client, Terms::new())
}

/// Somebody who wants the first of the keys, and waits for it.
async fn rival(client: &Client, admin: &mut Admin) -> JoinHandle<Guard> {
    let mutex = client.mutex("k");
    let waiting = tokio::spawn(async move { mutex.lock_timeout(PATIENCE).await.unwrap().unwrap() });
    eventually("the rival waits", async || {
        client.mutex("k").info().await.unwrap().queued > 0
    })
    .await;
    assert!(admin.gauge("waiters").await > 0);
    waiting
}

async fn untouched<C: Contender>(admin: &mut Admin) {
    for key in C::KEYS {
        admin.untouched(key).await;
    }
}

/// A client whose traffic goes through a proxy, and gives up soon.
pub(crate) async fn through(proxy: &Proxy) -> Client {
    let builder = Client::builder().response_timeout(Duration::from_millis(400));
    builder.connect(&proxy.url()).await.unwrap()
}

async fn the_lock_is_waited_for_and_handed_on<C: Contender>() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let (lock, mutex) = (usual::<C>(&client), client.mutex("k"));
    let held = mutex.lock().await.unwrap();
    assert!(lock.try_take().await.unwrap().is_none());
    let begun = Instant::now();
    // A try, and not without limit.
    let at_once = lock.take_within(Duration::ZERO).await.unwrap();
    assert!(at_once.is_none() && begun.elapsed() < Duration::from_secs(5));
    let (wait, begun) = (Duration::from_millis(150), Instant::now());
    assert!(lock.take_within(wait).await.unwrap().is_none());
    assert!(begun.elapsed() >= wait && begun.elapsed() < Duration::from_secs(1));
    assert_eq!(admin.gauge("waiters").await, 0);
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.take().await.unwrap() }
    });
    // A place for each key.
    admin.queued(C::KEYS.len() as u64).await;
    let fence = held.fence();
    // What was dropped goes on to the next.
    drop(held);
    let guard = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert!(guard.fence() > fence && guard.is_valid());
    assert!(guard.remaining() > Duration::from_secs(29));
    assert!(mutex.try_lock().await.unwrap().is_none());
    let next = rival(&client, &mut admin).await;
    drop(guard);
    next.await.unwrap().release().await.unwrap();
    untouched::<C>(&mut admin).await;
    let guard = lock.try_take().await.unwrap().unwrap();
    guard.release().await.unwrap();
    let keys: u64 = admin.run("DBSIZE").await;
    assert_eq!(keys, 0);
}

async fn a_hold_ended_by_others_is_lost_at_once<C: Contender>() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let lock = usual::<C>(&client);
    for command in [
        "RLOCK.FORCE k",
        "DEL k",
        "UNLINK k",
        "FLUSHALL",
        "RENAME k other",
    ] {
        let guard = lock.try_take().await.unwrap().unwrap();
        let begun = Instant::now();
        let _: redis::Value = admin.run(command).await;
        let loss = tokio::time::timeout(PATIENCE, guard.loss()).await.unwrap();
        assert_eq!(loss, Loss::EndedByServer, "{command}");
        let elapsed = begun.elapsed();
        assert!(elapsed < Duration::from_secs(5), "long before a renewal");
        assert!(!guard.is_valid() && guard.remaining().is_zero());
        let released = guard.release().await;
        assert!(matches!(released, Err(Error::Lost(Loss::EndedByServer))));
        // What was held with it is released with its guard.
        client.flush().await.unwrap();
        let _: redis::Value = admin.run("DEL other").await;
        let keys: u64 = admin.run("DBSIZE").await;
        assert_eq!(keys, 0, "{command}");
    }
}

async fn a_fixed_lease_ends_and_the_holder_knows_first<C: Contender>() {
    let server = Server::start().await;
    let client = server.client().await;
    let lease = Lease::Fixed(Duration::from_millis(300));
    let lock = C::of(&client, Terms::new().lease(lease).unwrap());
    let guard = lock.take().await.unwrap();
    let next = client.mutex("k").lock_timeout(PATIENCE).await.unwrap();
    assert!(!guard.is_valid(), "at no moment are there two");
    let loss = tokio::time::timeout(PATIENCE, guard.loss()).await.unwrap();
    assert_eq!(loss, Loss::LeaseEnded);
    assert!(guard.remaining().is_zero());
    assert!(next.unwrap().fence() > guard.fence());
}

async fn the_watchdog_keeps_a_lock_for_longer_than_its_lease<C: Contender>() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let lease = Duration::from_millis(900);
    let lock = C::of(&client, Terms::new().lease(lease).unwrap());
    let guard = lock.take().await.unwrap();
    let key = C::KEYS.last().unwrap();
    let rival = client.mutex(key).lock_timeout(2 * lease).await.unwrap();
    assert!(rival.is_none() && guard.is_valid());
    guard.release().await.unwrap();
    // A hold that was released is renewed no more.
    let renewals = admin.gauge("renewals").await;
    assert!(renewals >= 3);
    tokio::time::sleep(lease / 2).await;
    assert_eq!(admin.gauge("renewals").await, renewals);
    let calls = admin.calls().await;
    let together = calls.contains_key("rlock.mrenew") && !calls.contains_key("rlock.renew");
    assert_eq!(together, C::KEYS.len() > 1, "{calls:?}");
}

async fn lost_replies_give_the_same_grant_once_and_one_release<C: Contender>() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (client, other) = (through(&proxy).await, server.client().await);
    let mut admin = server.admin().await;
    proxy.set(Weather::CutReplyTo("ACQUIRE"));
    let guard = usual::<C>(&client).take().await.unwrap();
    assert_eq!(proxy.weather(), Weather::Fair, "a reply was lost");
    for key in C::KEYS {
        let info = client.mutex(key).info().await.unwrap();
        assert_eq!((info.holders.len(), info.queued), (1, 0));
        let holder = &info.holders[0];
        assert_eq!((holder.count, holder.fence), (1, Some(guard.fence())));
    }
    let next = rival(&other, &mut admin).await;
    proxy.set(Weather::CutReplyTo("RELEASE"));
    guard.release().await.unwrap();
    assert_eq!(proxy.weather(), Weather::Fair);
    let next = next.await.unwrap();
    // The second release did not touch the next holder.
    let is_held = other.mutex("k").is_held_by(next.owner()).await.unwrap();
    assert!(next.is_valid() && is_held);
    next.release().await.unwrap();
    untouched::<C>(&mut admin).await;
}

async fn calls_given_up_while_their_replies_were_lost_leave_nothing<C: Contender>() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (client, mut admin) = (through(&proxy).await, server.admin().await);
    let lock = usual::<C>(&client);
    for is_held in [false, true] {
        let held = server.client().await.mutex("k");
        let held = if is_held {
            held.try_lock().await.unwrap()
        } else {
            None
        };
        proxy.set(Weather::CutReplyTo("ACQUIRE"));
        let mut call = Box::pin(lock.take());
        eventually("the reply is lost", async || {
            let _ = tokio::time::timeout(Duration::from_millis(1), &mut call).await;
            proxy.weather() == Weather::Fair
        })
        .await;
        drop(call);
        client.flush().await.unwrap();
        admin.queued(0).await;
        let keys: u64 = admin.run("DBSIZE").await;
        assert_eq!(keys, u64::from(is_held));
        drop(held);
        admin.untouched("k").await;
    }
}

async fn a_holder_that_hears_nothing_knows_its_loss_before_others_can_have_it<C: Contender>() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (client, other) = (through(&proxy).await, server.client().await);
    let lease = Duration::from_millis(600);
    let lock = C::of(&client, Terms::new().lease(lease).unwrap());
    let guard = lock.take().await.unwrap();
    proxy.set(Weather::Swallow);
    let next = other.mutex("k").lock_timeout(PATIENCE).await.unwrap();
    assert!(!guard.is_valid(), "at no moment are there two");
    assert_eq!(guard.loss().now(), Some(Loss::LeaseEnded));
    assert!(next.unwrap().fence() > guard.fence());
}

async fn holds_and_waits_outlast_their_connection<C: Contender>() {
    let server = Server::start().await;
    let (client, other) = (server.client().await, server.client().await);
    let mut admin = server.admin().await;
    let short = Terms::new().lease(Duration::from_secs(2)).unwrap();
    let lock = C::of(&client, short);
    let guard = lock.take().await.unwrap();
    let next = rival(&client, &mut admin).await;
    let keys = C::KEYS.len() as u64;
    let (waits, renewals) = (admin.gauge("waits").await, admin.gauge("renewals").await);
    admin.kill_lock_clients().await;
    eventually("queued, renewed and watched again", async || {
        admin.gauge("waits").await > waits
            && admin.gauge("renewals").await > renewals
            && admin.gauge("watches").await > keys
    })
    .await;
    for key in C::KEYS {
        let holders = other.mutex(key).info().await.unwrap().holders;
        assert_eq!(holders.len(), 1);
        assert_eq!(holders[0].owner, guard.owner().as_str());
        assert_eq!(
            (holders[0].count, holders[0].fence),
            (1, Some(guard.fence()))
        );
    }
    assert!(guard.is_valid());
    // The loss notice was asked for again too.
    let forced: u64 = admin.run("RLOCK.FORCE k").await;
    assert_eq!(forced, 1);
    let loss = tokio::time::timeout(Duration::from_millis(400), guard.loss()).await;
    assert_eq!(loss, Ok(Loss::EndedByServer));
    next.await.unwrap().release().await.unwrap();
    drop(guard);
    untouched::<C>(&mut admin).await;
}

async fn an_owner_enters_again_under_the_same_fence_past_every_waiter<C: Reentrant>() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let lock = usual::<C>(&client).by(&client.owner());
    let outer = lock.take().await.unwrap();
    let next = rival(&client, &mut admin).await;
    let inner = lock.try_take().await.unwrap().unwrap();
    assert_eq!(inner.fence(), outer.fence());
    outer.release().await.unwrap();
    // One that is dropped at any point leaves the other.
    for polls in 0..4 {
        let mut call = Box::pin(lock.take());
        for _ in 0..polls {
            if tokio::time::timeout(Duration::ZERO, &mut call)
                .await
                .is_ok()
            {
                break;
            }
        }
        drop(call);
    }
    client.flush().await.unwrap();
    assert!(inner.is_valid() && !next.is_finished(), "one guard is left");
    let fence = inner.fence();
    inner.release().await.unwrap();
    let next = next.await.unwrap();
    assert!(next.fence() > fence);
    next.release().await.unwrap();
    untouched::<C>(&mut admin).await;
}
