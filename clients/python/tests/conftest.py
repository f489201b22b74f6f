"""Real servers with the module, a proxy that loses replies, and one interface for both APIs."""

import asyncio
import contextlib
import functools
import json
import os
import pathlib
import pickle
import socket
import subprocess
import threading
import time
import uuid

import pytest
import redis

import rlock_client
import rlock_client.asyncio

ROOT = pathlib.Path(__file__).resolve().parents[3]
TESTSERVER = os.environ.get("RLOCK_TESTSERVER", str(ROOT / "target/debug/rlock-testserver"))
SOON = 10  # In seconds. Every wait for an event that takes milliseconds has this limit.


def until(condition, what, bound=SOON):
    end = time.monotonic() + bound
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {bound} s: {what}"
        time.sleep(0.01)
    return found


def in_child(work):
    """The result of `work` in a child of a fork, or the error that it raises."""
    near, far = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except BaseException as error:
            answer = error
        os.write(far, pickle.dumps(answer))
        os._exit(0)
    os.close(far)
    with os.fdopen(near, "rb") as pipe:
        answer = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    if isinstance(answer, BaseException):
        raise answer
    return answer


class Server:
    """The servers that ``rlock-testserver`` has started."""

    def __init__(self, *arguments):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([TESTSERVER, *arguments], stdin=pipe, stdout=pipe)
        self.about = json.loads(self.process.stdout.readline() or pytest.fail(f"{TESTSERVER} has not begun"))
        self.url, self.servers = self.about["url"], self.about["servers"]
        self.port, self.pid = self.servers[0]["port"], self.servers[0]["pid"]
        self.client = redis.Redis(port=self.port, protocol=3, decode_responses=True)

    def ask(self, *command):
        return self.client.execute_command(*command)

    def info(self, key):
        answer = self.ask("RLOCK.INFO", key)
        return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2]))

    def is_free(self, key):
        info = self.info(key)
        return info["mode"] == "free" and info["queued"] == 0

    def connections(self, name):
        return [it for it in self.client.client_list() if it["name"] == name]

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 18)
        self.process.communicate()


@pytest.fixture(scope="session")
def server():
    server = Server("one")
    yield server
    server.end()


@pytest.fixture
def begin():
    with contextlib.ExitStack() as stack:

        def begin(*arguments):
            server = Server(*arguments)
            stack.callback(server.end)
            return server

        yield begin


@pytest.fixture
def key():
    return f"key:{uuid.uuid4()}"


class AsyncApi:
    """The API for asyncio with blocking methods. Its event loop runs in a thread."""

    def __init__(self, kind, *arguments, **options):
        self.client = getattr(rlock_client.asyncio, kind)(*arguments, **options)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def lock(self, *arguments, **options):
        return AsyncLock(self, self.client.lock(*arguments, **options))

    def close(self, timeout=5):
        if self.thread.is_alive():
            self.run(self.client.aclose(timeout))
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()

    def __getattr__(self, name):
        made = getattr(self.client, name)

        def call(*arguments, **named):
            answer = made(*arguments, **named)
            return self.run(answer) if asyncio.iscoroutine(answer) else answer

        return call


class AsyncLock:
    def __init__(self, api, lock):
        self.__dict__.update(api=api, lock=lock)

    def __getattr__(self, name):
        made = getattr(self.lock, name)
        return (lambda *them, **named: self.answer(made(*them, **named))) if callable(made) else made

    def answer(self, answer):
        return self.api.run(answer) if asyncio.iscoroutine(answer) else answer

    def __enter__(self):
        self.api.run(self.lock.__aenter__())
        return self

    def __exit__(self, *error):
        return self.api.run(self.lock.__aexit__(*error))


@pytest.fixture(params=["threads", "asyncio"])
def api(request):
    """Creates clients, and quorums from a list. A test that uses this fixture runs twice, for threads and for asyncio."""
    made = []

    def make(url, **options):
        kind = "Quorum" if isinstance(url, list) else "Client"
        create = getattr(rlock_client, kind) if request.param == "threads" else functools.partial(AsyncApi, kind)
        made.append(create(url, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def client(api, server):
    return api(server.url)


class Proxy:
    """Passes bytes on. Cuts the connection of the next request that contains the word ``lose``, and loses the reply."""

    def __init__(self, port):
        self.target, self.lose, self.lost, self.sockets = port, None, 0, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    near.close()
                    continue
                self.sockets += [near, far]
                for ends in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, source, target, is_request):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_request and self.lose and self.lose.encode() in data:
                    self.lose, self.lost = None, self.lost + 1
                    source.shutdown(socket.SHUT_RDWR)
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def cut(self):
        for each in [*self.sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(server):
    proxy = Proxy(server.port)
    yield proxy
    proxy.listener.close()
    proxy.cut()
