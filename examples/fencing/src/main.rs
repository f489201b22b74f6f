//! A holder of the lock, in Rust: deposits money, and may be stopped halfway.
//!
//! Usage: `fencing-holder DEPOSIT LEASE-MS`, with `RLOCK_URL`, `POSTGRES` and
//! `STORE` in the environment. It takes the lock, reads the balance of each
//! receiver, waits for a line on its input, and writes each balance again.
//! holder.py is the same in Python.

mod objects;
mod tables;

use std::error::Error;
use std::time::Duration;

use rlock_client::{Terms, blocking};

use objects::{FencedObject, Object, S3Object};
use tables::{FencedTable, Table};

const LOCK: &str = "account:7";

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What keeps a balance: `None` and `false` say that it has seen a larger fence.
trait Receiver {
    fn name(&self) -> &'static str;
    fn read(&mut self) -> Outcome<Option<i32>>;
    fn write(&mut self, balance: i32) -> Outcome<bool>;
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let deposit: i32 = arguments.next().ok_or("DEPOSIT is missing")?.parse()?;
    let lease_ms = arguments.next().ok_or("LEASE-MS is missing")?.parse()?;

    // The watchdog renews the lease, but not while this process stalls.
    let client = blocking::Client::connect(&std::env::var("RLOCK_URL")?)?;
    let terms = Terms::new().lease(Duration::from_millis(lease_ms))?;
    let guard = client.mutex(LOCK).with(terms).lock()?;
    println!("granted {}", guard.fence());

    let mut receivers = receivers(guard.fence())?;
    let mut balances = Vec::new();
    for receiver in &mut receivers {
        let balance = receiver.read()?;
        balances.push(balance.ok_or("a receiver has seen a larger fence")?);
    }
    if !guard.is_valid() {
        return Err("the lock was lost while the balances were read".into());
    }
    println!("read {}", balances[0]);

    // A pause may come here, after the check, and last for any time.
    std::io::stdin().read_line(&mut String::new())?;

    for (receiver, balance) in receivers.iter_mut().zip(balances) {
        let balance = balance + deposit;
        let accepted = receiver.write(balance)?;
        let outcome = if accepted { "accepted" } else { "refused" };
        println!("wrote {} {balance} {outcome}", receiver.name());
    }
    match guard.release() {
        Ok(()) => println!("ended holding"),
        Err(rlock_client::Error::Lost(_)) => println!("ended lost"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn receivers(fence: u64) -> Outcome<Vec<Box<dyn Receiver>>> {
    Ok(vec![
        Box::new(Table::open()?),
        Box::new(FencedTable::open(fence)?),
        Box::new(Object::open()?),
        Box::new(FencedObject::open(fence)?),
        Box::new(S3Object::open(fence)?),
    ])
}
