"""Contends for locks during faults, and reports what it saw to crates/rlock-client/tests/chaos/program.rs.

Threads ask for some of the keys, tasks of asyncio for the others.
"""

import asyncio
import json
import os
import random
import sys
import threading
import time

import rlock_client
import rlock_client.asyncio

URL, SEED, KEYS = os.environ["RLOCK_URL"], int(os.environ["RLOCK_SEED"]), os.environ["RLOCK_KEYS"].split()
COPIES = int(os.environ["RLOCK_COPIES"])
OPTIONS = {"response_timeout": 1, "retry_timeout": 4}
lines = []
is_over = threading.Event()


def now():
    return time.monotonic_ns() // 1000


class Contender:
    """Asks for locks and records what it sees. The subclass or function for its API decides how it waits."""

    def __init__(self, client, key):
        self.client, self.key, self.chance = client, key, random.Random(f"{SEED} {key}")

    def wish(self):
        chance, copies = self.chance, COPIES if self.key == "copied" else 0
        self.lease, renew = chance.choice([(0.6, False), (2, True), (2, True), (1, True), (1, True), (1, True)])
        self.shared = self.key == "shared" and chance.randrange(3) > 0
        wait = chance.choice([0, chance.uniform(0.05, 3), 5, 10])
        bound = chance.uniform(0.4, 1.5) if not copies and chance.randrange(4) == 0 else None
        limit = (4 if wait == 0 else wait + 1) + (1 if copies else 0)
        verb = "wait with a limit" if wait else "try"
        self.call = {"key": self.key, "verb": verb, "asked": now(), "limit": int(limit * 1e6)}
        terms = {"lease": self.lease, "renew": renew, "bound": bound, "replicas": copies}
        return self.client.lock(self.key, wait=wait, shared=self.shared, raise_lost=True, **terms)

    def asked(self, lock, outcome):
        self.call.update(ended=now(), outcome=outcome)
        lines.append(self.call)
        self.hold = {"key": self.key, "shared": self.shared, "lease": int(self.lease * 1e6)}
        if outcome == "granted":
            self.hold.update(owner=lock.owner, fence=lock.fence, asked=self.call["asked"], granted=self.call["ended"])
            self.until = now() + 1000 * self.chance.choice([1500, 500, 50, 30, 10])

    def stays(self, lock):
        """Whether the lock is valid, both before and after reading the clock, and should be held for longer."""
        before, moment = lock.remaining > 0, now()
        if before and lock.remaining > 0:
            self.hold.update(first=self.hold.get("first", moment), last=moment)
            return moment < self.until and not is_over.is_set()
        self.hold.setdefault("doubted", moment)
        return False

    def leaves(self):
        self.hold.update(ended=now(), end="lost" if "doubted" in self.hold else "released")
        self.call = {"key": self.key, "verb": "release", "asked": now(), "limit": 4_000_000}

    def left(self, outcome):
        self.call.update(ended=now(), outcome=outcome)
        lines.extend([self.call, self.hold])


def threads(contender):
    while not is_over.is_set():
        try:
            lock = contender.wish()
            contender.asked(lock, "granted" if lock.acquire() else "refused")
        except rlock_client.Error as error:
            contender.asked(None, error.code)
        if contender.call["outcome"] == "granted":
            while contender.stays(lock):
                time.sleep(0.002)
            contender.leaves()
            try:
                lock.release()
                contender.left("released")
            except rlock_client.Error as error:
                contender.left(error.code)
        time.sleep(contender.chance.uniform(0.005, 0.1))


async def tasks(contender):
    while not is_over.is_set():
        try:
            lock = contender.wish()
            patience = contender.chance.uniform(0, 0.1) if contender.chance.randrange(8) == 0 else 20
            is_granted = await asyncio.wait_for(lock.acquire(), patience)
            contender.asked(lock, "granted" if is_granted else "refused")
        except asyncio.TimeoutError:
            contender.asked(None, "dropped")
        except rlock_client.Error as error:
            contender.asked(None, error.code)
        if contender.call["outcome"] == "granted":
            while contender.stays(lock):
                await asyncio.sleep(0.002)
            contender.leaves()
            try:
                await lock.release()
                contender.left("released")
            except rlock_client.Error as error:
                contender.left(error.code)
        await asyncio.sleep(contender.chance.uniform(0.005, 0.1))


async def all_tasks(keys):
    async with rlock_client.asyncio.Client(URL, **OPTIONS) as client:
        await asyncio.gather(*(tasks(Contender(client, key)) for key in keys))


def main():
    client = rlock_client.Client(URL, **OPTIONS)
    running = [threading.Thread(target=threads, args=[Contender(client, key)]) for key in KEYS[::2]]
    running.append(threading.Thread(target=asyncio.run, args=[all_tasks(KEYS[1::2])]))
    for each in running:
        each.start()
    sys.stdin.read()
    is_over.set()
    for each in running:
        each.join()
    client.close()
    for line in lines:
        print(json.dumps(line))


main()
