"""The story: a holder is stopped past its lease, and its late write is refused.

Usage: fencing.py NAME=COMMAND …, with RLOCK_URL in the environment: tells it
once for each holder program, such as `Python='python3 holder.py'`. The exit code
is 0 if every checked receiver refused the late write, and every unchecked one
lost a deposit by it.
"""

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import psycopg
import urllib3

import servers

PATIENCE_S = 30
LEASE_MS = 1000
BEFORE, A_ADDS, B_ADDS = 100, 10, 50

TABLE = "CREATE TABLE account (name text PRIMARY KEY, balance int NOT NULL, fence bigint NOT NULL DEFAULT 0)"


@dataclass
class Receiver:
    """One place where the balance is kept, and how it is shown."""

    name: str
    title: str
    checks: bool


RECEIVERS = [
    Receiver("table", "PostgreSQL, UPDATE", checks=False),
    Receiver("object", "HTTP store, PUT", checks=False),
    Receiver("fenced-table", "PostgreSQL, WHERE fence <= …", checks=True),
    Receiver("fenced-object", "HTTP store, PUT with x-fence", checks=True),
    Receiver("s3-object", "as S3, PUT with If-Match", checks=True),
]


class Disturbed(Exception):
    """A holder did not come as far as the story needs. Its own error output says why."""


class Holder:
    """A holder program while it runs. `words` gives what it says next, and fails if that is something else."""

    def __init__(self, name: str, command: list[str], adds: int, places: dict[str, str]):
        self.name = name
        pipe = subprocess.PIPE
        arguments = [*command, str(adds), str(LEASE_MS)]
        environment = {**os.environ, **places}
        self.process = subprocess.Popen(arguments, env=environment, stdin=pipe, stdout=pipe, text=True)
        self._said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            self._said.put(line)
        self._said.put("")

    def words(self, first: str) -> list[str]:
        try:
            words = self._said.get(timeout=PATIENCE_S).split()
        except queue.Empty:
            raise Disturbed(f"{self.name} did not say {first!r} within {PATIENCE_S} s") from None
        if words[:1] != [first]:
            raise Disturbed(f"{self.name} should have said {first!r}, and said {' '.join(words)!r}")
        return words[1:]

    def outcomes(self) -> dict[str, str]:
        """What each receiver answered its write by: accepted or refused."""
        outcomes = {}
        for _ in RECEIVERS:
            receiver, _, outcome = self.words("wrote")
            outcomes[receiver] = outcome
        return outcomes

    def go_on(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Whatever it is doing. SIGKILL ends a stopped process, too."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@dataclass
class Told:
    """What came out: the fences, the answers to the late write, and the balances at the end."""

    fences: tuple[int, int]
    late: dict[str, str]
    balances: dict[str, int]
    ended: str

    def is_right(self, receiver: Receiver) -> bool:
        """A checked receiver has refused and kept B's deposit. An unchecked one has lost it, else this shows nothing."""
        outcome = self.late[receiver.name], self.balances[receiver.name]
        if receiver.checks:
            return outcome == ("refused", BEFORE + B_ADDS)
        return outcome == ("accepted", BEFORE + A_ADDS)

    def is_as_it_must_be(self) -> bool:
        rising = self.fences[0] < self.fences[1]
        return rising and self.ended == "lost" and all(map(self.is_right, RECEIVERS))


class Accounts:
    """The receivers, as the story sets them up and looks at them."""

    def __init__(self, postgres: str, store_url: str):
        self.places = {"POSTGRES": postgres, "STORE": store_url}
        with psycopg.connect(postgres) as connection:
            connection.execute("DROP TABLE IF EXISTS account")
            connection.execute(TABLE)
            for name in ("table", "fenced-table"):
                connection.execute("INSERT INTO account (name, balance) VALUES (%s, %s)", (name, BEFORE))
        contents = {"object": BEFORE, "fenced-object": BEFORE, "s3-object": {"balance": BEFORE, "fence": 0}}
        for name, content in contents.items():
            answer = urllib3.request("PUT", f"{store_url}/{name}", body=json.dumps(content))
            if answer.status != 200:
                raise RuntimeError(f"PUT {name}: {answer.status} {answer.data.decode()}")

    def balances(self) -> dict[str, int]:
        with psycopg.connect(self.places["POSTGRES"]) as connection:
            balances = dict(connection.execute("SELECT name, balance FROM account").fetchall())
        for name in ("object", "fenced-object", "s3-object"):
            content = urllib3.request("GET", f"{self.places['STORE']}/{name}").json()
            balances[name] = content["balance"] if isinstance(content, dict) else content
        return balances


def tell(command: list[str], accounts: Accounts, late_write="after", say=print) -> Told:
    """The story with one holder program. `say` gets a line at a time.

    The late write comes `after` the new holder's, or `before` it, when
    the new holder has only read.
    """
    start = time.monotonic()
    holders: list[Holder] = []

    def holder(name: str, adds: int) -> Holder:
        holders.append(Holder(name, command, adds, accounts.places))
        return holders[-1]

    def line(text: str) -> None:
        say(f"  {time.monotonic() - start:5.2f} s  {text}")

    try:
        a = holder("A", A_ADDS)
        fence_a = int(a.words("granted")[0])
        line(f"A is granted the lock for {LEASE_MS / 1000:g} s, under fence {fence_a}")
        line(f"A reads the balance, {a.words('read')[0]}; it holds the lock, and is about to write")
        os.kill(a.process.pid, signal.SIGSTOP)
        a.go_on()
        line("A is stopped (SIGSTOP)")

        b = holder("B", B_ADDS)
        fence_b = int(b.words("granted")[0])
        line(f"B, who waited for A's lease to end, is granted the lock, under fence {fence_b}")
        b.words("read")

        def write_as_b() -> None:
            b.go_on()
            if set(b.outcomes().values()) != {"accepted"}:
                raise RuntimeError("B holds the lock, and was refused")
            line(f"B adds {B_ADDS}: {BEFORE + B_ADDS}")

        if late_write == "after":
            write_as_b()
        os.kill(a.process.pid, signal.SIGCONT)
        line(f"A goes on (SIGCONT), and adds {A_ADDS} to what it has read: {BEFORE + A_ADDS}")
        late = a.outcomes()
        ended = a.words("ended")[0]
        line(f"A releases the lock, and hears that it was {ended}")
        if late_write == "before":
            write_as_b()
        return Told((fence_a, fence_b), late, accounts.balances(), ended)
    finally:
        for each in holders:
            each.end()


def show(told: Told) -> None:
    print()
    for receiver in RECEIVERS:
        late, balance = told.late[receiver.name], told.balances[receiver.name]
        is_kept = balance == BEFORE + B_ADDS
        mark, lost = ("✓", "") if is_kept else ("✗", f"   B's {B_ADDS} are lost")
        print(f"  {mark} {receiver.title:<30} A's write {late:<8}   balance {balance}{lost}")


def main() -> int:
    # As an exception, so that no server is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    holders = dict(argument.split("=", 1) for argument in sys.argv[1:])
    all_right = True
    with servers.postgres() as postgres:
        for name, command in holders.items():
            print(f"\n{name}: A deposits {A_ADDS} and B deposits {B_ADDS}, under one lock")
            with servers.store() as store:
                told = tell(shlex.split(command), Accounts(postgres, store.url))
            show(told)
            all_right = all_right and told.is_as_it_must_be()
    if all_right:
        print("\nA check of the fence refuses the late write. Without one it undoes what B did.")
    else:
        print("\nThis is not what must happen: a check let the late write in, or one was not needed.")
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
