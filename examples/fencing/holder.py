"""A holder of the lock, in Python: deposits money, and may be stopped halfway.

Usage: holder.py DEPOSIT LEASE-MS, with RLOCK_URL, POSTGRES and STORE in the
environment. It takes the lock, reads the balance of each receiver, waits for a
line on its input, and writes each balance again.
src/main.rs is the same in Rust.
"""

import json
import os
import sys

import psycopg
import urllib3
from rlock_client import Client

LOCK = "account:7"

# The statements of docs/fencing.md.
ANNOUNCE = "UPDATE account SET fence = $2 WHERE name = $1 AND fence <= $2 RETURNING balance"
WRITE = """
INSERT INTO account (name, balance, fence) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE
SET balance = excluded.balance, fence = excluded.fence
WHERE account.fence <= excluded.fence
RETURNING fence
"""


class Table:
    """A table that takes every write."""

    name = "table"

    def __init__(self, fence: int):
        self.fence = fence
        self.connection = psycopg.connect(os.environ["POSTGRES"], autocommit=True, cursor_factory=psycopg.RawCursor)

    def read(self) -> int:
        return self.one("SELECT balance FROM account WHERE name = $1", self.name)

    def write(self, balance: int) -> bool:
        return self.one("UPDATE account SET balance = $2 WHERE name = $1 RETURNING 1", self.name, balance) is not None

    def one(self, sql: str, *values) -> int | None:
        row = self.connection.execute(sql, values).fetchone()
        return row and row[0]


class FencedTable(Table):
    """A table that refuses smaller fences. No row: refused."""

    name = "fenced-table"

    def read(self) -> int | None:
        return self.one(ANNOUNCE, self.name, self.fence)

    def write(self, balance: int) -> bool:
        return self.one(WRITE, self.name, balance, self.fence) is not None


class Object:
    """An object that takes every write."""

    name = "object"

    def __init__(self, fence: int):
        self.fence = fence
        self.url = f"{os.environ['STORE']}/{self.name}"

    def read(self) -> int:
        return int(urllib3.request("GET", self.url).data)

    def write(self, balance: int) -> bool:
        return urllib3.request("PUT", self.url, body=str(balance)).status == 200


class FencedObject(Object):
    """An object of a store that knows fences."""

    name = "fenced-object"

    def read(self) -> int | None:
        answer = self.send("POST", None)
        return int(answer.data) if answer.status == 200 else None

    def write(self, balance: int) -> bool:
        return self.send("PUT", str(balance)).status == 200

    def send(self, method: str, body: str | None):
        return urllib3.request(method, self.url, body=body, headers={"x-fence": str(self.fence)})


class S3Object(Object):
    """An object of a store that compares ETags, as S3 does.

    The fence is a part of the content, so that announcing it changes the ETag.
    """

    name = "s3-object"
    etag = ""

    def read(self) -> int | None:
        while True:
            answer = urllib3.request("GET", self.url)
            account, self.etag = json.loads(answer.data), answer.headers["ETag"]
            if account["fence"] > self.fence:
                return None
            if self.put(account["balance"]) == 200:
                return account["balance"]

    def write(self, balance: int) -> bool:
        # If somebody has come between, reading says whether it was a larger fence.
        while (status := self.put(balance)) in (409, 412):
            if self.read() is None:
                return False
        return status == 200

    def put(self, balance: int) -> int:
        body = json.dumps({"balance": balance, "fence": self.fence})
        answer = urllib3.request("PUT", self.url, body=body, headers={"If-Match": self.etag})
        self.etag = answer.headers.get("ETag", self.etag)
        return answer.status


def say(*words) -> None:
    print(*words, flush=True)


def main() -> None:
    deposit, lease = int(sys.argv[1]), int(sys.argv[2]) / 1000
    # A thread renews the lease, but not while this process stalls.
    client = Client(os.environ["RLOCK_URL"])
    # A loss is reported by the release itself.
    with client.lock(LOCK, lease=lease, wait=20, raise_lost=False) as held:
        say("granted", held.fence)

        receivers = [receiver(held.fence) for receiver in (Table, FencedTable, Object, FencedObject, S3Object)]
        balances = [receiver.read() for receiver in receivers]
        if None in balances:
            sys.exit("a receiver has seen a larger fence")
        held.check()
        say("read", balances[0])

        # A pause may come here, after the check, and last for any time.
        sys.stdin.readline()

        for receiver, balance in zip(receivers, balances):
            accepted = receiver.write(balance + deposit)
            say("wrote", receiver.name, balance + deposit, "accepted" if accepted else "refused")
        say("ended", "lost" if held.lost else "holding")


if __name__ == "__main__":
    main()
