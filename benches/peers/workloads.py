"""What the contestants are put through, and how each is measured."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import figures
from contestant import Failed, Run

START_LIMIT_S = 60
LEASE_MS = 30_000
CRASH_LEASE_MS = 3_000
CRASHES_AT_ONCE = 3

# Java's programs compile while they already take locks. Go's, beside them, were compiled before.
SLOW_AT_FIRST = ("Java", "Go")

numbers = itertools.count(1)


def new_key():
    """Every run has a lock of its own, so that none can be disturbed by what another one has left."""
    return f"compare:{next(numbers)}"


@dataclass(frozen=True)
class Workload:
    """`limit_s`: how long a run may take once it has started; `rounds`: how often it is measured."""

    name: str
    measure: callable
    callers: int
    rounds: int
    limit_s: float
    seconds: float = 0
    hold_us: int = 0
    idle_s: float = 0

    def suits(self, contestant):
        """Yardsticks wait for nobody; a variant that ends with its connection differs in a crash only."""
        if self.name.startswith("alone"):
            return not contestant.name.endswith("-bind")
        if self.name.startswith("start"):
            return contestant.language in SLOW_AT_FIRST and not contestant.name.endswith("-bind")
        if contestant.kind == "yardstick":
            return False
        if self.name == "crowd-10000":
            return contestant.id == "rust/rlock-rust"
        return self.name == "crash" or not contestant.name.endswith("-bind")


def planned(seconds, rounds, crowds, idle_s):
    """The workloads of a run, in their order within a round."""
    crowd_limits = {10: 20, 100: 30, 1_000: 60, 10_000: 120}
    some = max(1, rounds - 1)
    return [
        Workload("alone-1", loop_alone, 1, rounds, 20, seconds),
        Workload("alone-16", loop_alone, 16, rounds, 20, seconds),
        Workload("start-16", start, 16, 1, 30 + seconds * 10, seconds * 10),
        Workload("turns-16", loop_turns, 16, rounds, 30, seconds * 1.5),
        *(
            Workload(
                f"crowd-{size}", crowd, size, some if size < 1_000 else 1, limit_s,
                hold_us=1000, idle_s=idle_s if size == 100 else 0,
            )  # fmt: skip
            for size, limit_s in crowd_limits.items()
            if size in crowds
        ),
        Workload("crash", crash, 1, some, 3 * CRASH_LEASE_MS / 1000),
    ]


def loop(workload, contestant, server, own_keys, mode="loop"):
    """Runs a loop; the acquisitions, and what the server spent on each."""
    options = dict(
        callers=workload.callers, keys="own" if own_keys else "shared", key=new_key(),
        seconds=workload.seconds, hold_us=workload.hold_us, lease_ms=LEASE_MS,
    )  # fmt: skip
    with Run(contestant, server.url, mode, **options) as run:
        run.event("ready", START_LIMIT_S)
        before = server.spent()
        run.go()
        done = run.event("done", workload.limit_s)
        spent = server.spent().since(before)
    return run.rows, cost(spent, len(run.rows)) | {"grants": len(run.rows), "errors": done["errors"]}


def loop_alone(workload, contestant, server):
    rows, result = loop(workload, contestant, server, own_keys=True)
    return result | figures.of_pairs(figures.counted(rows, workload.seconds))


def start(workload, contestant, server):
    began = time.time_ns() // 1000
    rows, result = loop(workload, contestant, server, own_keys=True, mode="start")
    return result | figures.of_start(rows, began, workload.seconds)


def loop_turns(workload, contestant, server):
    rows, result = loop(workload, contestant, server, own_keys=False)
    result |= {"two_at_a_time": figures.two_at_a_time(rows), "longest_wait_us": figures.longest_wait(rows)}
    return result | figures.of_turns(figures.counted(rows, workload.seconds), workload.callers)


def crowd(workload, contestant, server):
    options = dict(
        callers=workload.callers, key=new_key(), hold_us=workload.hold_us, settle_ms=500, lease_ms=LEASE_MS * 4
    )
    with Run(contestant, server.url, "crowd", **options) as run:
        run.event("settled", START_LIMIT_S + workload.callers / 50)
        idle = cost_while_idle(server, workload.idle_s)
        before = server.spent()
        run.go()
        done = run.event("done", workload.limit_s)
        spent = server.spent().since(before)
    result = idle | cost(spent, len(run.rows)) | {"grants": len(run.rows), "errors": done["errors"]}
    result["two_at_a_time"] = figures.two_at_a_time(run.rows)
    return result | figures.of_crowd(run.rows)


def crash(workload, contestant, server):
    """The time from the end of a holder's process, which gives nothing back, to the grant to a waiter.

    Both processes start at about the same time, as a library that does not renew has only what is left of its lease.
    The holder's head start grows if the waiter was first all the same."""
    for head_start_s in (0.3, 1, 3):
        options = dict(key=new_key(), lease_ms=CRASH_LEASE_MS)
        with Run(contestant, server.url, "hold", **options) as holder:
            time.sleep(head_start_s)
            with Run(contestant, server.url, "wait", **options) as waiter:
                held = holder.event("held", START_LIMIT_S)["at"]
                waiter.event("asked", START_LIMIT_S)
                time.sleep(0.2)  # It asks.
                died = time.time_ns() // 1000
                holder.kill()
                granted = waiter.event("granted", workload.limit_s)["at"]
        if granted > died:
            return {"crash_us": granted - died, "held_us": died - held, "errors": 0}
    raise Failed(f"the waiter had the lock before the holder died, {(died - held) / 1e6:.1f} s after it was granted")


def cost(spent, grants):
    each = max(grants, 1)
    return {
        "server_us_per_grant": spent.cpu_s * 1e6 / each,
        "requests_per_grant": None if spent.requests is None else spent.requests / each,
        "commands_per_grant": None if spent.commands is None else spent.commands / each,
    }


def cost_while_idle(server, seconds):
    """What the waiters cost while nothing happens."""
    if not seconds:
        return {}
    before, began = server.spent(), time.monotonic()
    time.sleep(seconds)
    spent, length = server.spent().since(before), time.monotonic() - began
    return {
        "idle_cpu_percent": spent.cpu_s * 100 / length,
        "idle_requests_per_s": None if spent.requests is None else spent.requests / length,
        "idle_commands_per_s": None if spent.commands is None else spent.commands / length,
    }


def together(workload):
    """How many of a workload's runs go on at once: crashes are waits of seconds in which nobody does anything."""
    return ThreadPoolExecutor(CRASHES_AT_ONCE if workload.measure is crash else 1)
