"""Measures what people use as distributed locks beside ours, and writes a page, a table and the raw results.

Called by benches/peers/run, which installs and builds what is needed first.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import contestant
import machine
import page
import servers
import tables
import workloads
from contestant import Failed
from results import Results

TOP = pathlib.Path(__file__).resolve().parents[2]
# seconds of a loop, rounds, sizes of crowds, seconds in which waiters only wait, minutes after which no run begins
FULL = (1.0, 3, (10, 100, 1_000, 10_000), 1.5, 17)
QUICK = (0.4, 1, (10, 100), 0.5, 4)
SMOKE = (0.2, 1, (10,), 0, 3)


def say(text):
    print(text, file=sys.stderr, flush=True)


def started_servers(kinds, left_out):
    """The servers that this machine can run, by kind. For one that it cannot, a line says so."""
    make = {
        "redis": lambda: servers.Redis(os.environ.get("RLOCK_SERVER", "redis-server"), os.environ["RLOCK_MODULE"]),
        "postgres": servers.Postgres,
        "etcd": servers.Etcd,
    }
    running = {}
    for kind in kinds:
        try:
            running[kind] = make[kind]()
        except (servers.Missing, OSError) as why:
            left_out.append(f"{kind}: {why}")
    return running


def all_listed(programs, left_out):
    found = []
    for program in programs:
        try:
            contestants, missing = contestant.listed(program.split())
            found += contestants
            left_out += missing
        except (Failed, OSError, subprocess.TimeoutExpired, ValueError, TypeError) as why:
            left_out.append(f"{program}: {why}")
    return found


def measured(workload, who, server):
    """One run: its figures, or why there are none."""
    try:
        return {"figures": workload.measure(workload, who, server)}
    except (Failed, servers.Missing, OSError, ValueError) as why:
        return {"error": str(why)}


def leading(workload, contestants):
    """Ours and one peer of each language."""
    ready = [who for who in contestants if workload.suits(who)]
    first = {}
    for who in ready:
        if who.is_client or who.kind == "peer":
            first.setdefault((who.language, who.kind), who)
    return list(first.values())


def in_order(plan, contestants, rounds):
    """What is measured, in this order: round, workload, contestants. Every contestant takes its turn under every
    workload, so that a noisy minute of the machine falls on all alike. In the first round ours and one peer of each
    language come first under all workloads, so that there is something to compare wherever the time ends."""
    for workload in plan:
        yield 0, workload, leading(workload, contestants)
    for number in range(rounds):
        for workload in plan:
            if number < workload.rounds:
                ready = [who for who in contestants if workload.suits(who)]
                if number == 0:
                    ready = [who for who in ready if who not in leading(workload, contestants)]
                # The first in one round comes later in the next.
                turn = number * len(ready) // workload.rounds
                yield number, workload, ready[turn:] + ready[:turn]


def measured_in_order(batches, running, deadline):
    """The runs, up to the deadline."""
    runs = []
    for number, workload, ready in batches:
        if not ready or time.monotonic() > deadline:
            continue
        say(f"round {number + 1}, {workload.name}: {len(ready)} contestants")
        for server in running.values():
            server.clear()

        def attempt(who, workload=workload):
            if time.monotonic() > deadline:
                return None
            outcome = measured(workload, who, running[who.server])
            if "error" in outcome:
                say(f"  {who.id}: {outcome['error']}")
            return {"contestant": who.id, "workload": workload.name, "round": number} | outcome

        with workloads.together(workload) as pool:
            runs += [run for run in pool.map(attempt, ready) if run]
    return runs


def commit():
    said = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=TOP, capture_output=True, text=True)
    return said.stdout.strip()


def compared(options):
    """Everything that was measured, as it goes into results.json."""
    seconds, rounds, crowds, idle_s, minutes = options.size
    watch = machine.Watch()
    if watch.idle.others_share > machine.OTHERS_MOST:
        say(f"This machine is busy: others use {watch.idle.others_share:.0%} of its processors. The run will be marked.")
    left_out = list(options.left_out)
    contestants = [who for who in all_listed(options.program, left_out) if not options.only or who.id in options.only]
    running = started_servers(sorted({who.server for who in contestants}), left_out)
    for who in contestants:
        if who.server not in running:
            left_out.append(f"{who.id}: it needs {who.server}")
    contestants = [who for who in contestants if who.server in running]
    plan = workloads.planned(seconds, rounds, crowds, idle_s)
    began = time.monotonic()
    deadline = began + 60 * (options.minutes or minutes)
    try:
        runs = measured_in_order(in_order(plan, contestants, rounds), running, deadline)
    finally:
        for server in running.values():
            server.stop()
    return {
        "machine": machine.described() | {"commit": commit()},
        "load": watch.load(),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "rounds": rounds,
        "loop_seconds": seconds,
        "servers": {kind: each.described() for kind, each in running.items()},
        "contestants": [who.described() for who in contestants],
        "planned": {workload.name: [who.id for who in contestants if workload.suits(who)] for workload in plan},
        "left_out": left_out,
        "runs": runs,
    }


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const=QUICK, default=FULL, help="about 5 minutes, once all is built")
    size.add_argument("--smoke", dest="size", action="store_const", const=SMOKE, help="tries the machinery")
    parser.add_argument("--only", action="append", metavar="ID", help="only this one, e.g. go/redsync; repeatable")
    parser.add_argument("--minutes", type=float, help="start no run after this many (17; quick: 4)")
    parser.add_argument("--program", action="append", default=[], help="a contestant's command line")
    parser.add_argument("--left-out", action="append", default=[], help="a line that says what was left out, and why")
    parser.add_argument("--out", type=pathlib.Path, default=TOP / "target/compare", help="where the results go")
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw the results that are there")
    return parser.parse_args()


def main():
    options = parsed()
    raw = options.out / "results.json"
    if not options.draw:
        options.out.mkdir(parents=True, exist_ok=True)
        raw.write_text(json.dumps(compared(options), indent=1, ensure_ascii=False))
    results = Results(json.loads(raw.read_text()))
    (options.out / "index.html").write_text(page.drawn(results))
    (options.out / "tables.md").write_text(tables.markdown(results))
    print(tables.plain(results))
    print(f"\nThe page: {options.out / 'index.html'}   the raw results: {raw}")
    if options.size is SMOKE:  # Nothing may go wrong there, as it is to show that everything works.
        sys.exit("\n".join(tables.notes(results)) or None)


if __name__ == "__main__":
    main()
