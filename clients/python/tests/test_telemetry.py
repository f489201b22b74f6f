"""What a client tells its listener, and locks at risk."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from conftest import SOON, until
from test_locks import DOCS, refuses

import rlock_client.asyncio
from rlock_client import Client, Lost, NotAcquired, Occurrence, Quorum, _host


class Heard(list):
    """The occurrences that a listener has heard."""

    def of(self, kind, count=1):
        """Those of a kind, once this number has been heard."""
        until(lambda: len(self.now(kind)) >= count, f"{count} of {kind}")
        return self.now(kind)

    def now(self, kind):
        return [it for it in self if it.kind == kind]


def test_waits_holds_and_connections(api, begin, key):
    server, heard = begin("one"), Heard()
    client = api(server.url, listener=heard.append)
    with client.lock(key):
        assert not client.lock(key).acquire(blocking=False)
        with pytest.raises(NotAcquired), client.lock([key, "b"], wait=0.05):
            pass
    with pytest.raises(Lost), client.lock(key):
        server.ask("RLOCK.FORCE", key)
        heard.of("hold", 2)
    with pytest.raises(rlock_client.OutOfRange):
        client.lock(key, lease=0.001).acquire()  # This is no wait.
    left = client.lock("left")
    left.acquire() and client.close()
    waits, holds, keys = heard.of("wait", 5), heard.of("hold", 3), (key.encode(),)
    assert [it.outcome for it in waits] == ["granted", "refused", "refused", "granted", "granted"]
    assert [it.keys for it in waits] == [keys, keys, (b"b", *keys), keys, (b"left",)]
    assert 0.05 <= waits[2].duration < holds[0].duration < SOON
    ends = ["released", "ended_by_server", "closed"]
    assert [(it.outcome, it.keys) for it in holds] == list(zip(ends, [keys, keys, (b"left",)]))
    assert heard[0] == Occurrence("connected", "", 0.0, (), f"127.0.0.1:{server.port}")
    assert "outcome='released'" in f"{holds}" and key not in f"{holds[0]} {holds}"


def test_a_lock_at_risk(api, begin, key):
    """Each guard learns of it once, before the loss, and again only after a renewal."""
    server, heard, told = begin("one"), Heard(), []
    client = api(server.url, listener=heard.append)
    activity = client.activity()
    terms = {"lease": 2, "activity": activity, "raise_lost": False}

    def call(name):
        return lambda it: told.append((name, it))

    with client.lock(key, on_risk=call("outer"), on_loss=call("lost"), **terms) as lock, client.lock(key, **terms):
        with client.lock(key, on_risk=call("inner"), **terms):
            for count in 1, 2:
                os.kill(server.pid, signal.SIGSTOP)
                until(lambda: len(told) == 2 * count, "they are at risk")
                assert lock.owned() and not heard.now("hold")
                os.kill(server.pid, signal.SIGCONT)
                until(lambda: lock.remaining > 1.5, "it is renewed")
            assert sorted(name for name, _ in told) == ["inner", "inner", "outer", "outer"]
            assert all(0 < left <= 1 for _, left in told)
        heard.of("hold")
        os.kill(server.pid, signal.SIGSTOP)
        until(lambda: len(told) == 6, "the loss")
        os.kill(server.pid, signal.SIGCONT)
    assert told[4][0] == "outer" and told[5][0] == "lost"
    assert {(it.outcome, it.keys) for it in heard.now("at_risk")} == {("", (key.encode(),))}
    assert len(heard.now("at_risk")) == 8 and [it.outcome for it in heard.of("hold", 3)] == ["released"] + 2 * ["lease_ended"]


def test_a_coroutine_is_called_at_risk(begin, key, caplog):
    """It comes without a listener. What it raises is logged."""
    server, told = begin("one"), []

    async def on_risk(left):
        await asyncio.sleep(0)
        told.append(left)
        raise ValueError("a mistake")

    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            election = client.election(key, lease=1, on_risk=on_risk, raise_lost=False)
            async with election.campaign("v") as leadership:
                os.kill(server.pid, signal.SIGSTOP)
                while not leadership.lost:
                    await asyncio.sleep(0.01)
                os.kill(server.pid, signal.SIGCONT)

    asyncio.run(main())
    assert len(told) == 1 and 0 < told[0] <= 0.5
    assert caplog.text.count("ValueError: a mistake") == 1 and f"on_risk of {key}" in caplog.text


def test_what_a_listener_raises_is_logged(api, server, key, caplog):
    for mistake in ValueError("a mistake"), SystemExit("a mistake"), asyncio.CancelledError("a mistake"):

        def listener(occurrence, mistake=mistake):
            raise mistake

        caplog.clear()
        client = api(server.url, listener=listener)
        for _ in range(3):
            with client.lock(key):
                pass
        client.close()
        # Of one connection, three waits and three holds.
        assert caplog.text.count("a mistake\n") == 7 and {it.levelname for it in caplog.records} >= {"ERROR"}


def test_a_signal_while_a_listener_runs_ends_the_program(server, key):
    def listener(occurrence):
        if occurrence.kind == "connected":
            signal.raise_signal(signal.SIGTERM)

    async def main():
        async with rlock_client.asyncio.Client(server.url, listener=listener) as client:
            await client.lock(key).acquire()

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    try:
        with pytest.raises(SystemExit, match="ended"):
            asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)
    until(lambda: server.is_free(key), "free")


def test_a_callback_that_exits_ends_no_later_one(server, key, caplog):
    with Client(server.url) as client:
        for count in 1, 2:
            with client.lock(key, raise_lost=False, on_loss=lambda _: sys.exit("a mistake")):
                server.ask("RLOCK.FORCE", key)
                until(lambda count=count: caplog.text.count("SystemExit: a mistake") == count, "it is called")


def test_a_listener_that_waits_for_its_client_does_not_stop_it(server, key, caplog):
    for wait in (lambda: client.lock(key).acquire(), lambda: next(client.election(key).observe())):
        caplog.clear()
        with Client(server.url, listener=lambda _, wait=wait: wait()) as client:
            with client.lock(key, wait=SOON):
                until(lambda: "must not wait for its own client" in caplog.text, "an error")
            with client.lock(key, wait=SOON):
                pass


def test_without_a_listener_nothing_is_watched(api, server, key, monkeypatch):
    occurred = []
    monkeypatch.setattr(_host.Host, "occurred", lambda self, *fields: occurred.append(fields))
    client = api(server.url)
    with client.lock(key):
        assert not client.lock(key).acquire(False)
    client.close()
    assert not occurred


async def coroutine(occurrence):
    pass


def test_callbacks_are_functions(server):
    urls = [server.url] * 3
    for value in "print", 7, True, coroutine:
        for create in Client, rlock_client.asyncio.Client, Quorum:
            with refuses(f"listener is {value!r}, it must be a function, and no coroutine function"):
                create(urls if create is Quorum else server.url, listener=value)
    client = Client(server.url)
    for lock in client.lock, client.election, Quorum([f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]).lock:
        for name in "on_loss", "on_risk":
            with refuses(f"{name} is 'print', it must be a function"):
                lock("k", **{name: "print"})


def test_the_program_of_the_document(server):
    [program] = re.findall(r"^```python\n(.*?)^```", (DOCS / "telemetry.md").read_text(), re.DOTALL | re.MULTILINE)
    program = program.replace("6379", str(server.port))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    [resource] = json.loads(done.stdout)["resource_metrics"]
    [scope] = resource["scope_metrics"]
    seen = {it["name"]: [point["attributes"] for point in it["data"]["data_points"]] for it in scope["metrics"]}
    assert seen == {
        "rlock.client.wait.duration": [{"rlock.outcome": "granted"}],
        "rlock.client.hold.duration": [{"rlock.outcome": "released"}],
        "rlock.client.occurrences": [{"rlock.kind": "connected"}],
    }
