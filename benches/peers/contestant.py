"""Runs the contestants: programs that use one lock library each, as its users would.

`docs/comparison.md` describes the protocol of a contestant.
"""

import contextlib
import json
import queue
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass

from figures import Acquisition

OURS = "rlock-"
# What each event that a contestant says shows, as what it did not do where the event is missing.
EVENTS = {
    "ready": "connect all its callers",
    "done": "finish",
    "settled": "have all its callers wait",
    "held": "take the free lock",
    "asked": "begin to wait",
    "granted": "get the lock",
}
NEVER = f"it did not {EVENTS['granted']}"
# The plain commands that locks are made of. They wait for nobody, so they are measured without contention only.
YARDSTICKS = ("set-nx-px", "ping")


class Failed(Exception):
    """A contestant did not do what it should; the text says what, with its first error."""


@dataclass(frozen=True)
class Contestant:
    """A lock library in a language, and how it is used here."""

    name: str
    title: str
    version: str
    language: str
    waits: str
    settings: str
    program: tuple

    @property
    def id(self):
        return f"{self.language.lower()}/{self.name}"

    @property
    def kind(self):
        """ours, yardstick or peer."""
        if self.name.startswith(OURS):
            return "ours"
        return "yardstick" if self.name in YARDSTICKS else "peer"

    @property
    def server(self):
        """The kind of server that it needs."""
        return next((server for server in ("postgres", "etcd") if self.name.startswith(server)), "redis")

    @property
    def is_client(self):
        """Ours as people use it, not the bare commands, and with a lease like the others."""
        return self.kind == "ours" and not self.name.startswith(f"{OURS}raw") and not self.name.endswith("-bind")

    def described(self):
        """As a part of the results; the program's place on this machine is left out."""
        fields = asdict(self) | {"id": self.id, "kind": self.kind, "server": self.server, "is_client": self.is_client}
        return {name: value for name, value in fields.items() if name != "program"}


def listed(program):
    """The contestants of a program, and what it says about those that it has to leave out."""
    asked = subprocess.run([*program, "--list"], capture_output=True, text=True, timeout=60)
    if asked.returncode:
        raise Failed(f"{program[-1]} --list failed: {last_line(asked.stderr)}")
    found = [Contestant(**fields, program=tuple(program)) for fields in json.loads(asked.stdout)]
    return found, asked.stderr.strip().splitlines()


def last_line(text):
    return (text.strip().splitlines() or ["it said nothing"])[-1][:300]


class Run:
    """One contestant at work. Leaving its `with` ends the process, and kills it if it has not ended by itself."""

    def __init__(self, contestant, url, mode, **options):
        self.contestant, self.rows = contestant, []
        self.words = tempfile.TemporaryFile("w+")
        arguments = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        self.process = subprocess.Popen(
            [*contestant.program, "--peer", contestant.name, "--url", url, "--mode", mode, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, text=True,
        )  # fmt: skip
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        with contextlib.suppress(OSError):  # It may have ended with a word to it unread.
            self.process.stdin.close()
        self.words.close()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def kill(self):
        """As a machine that loses its power: nothing is released."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def go(self):
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except OSError:
            raise Failed(f"its program ended before it was allowed to go on{self._complaint()}") from None

    def event(self, name, limit_s):
        """The event of that name, which has to be the next one; acquisitions before it are kept in `rows`."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                line = self.lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise Failed(f"it did not {EVENTS[name]} within {limit_s:g} s{self._complaint()}") from None
            if line is None:
                raise Failed(f"its program ended before it could {EVENTS[name]}{self._complaint()}")
            value = json.loads(line)
            if isinstance(value, list):
                self.rows.append(Acquisition(*value))
            elif value["event"] == name:
                return value
            else:
                raise Failed(f"its program said `{value['event']}` instead of `{name}`")

    def _complaint(self):
        self.words.seek(0)
        text = self.words.read().strip()
        return f": {last_line(text)}" if text else ""
