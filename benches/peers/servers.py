"""Starts the servers of a run, ends them by their process ids, and reads what they have spent."""

import contextlib
import glob
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from typing import NamedTuple

import psycopg
import redis

START_LIMIT_S = 30
# PostgreSQL and etcd need a connection each for as many callers as there are at most, and some more.
CONNECTIONS = 1200


class Spent(NamedTuple):
    """What a server has spent since its start; None where it does not say."""

    cpu_s: float
    requests: int | None
    commands: int | None

    def since(self, before):
        return Spent(*(None if now is None else max(0, now - then) for now, then in zip(self, before)))


class Missing(Exception):
    """A server cannot be had on this machine; the text says why."""


class Server:
    """A server in a directory of its own, which is removed when it is stopped."""

    name = title = version = note = url = ""

    def __init__(self, parent=None, user=None):
        self.directory = tempfile.mkdtemp(prefix="compare-", dir=parent)
        self.user = user
        self.process = None
        if user:
            shutil.chown(self.directory, user)

    def run(self, *command):
        """Runs the server, and waits until it answers."""
        with open(os.path.join(self.directory, "log"), "wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory, user=self.user
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Missing(f"{self.name} did not start: {self.last_words()}")
            time.sleep(0.05)

    def described(self):
        return {"title": self.title, "version": self.version, "note": self.note}

    def last_words(self):
        with open(os.path.join(self.directory, "log"), errors="replace") as log:
            return " / ".join(log.read().strip().splitlines()[-3:])

    def answers(self):
        try:
            self.spent()
            return True
        except (OSError, redis.RedisError):
            return False

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class Redis(Server):
    """The Redis server of all peers that use one, with the module loaded."""

    name = "redis"

    def __init__(self, program, module):
        super().__init__()
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.asking = redis.Redis(port=self.port)
        self.version = version_of(program)
        self.run(
            program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.directory, "--save", "",
            "--appendonly", "no", "--maxclients", "15000", "--loadmodule", module,
        )  # fmt: skip
        self.title = self.asking.info("server").get("server_name", "redis").title()
        self.note = "with the module"

    def clear(self):
        self.asking.flushall()

    def spent(self):
        """Without the question itself: one request and one command for each time that it was asked before."""
        info = self.asking.info("everything")
        asked = info["cmdstat_info"]["calls"] if "cmdstat_info" in info else 0
        return Spent(
            info["used_cpu_user"] + info["used_cpu_sys"],
            info["total_reads_processed"] - asked,
            info["total_commands_processed"] - asked,
        )


class Postgres(Server):
    """A cluster of its own, run by a user without rights, as PostgreSQL refuses to be run by root."""

    name = "postgres"

    def __init__(self):
        programs = postgres_programs()
        super().__init__(user="nobody" if os.geteuid() == 0 else None)
        self.port, data = free_port(), os.path.join(self.directory, "data")
        self.version = version_of(os.path.join(programs, "postgres"))
        self.title = "PostgreSQL"
        me = pwd.getpwuid(os.geteuid()).pw_name if not self.user else self.user
        self.url = f"postgres://{me}@127.0.0.1:{self.port}/postgres"
        made = subprocess.run(
            [os.path.join(programs, "initdb"), "--auth=trust", "--no-sync", f"--username={me}", f"--pgdata={data}"],
            capture_output=True, text=True, user=self.user, cwd=self.directory,
        )  # fmt: skip
        if made.returncode:
            raise Missing(f"initdb failed: {made.stderr.strip()}")
        self.run(
            os.path.join(programs, "postgres"), "-D", data, "-p", str(self.port), "-h", "127.0.0.1",
            "-k", self.directory, "-c", f"max_connections={CONNECTIONS}",
        )  # fmt: skip

    def clear(self):
        """An advisory lock ends with its connection."""

    def answers(self):
        try:
            psycopg.connect(self.url).close()
            return True
        except psycopg.OperationalError:
            return False

    def spent(self):
        """The counts of its statistics views lag by up to ten seconds, so there are none."""
        return Spent(cpu_of(self.process.pid), None, None)


class Etcd(Server):
    """One member, its data in memory where the machine has a file system for that."""

    name = "etcd"
    in_memory = os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK)

    def __init__(self):
        program = shutil.which("etcd")
        if not program:
            raise Missing("there is no program `etcd` (Debian: etcd-server)")
        super().__init__(parent="/dev/shm" if self.in_memory else None)
        self.url, between = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.version = version_of(program)
        self.title = "etcd"
        self.note = "one member, data " + ("in memory" if self.in_memory else "on disk")
        self.run(
            program, "--data-dir", os.path.join(self.directory, "data"),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", between, "--initial-advertise-peer-urls", between,
            "--initial-cluster", f"default={between}",
        )  # fmt: skip

    def clear(self):
        """A lock ends with its session."""

    def spent(self):
        """Messages from clients count as requests: a stream of a watch or of renewals brings many."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        got = sum(float(line.split()[-1]) for line in lines if line.startswith("grpc_server_msg_received_total"))
        return Spent(cpu_of(self.process.pid), int(got), None)


def postgres_programs():
    """The directory with `initdb` and `postgres`; Debian keeps them out of the PATH."""
    places = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    found = places[-1] if places else shutil.which("initdb")
    if not found:
        raise Missing("there is no program `initdb` (Debian: postgresql)")
    return os.path.dirname(os.path.realpath(found))


def version_of(program):
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\d+(\.\d+)+", said)
    return found.group() if found else "version unknown"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cpu_of(pid):
    """Processor seconds of a process and its children: of those alive to the nanosecond, of those ended to 10 ms."""
    total = 0
    for each in (pid, *children_of(pid)):
        for path in glob.glob(f"/proc/{each}/task/*/schedstat"):
            with contextlib.suppress(OSError):  # It has just ended.
                with open(path) as schedstat:
                    total += int(schedstat.read().split()[0])
    with open(f"/proc/{pid}/stat") as stat:
        ended = stat.read().rpartition(")")[2].split()[13:15]
    return total / 1e9 + sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(child) for child in children.read().split()]
