//! Futures of every kind of lock dropped at every point, as in `cancel`.

use std::time::Duration;

use rlock_client::{Client, MultiLock, Owner, RwLock, Semaphore, Upgrade};

use crate::cancel::{Random, poll_and_drop};
use crate::server::{Admin, Server};

const WAIT: Duration = Duration::from_millis(2);

/// The locks of one task, and an owner that it shares with others.
pub(crate) struct Locks {
    pub(crate) rwlock: RwLock,
    pub(crate) semaphore: Semaphore,
    pub(crate) multi: MultiLock,
    owner: Owner,
}

impl Locks {
    pub(crate) fn of(client: &Client, owner: &Owner, number: u64) -> Self {
        let key = |kind: &str| format!("{kind}{}", number % 3);
        let keys = [0, 1].map(|more| format!("m{}", (number + more) % 4));
        Self {
            rwlock: client.rwlock(key("rw")),
            semaphore: client.semaphore(key("s"), 3),
            multi: client.multi(keys),
            owner: owner.clone(),
        }
    }

    async fn change_at_random(&self, random: &mut Random) {
        let Ok(Some(reading)) = self.rwlock.read_timeout(WAIT).await else {
            return;
        };
        match random.below(4) {
            0 => poll_and_drop(reading.upgrade(), random).await,
            1 => poll_and_drop(reading.upgrade_timeout(WAIT), random).await,
            2 => {
                if let Ok(Upgrade::Granted(writing)) = reading.try_upgrade().await {
                    poll_and_drop(writing.downgrade(), random).await;
                }
            }
            _ => {
                let both = async {
                    let writing = reading.upgrade().await?;
                    writing.downgrade().await?.release().await
                };
                poll_and_drop(both, random).await;
            }
        }
    }

    pub(crate) async fn ask_at_random(&self, random: &mut Random) {
        let (rwlock, semaphore, owner) = (&self.rwlock, &self.semaphore, &self.owner);
        let permits = 1 + u32::try_from(random.below(3)).unwrap();
        match random.below(11) {
            0 => poll_and_drop(rwlock.read(), random).await,
            1 => poll_and_drop(rwlock.write(), random).await,
            2 => poll_and_drop(rwlock.by(owner).read(), random).await,
            3 => poll_and_drop(rwlock.by(owner).write_timeout(WAIT), random).await,
            4 => poll_and_drop(semaphore.acquire_many(permits), random).await,
            5 => poll_and_drop(semaphore.try_acquire_many(permits), random).await,
            6 => poll_and_drop(self.multi.lock(), random).await,
            7 => poll_and_drop(self.multi.lock_timeout(WAIT), random).await,
            8 => poll_and_drop(self.multi.by(owner).try_lock(), random).await,
            9 => {
                let work = async { self.multi.lock().await.unwrap().release().await };
                poll_and_drop(work, random).await;
            }
            _ => self.change_at_random(random).await,
        }
    }
}

async fn cancel_at_random(locks: Locks, seed: u64, rounds: u64) {
    let mut random = Random(seed);
    for _ in 0..rounds {
        locks.ask_at_random(&mut random).await;
    }
}

pub(crate) async fn nothing_is_left(admin: &mut Admin) {
    assert_eq!(admin.gauge("waiters").await, 0);
    assert_eq!(admin.gauge("watches").await, 0);
    assert_eq!(admin.gauge("panics").await, 0);
    let keys: Vec<String> = admin.run("KEYS *").await;
    assert_eq!(keys, [""; 0], "holds are left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_every_kind_dropped_anywhere_leave_nothing() {
    const TASKS: u64 = 40;
    let server = Server::start().await;
    let clients = [server.client().await, server.client().await];
    let owners = [clients[0].owner(), clients[1].owner()];
    let mut tasks = Vec::new();
    for seed in 0..TASKS {
        let which = seed as usize % 2;
        let locks = Locks::of(&clients[which], &owners[which], seed / 2);
        tasks.push(tokio::spawn(cancel_at_random(locks, seed, 40_000 / TASKS)));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for client in &clients {
        client.flush().await;
    }
    let mut admin = server.admin().await;
    nothing_is_left(&mut admin).await;
    assert!(admin.gauge("grants").await > 1000, "the test did lock");
    assert!(admin.gauge("handoffs").await > 100, "and did wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_every_kind_dropped_while_connections_are_killed_leave_nothing() {
    let server = Server::start().await;
    let (client, mut admin) = (server.client().await, server.admin().await);
    let owner = client.owner();
    let mut tasks = Vec::new();
    for seed in 0..20 {
        let locks = Locks::of(&client, &owner, seed);
        tasks.push(tokio::spawn(cancel_at_random(locks, seed, 200)));
    }
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        admin.kill_lock_clients().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    client.flush().await;
    nothing_is_left(&mut admin).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_for_keys_of_several_slots_dropped_anywhere_leave_nothing() {
    let server = Server::start_cluster().await;
    let client = server.client().await;
    let mut tasks = Vec::new();
    for seed in 0..10_u64 {
        let keys = [0, 1, 2].map(|more| format!("m{}", (seed + more) % 5));
        let multi = client.multi(keys);
        tasks.push(tokio::spawn(async move {
            let mut random = Random(seed);
            for _ in 0..200 {
                match random.below(3) {
                    0 => poll_and_drop(multi.lock(), &mut random).await,
                    1 => poll_and_drop(multi.lock_timeout(WAIT), &mut random).await,
                    _ => poll_and_drop(multi.try_lock(), &mut random).await,
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    client.flush().await;
    nothing_is_left(&mut server.admin().await).await;
}
