//! What the processes that the demonstration starts do.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use rlock_client::{Client, Mutex, Terms};

use crate::{BUYERS_EACH, Outcome};

/// The key of the lock.
pub(crate) const LOCK: &str = "MoonCake";
/// The key of the stock.
pub(crate) const STOCK: &str = "MoonCakeStock";
/// The lease of the buyer who is killed.
pub(crate) const HANG_LEASE: Duration = Duration::from_secs(2);

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
    /// Take the lock and never let go.
    HoldAndHang,
}

pub(crate) async fn run(server: &str, task: Task) -> Outcome<()> {
    match task {
        Task::Grab => open_and_buy(server, None).await,
        Task::Queue => {
            let client = Client::connect(server).await?;
            open_and_buy(server, Some(client.mutex(LOCK))).await
        }
        Task::HoldAndHang => {
            let client = Client::connect(server).await?;
            let _guard = client
                .mutex(LOCK)
                .with(Terms::new().lease(HANG_LEASE))?
                .lock()
                .await?;
            println!("ready");
            std::future::pending().await
        }
    }
}

/// All buyers of this process, at the same time, once the shop opens.
async fn open_and_buy(server: &str, mutex: Option<Mutex>) -> Outcome<()> {
    let redis = redis::Client::open(server)?
        .get_multiplexed_async_connection()
        .await?;
    println!("ready");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    let buyers: Vec<_> = (0..BUYERS_EACH)
        .map(|_| tokio::spawn(visit(redis.clone(), mutex.clone())))
        .collect();
    for buyer in buyers {
        buyer.await?.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// One buyer. Says in a line what came of it: bought or not, and for the lock
/// its fence and when it was got and let go.
async fn visit(
    redis: MultiplexedConnection,
    mutex: Option<Mutex>,
) -> Result<(), rlock_client::Error> {
    let Some(mutex) = mutex else {
        println!("visit {} 0 0 0", buy(redis).await?);
        return Ok(());
    };
    let Some(guard) = mutex.lock_timeout(WAIT_MAX).await? else {
        println!("visit false 0 0 0");
        return Ok(());
    };
    let (fence, entered) = (guard.fence(), now_micros());
    let bought = buy(redis).await?;
    let left = now_micros();
    guard.release().await?;
    println!("visit {bought} {fence} {entered} {left}");
    Ok(())
}

/// Reads the stock, pays, and takes a cake if there was one.
async fn buy(mut redis: MultiplexedConnection) -> Result<bool, rlock_client::Error> {
    let stock: i64 = redis
        .get(STOCK)
        .await
        .map_err(rlock_client::Error::Refused)?;
    if stock <= 0 {
        return Ok(false);
    }
    tokio::time::sleep(PAYING).await;
    let _: () = redis
        .set(STOCK, stock - 1)
        .await
        .map_err(rlock_client::Error::Refused)?;
    Ok(true)
}

/// The wall clock, which all processes of this machine share.
fn now_micros() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros()
}
