//! Rows of PostgreSQL that keep a balance.

use postgres::types::ToSql;
use postgres::{Client, NoTls};

use crate::{Outcome, Receiver};

// The statements of docs/fencing.md.
const ANNOUNCE: &str =
    "UPDATE account SET fence = $2 WHERE name = $1 AND fence <= $2 RETURNING balance";
const WRITE: &str = "
INSERT INTO account (name, balance, fence) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE
SET balance = excluded.balance, fence = excluded.fence
WHERE account.fence <= excluded.fence
RETURNING fence
";

fn connect() -> Outcome<Client> {
    Ok(Client::connect(&std::env::var("POSTGRES")?, NoTls)?)
}

/// A table that takes every write.
pub struct Table(Client);

impl Table {
    pub fn open() -> Outcome<Self> {
        Ok(Self(connect()?))
    }
}

impl Receiver for Table {
    fn name(&self) -> &'static str {
        "table"
    }

    fn read(&mut self) -> Outcome<Option<i32>> {
        let sql = "SELECT balance FROM account WHERE name = $1";
        Ok(Some(self.0.query_one(sql, &[&self.name()])?.get(0)))
    }

    fn write(&mut self, balance: i32) -> Outcome<bool> {
        let sql = "UPDATE account SET balance = $2 WHERE name = $1";
        let name = self.name();
        Ok(self.0.execute(sql, &[&name, &balance])? == 1)
    }
}

/// A table that refuses smaller fences. No row: refused.
pub struct FencedTable {
    client: Client,
    fence: i64,
}

impl FencedTable {
    pub fn open(fence: u64) -> Outcome<Self> {
        let (client, fence) = (connect()?, fence.try_into()?);
        Ok(Self { client, fence })
    }
}

impl Receiver for FencedTable {
    fn name(&self) -> &'static str {
        "fenced-table"
    }

    fn read(&mut self) -> Outcome<Option<i32>> {
        let row = self
            .client
            .query_opt(ANNOUNCE, &[&self.name(), &self.fence])?;
        Ok(row.map(|row| row.get(0)))
    }

    fn write(&mut self, balance: i32) -> Outcome<bool> {
        let name = self.name();
        let values: [&(dyn ToSql + Sync); 3] = [&name, &balance, &self.fence];
        Ok(self.client.query_opt(WRITE, &values)?.is_some())
    }
}
