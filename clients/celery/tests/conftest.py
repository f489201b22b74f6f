"""Real servers, beats, workers and commands."""

import base64
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import redis

HERE = pathlib.Path(__file__).parent
SOON = 20  # In seconds. Every wait for an event that comes sooner has this limit.
GRACE_MS = 2000  # As long as the leases here: a server that has lost its data grants nothing while somebody may hold it.


def until(condition, what, bound=SOON):
    end = time.monotonic() + bound
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {bound} s: {what}"
        time.sleep(0.02)
    return found


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Server:
    """A server with the module, which can be restarted at its port, without its data."""

    def __init__(self, directory):
        self.directory, self.port = directory, free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.client = redis.Redis(port=self.port, protocol=3, decode_responses=True)
        self.start(0)

    def start(self, grace_ms=GRACE_MS, has_module=True):
        program = os.environ.get("RLOCK_SERVER", "redis-server")
        options = ["--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.directory]
        if has_module:
            options += ["--loadmodule", os.environ["RLOCK_MODULE"], "--rlock.startup-grace-ms", grace_ms]
        self.process = subprocess.Popen([program, *map(str, options)], stdout=subprocess.DEVNULL)
        until(self.answers, "an answer of the server")

    def answers(self):
        with contextlib.suppress(redis.ConnectionError):
            return self.client.ping()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def owner(self, key):
        holders = self.client.execute_command("RLOCK.INFO", key)["holders"]
        return holders[0]["owner"] if holders else None


class Messages:
    """What the broker got, in order: when, the process that sent it, and the named arguments."""

    def __init__(self, server):
        self.all, self.server = [], server
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self):
        with contextlib.suppress(redis.ConnectionError):
            while True:
                if taken := self.server.client.brpop("celery", 1):
                    message = json.loads(taken[1])
                    pid = int(message["headers"]["origin"].split("@")[0].removeprefix("gen"))
                    named = json.loads(base64.b64decode(message["body"]))[1]
                    self.all.append((time.monotonic(), pid, named))

    def of(self, process):
        return [it for it in self.all if it[1] == process.pid]


class World:
    """The processes of one test."""

    def __init__(self, directory):
        self.directory, self.processes, self.logs = directory, [], {}
        self.locks, self.broker = Server(directory), Server(directory)
        self.environment = {**os.environ, "LOCKS": self.locks.url, "BROKER": self.broker.url + "/0"}
        self.environment.update(PYTHONPATH=str(HERE), PYTHONDONTWRITEBYTECODE="1", COLUMNS="200")

    def run(self, *command, **options):
        options = {"env": self.environment, "cwd": self.directory, "text": True, **options}
        process = subprocess.Popen([sys.executable, "-m", *command], start_new_session=True, **options)
        self.processes.append(process)
        return process

    def logged(self, *command):
        path = self.directory / f"log-{len(self.processes)}"
        with open(path, "w") as log:
            process = self.run(*command, stdout=log, stderr=log)
        self.logs[process.pid] = path
        return process

    def log(self, process):
        return self.logs[process.pid].read_text()

    def beat(self, number):
        options = ["--scheduler", "rlock_celery:Scheduler", "--schedule", f"schedule-{number}", "--pidfile", ""]
        return self.logged("celery", "--app", "proj", "beat", "--loglevel", "INFO", *options)

    def worker(self, pool="prefork", concurrency=2):
        name = f"worker-{len(self.processes)}@here"
        options = ["--pool", pool, "--concurrency", str(concurrency), "--hostname", name, "--loglevel", "INFO"]
        worker = self.logged("celery", "--app", "proj", "worker", "--without-gossip", "--without-mingle", *options)
        until(lambda: "ready." in self.log(worker) or worker.poll() is not None, "a worker")
        return worker

    def end(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self.locks.kill(), self.broker.kill()


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.end()
    for path in world.logs.values():
        print(path.read_text()[-3000:])
