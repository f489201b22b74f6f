//! What the processes that the demonstration starts do.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use rlock_client::{Client, Mutex, Quorum, QuorumMutex, Terms};

use crate::{Arguments, BUYERS_EACH, Outcome};

/// The key of the lock.
pub(crate) const LOCK: &str = "MoonCake";
/// The key of the stock.
pub(crate) const STOCK: &str = "MoonCakeStock";
/// The lease of the buyer who is killed.
pub(crate) const HANG_LEASE: Duration = Duration::from_secs(2);

/// The lease at members, which `tests/with-server` starts with as long a grace.
const MEMBER_LEASE: Duration = Duration::from_secs(2);

/// How long a buyer waits for the lock at most.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long paying takes, between looking at the stock and taking a cake.
pub(crate) const PAYING: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Task {
    /// Buy without a lock.
    Grab,
    /// Buy under the lock.
    Queue,
    /// Buy under a lock that a majority of the members holds.
    QueueAtMembers,
    /// Take the lock and never let go.
    HoldAndHang,
}

pub(crate) async fn run(arguments: &Arguments, task: Task) -> Outcome<()> {
    let server = &arguments.server;
    match task {
        Task::Grab => open_and_buy(server, Lock::None).await,
        Task::Queue => {
            let client = Client::connect(server).await?;
            open_and_buy(server, Lock::OnOne(client.mutex(LOCK))).await
        }
        Task::QueueAtMembers => {
            let quorum = Quorum::connect(&arguments.members).await?;
            // No longer than members sit out after a crash: their startup grace.
            let terms = Terms::new().lease(MEMBER_LEASE)?;
            open_and_buy(server, Lock::OnMost(quorum.mutex(LOCK).with(terms))).await
        }
        Task::HoldAndHang => {
            let client = Client::connect(server).await?;
            let _guard = client
                .mutex(LOCK)
                .with(Terms::new().lease(HANG_LEASE)?)
                .lock()
                .await?;
            println!("ready");
            std::future::pending().await
        }
    }
}

/// Where the lock is.
#[derive(Clone)]
enum Lock {
    None,
    OnOne(Mutex),
    OnMost(QuorumMutex),
}

/// All buyers of this process, at the same time, once the shop opens.
async fn open_and_buy(server: &str, lock: Lock) -> Outcome<()> {
    let redis = redis::Client::open(server)?
        .get_multiplexed_async_connection()
        .await?;
    println!("ready");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    let buyers: Vec<_> = (0..BUYERS_EACH)
        .map(|_| tokio::spawn(visit(redis.clone(), lock.clone())))
        .collect();
    for buyer in buyers {
        buyer.await?.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What a buyer's task ends with, which may be on another thread.
type Visited<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// One buyer. Says in a line what came of it: bought or not, and for the lock
/// its fence and when it was got and let go.
async fn visit(redis: MultiplexedConnection, lock: Lock) -> Visited<()> {
    let visited = match lock {
        Lock::None => {
            println!("visit {} 0 0 0", buy(redis).await?);
            return Ok(());
        }
        Lock::OnOne(mutex) => match mutex.lock_timeout(WAIT_MAX).await? {
            Some(guard) => {
                let visited = inside(redis, guard.fence()).await?;
                guard.release().await?;
                visited
            }
            None => "visit false 0 0 0".to_owned(),
        },
        Lock::OnMost(mutex) => match mutex.lock_timeout(WAIT_MAX).await? {
            Some(guard) => {
                let visited = inside(redis, guard.fence()).await?;
                guard.release().await?;
                visited
            }
            None => "visit false 0 0 0".to_owned(),
        },
    };
    println!("{visited}");
    Ok(())
}

async fn inside(redis: MultiplexedConnection, fence: u64) -> Visited<String> {
    let entered = now_micros();
    let bought = buy(redis).await?;
    Ok(format!("visit {bought} {fence} {entered} {}", now_micros()))
}

/// Reads the stock, pays, and takes a cake if there was one.
async fn buy(mut redis: MultiplexedConnection) -> Visited<bool> {
    let stock: i64 = redis.get(STOCK).await?;
    if stock <= 0 {
        return Ok(false);
    }
    tokio::time::sleep(PAYING).await;
    let _: () = redis.set(STOCK, stock - 1).await?;
    Ok(true)
}

/// The wall clock, which all processes of this machine share.
fn now_micros() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros()
}
