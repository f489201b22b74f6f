"""Runs one lock library of Python under one workload: see docs/comparison.md § A contestant."""

import argparse
import json
import signal
import sys
import threading
import time
import traceback

import locks

# More would say nothing more: a loop stops early.
MOST = 200_000


def now_us():
    return time.time_ns() // 1000


def say(value):
    print(json.dumps(value), flush=True)


def await_word():
    if not sys.stdin.readline():
        raise SystemExit("standard input has ended: nobody says when to go on")


class Callers:
    """What callers do, what they saw, and the errors that they met; the first one's text is shown."""

    def __init__(self, options, count):
        self.options, self.rows, self.errors, self.guard = options, [], 0, threading.Lock()
        peer = next(peer for peer in locks.PEERS if peer.name == options.peer)
        self.all = locks.callers(peer, options.url, options.lease_ms, count)
        in_threads(self.warm_up, count)()
        if self.errors:
            raise SystemExit("the first acquisitions failed")

    def warm_up(self, caller):
        try:
            self.all[caller].take(f"{self.options.key}:warm:{caller}")()
        except Exception:
            self.failed()

    def failed(self):
        with self.guard:
            self.errors += 1
            if self.errors == 1:
                print(traceback.format_exc(), file=sys.stderr, flush=True)

    def once(self, caller, key):
        """Takes the lock, holds it and releases it. False after an error."""
        asked = now_us()
        try:
            release = self.all[caller].take(key)
            granted = now_us()
            if self.options.hold_us:
                time.sleep(self.options.hold_us / 1e6)
            releasing = now_us()
            release()
        except Exception:
            self.failed()
            time.sleep(0.01)  # An error that comes at once must not become a busy loop.
            return False
        self.rows.append((caller, asked, granted, releasing, now_us()))
        return True

    def finish(self):
        print("\n".join(map(json.dumps, self.rows)))
        say({"event": "done", "errors": self.errors})


def in_threads(work, count, first=0, apart_s=0.0):
    """Begins `work` for each number in a thread of its own; returns a function that waits for all of them."""
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(first, count)]
    for thread in threads:
        thread.start()
        if apart_s:
            time.sleep(apart_s)

    def wait():
        for thread in threads:
            thread.join()

    return wait


def loop(options):
    callers = Callers(options, options.callers)
    say({"event": "ready"})
    await_word()
    end = time.monotonic() + options.seconds

    def work(caller):
        key, done = f"{options.key}:{caller}" if options.keys == "own" else options.key, 0
        while time.monotonic() < end and len(callers.rows) < MOST and not 0 < options.rounds <= done:
            done += callers.once(caller, key)

    in_threads(work, options.callers)()
    callers.finish()


def crowd(options):
    callers = Callers(options, options.callers + 1)
    asked = now_us()
    release = callers.all[0].take(options.key)
    granted = now_us()
    wait = in_threads(
        lambda caller: callers.once(caller, options.key), options.callers + 1, first=1, apart_s=0.0005
    )
    time.sleep(options.settle_ms / 1000)
    say({"event": "settled"})
    await_word()
    releasing = now_us()
    release()
    callers.rows.append((0, asked, granted, releasing, now_us()))
    wait()
    callers.finish()


def hold(options):
    callers = Callers(options, 1)
    _release = callers.all[0].take(options.key)
    say({"event": "held", "at": now_us()})
    signal.pause()


def wait(options):
    callers = Callers(options, 1)
    say({"event": "asked", "at": now_us()})
    release = callers.all[0].take(options.key)
    say({"event": "granted", "at": now_us()})
    release()


def described():
    return [
        {
            "name": peer.name, "title": peer.title, "version": peer.version, "language": "Python",
            "waits": peer.waits, "settings": peer.settings,
        }
        for peer in locks.PEERS
    ]  # fmt: skip


def parsed():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the peers as one line of JSON")
    parser.add_argument("--peer", choices=[peer.name for peer in locks.PEERS])
    parser.add_argument("--url", help="of the server")
    parser.add_argument("--mode", choices=["loop", "crowd", "hold", "wait"])
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--keys", choices=["shared", "own"], default="shared")
    parser.add_argument("--key", default="compare")
    parser.add_argument("--seconds", type=float, default=1, help="loop: how long")
    parser.add_argument("--rounds", type=int, default=0, help="loop: acquisitions of each caller at most; 0: no limit")
    parser.add_argument("--hold-us", type=int, default=0)
    parser.add_argument("--settle-ms", type=int, default=200)
    parser.add_argument("--lease-ms", type=int, default=30_000)
    return parser.parse_args()


def main():
    options = parsed()
    if options.list:
        say(described())
    else:
        {"loop": loop, "crowd": crowd, "hold": hold, "wait": wait}[options.mode](options)


if __name__ == "__main__":
    main()
