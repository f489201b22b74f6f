"""Real servers with the module, the helper's two faces behind one shape, and a proxy that loses replies."""

import asyncio
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

import rlock
import rlock_asyncio

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODULE = os.environ.get("RLOCK_MODULE", str(ROOT / "target/release/librlock.so"))
if not os.path.exists(MODULE):
    pytest.exit(f"RLOCK_MODULE: there is no module {MODULE}: make build", 2)
SOON = 10  # seconds: the bound of every wait for something that takes milliseconds


def until(condition, what, bound=SOON):
    end = time.monotonic() + bound
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {bound} s: {what}"
        time.sleep(0.005)
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, *options, module=MODULE, password=None):
        self.directory, self.port, self.password = tempfile.mkdtemp(), free_port(), password
        options = [*options, "--requirepass", password] if password else options
        self.options = [*options, *(["--loadmodule", module] if module else [])]
        self.start()

    def start(self):
        program = os.environ.get("RLOCK_SERVER", "redis-server")
        line = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.directory, "--save", ""]
        line += ["--maxmemory-policy", "noeviction", *self.options]
        with open(f"{self.directory}/log", "w") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log)
        self.client = redis.Redis(port=self.port, password=self.password, protocol=2, decode_responses=True)
        until(self.answers, f"a server: {pathlib.Path(self.directory, 'log').read_text()}")

    def answers(self):
        try:
            return self.client.ping()
        except redis.ConnectionError:
            return self.process.poll() is not None and pytest.fail(pathlib.Path(self.directory, "log").read_text())
        except redis.ResponseError:
            return True

    def ask(self, *command):
        return self.client.execute_command(*command)

    def info(self, key):
        flat = self.ask("RLOCK.INFO", key)
        return dict(zip(flat[::2], flat[1::2]))

    def queued(self, key):
        return self.info(key)["queued"]

    def is_free(self, key):
        return not self.ask("EXISTS", key) and not self.queued(key)

    def count(self):
        return int(self.client.info("rlock")["rlock_acquires"])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.kill()
        shutil.rmtree(self.directory)


@pytest.fixture(scope="session")
def server():
    """Shared by the tests of one worker, which run one after the other. A test has keys of its own."""
    server = Server()
    yield server
    server.end()


@pytest.fixture
def own_server():
    """A server that a test may stop, kill or fill."""
    with contextlib.ExitStack() as stack:

        def make(*options, **more):
            server = Server(*options, **more)
            stack.callback(server.end)
            return server

        yield make


@pytest.fixture
def key():
    return f"key:{uuid.uuid4()}"


class Sync:
    """``rlock`` as the tests see it."""

    def __init__(self, library, port, ask_every=10, **options):
        self.client = library.Redis(port=port, **options)
        self.locks = rlock.Locks(self.client, ask_every=ask_every)

    def lock(self, *arguments, **options):
        return self.locks.lock(*arguments, **options)

    def end(self):
        self.locks.close()
        self.client.close()


class HeldAsync:
    def __init__(self, face, held):
        self.face, self.held = face, held

    def __getattr__(self, name):
        return getattr(self.held, name)

    def release(self):
        return self.face.run(self.held.release())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return self.face.run(self.held.__aexit__(*error))


class Async:
    """``rlock_asyncio`` as the tests see it: its event loop runs in a thread."""

    def __init__(self, library, port, ask_every=10, **options):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.client = library.asyncio.Redis(port=port, **options)
        self.locks = rlock_asyncio.Locks(self.client, ask_every=ask_every)

    def run(self, work):
        return self.start(work).result(60)

    def start(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def lock(self, *arguments, **options):
        return HeldAsync(self, self.run(self.ask(*arguments, **options)))

    async def ask(self, *arguments, **options):
        return await self.locks.lock(*arguments, **options)

    async def close(self):
        await self.locks.aclose()
        await self.client.aclose()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def end(self):
        self.run(self.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


KINDS = {
    "redis": (Sync, redis), "redis-asyncio": (Async, redis), "valkey": (Sync, valkey), "valkey-asyncio": (Async, valkey)
}  # fmt: skip


@pytest.fixture(params=KINDS)
def face(request):
    """Makes a ``Locks`` of each library, sync and asyncio: every test that asks for it runs for all four."""
    kind, library = KINDS[request.param]
    made = []

    def make(port, **options):
        made.append(kind(library, port, **options))
        return made[-1]

    make.broken = (library.exceptions.ConnectionError, library.exceptions.TimeoutError, OSError)
    yield make
    for each in made:
        each.end()


@pytest.fixture
def locks(face, server):
    return face(server.port)


@pytest.fixture
def background():
    """Starts a call in a thread; its ``result(seconds)`` is the call's."""
    with ThreadPoolExecutor(32) as pool:
        yield pool.submit


class Proxy:
    """Passes bytes to a server. From the next request with ``word`` on, the reply on that connection is lost:
    ``close`` ends the connection instead, ``hang`` stays silent."""

    def __init__(self, port):
        self.target, self.lose, self.lost = port, None, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.sockets = self.listener.getsockname()[1], []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self.sockets += [near, far]
                fate = {}
                threading.Thread(target=self.to_server, args=(near, far, fate), daemon=True).start()
                threading.Thread(target=self.to_client, args=(far, near, fate), daemon=True).start()

    def to_server(self, near, far, fate):
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                if self.lose and self.lose[0].encode() in data:
                    fate["how"], self.lose, self.lost = self.lose[1], None, self.lost + 1
                far.sendall(data)
            far.shutdown(socket.SHUT_RDWR)

    def to_client(self, far, near, fate):
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                if fate.get("how") == "close":
                    near.shutdown(socket.SHUT_RDWR)
                    far.shutdown(socket.SHUT_RDWR)
                elif not fate:
                    near.sendall(data)
            near.shutdown(socket.SHUT_RDWR)

    def cut(self):
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def end(self):
        for each in [self.listener, *self.sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def proxy(server):
    proxy = Proxy(server.port)
    yield proxy
    proxy.end()
