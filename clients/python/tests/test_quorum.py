"""Locks of three servers, of which some fail."""

import asyncio
import concurrent.futures
import contextlib
import inspect
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import SOON, Proxy, in_child, until

import rlock_client
import rlock_client.asyncio
from rlock_client import Error, Lost, NotAcquired, NotConnected, OutOfRange, Quorum

GRACE = 1.5  # In seconds. A member grants nothing for this time after its start, so a lease may be as long.


class Members:
    """Three servers that grant already. Each has a proxy, so that another server can take its address."""

    def __init__(self, begin):
        self.begin = begin
        with concurrent.futures.ThreadPoolExecutor() as pool:
            self.servers = list(pool.map(lambda _: self.start(), range(3)))
        for each in self.servers:
            until(lambda each=each: each.client.info("rlock")["rlock_grace_left_ms"] == 0, "the end of the grace")
        self.proxies = [Proxy(it.port) for it in self.servers]
        self.urls = [it.url for it in self.proxies]

    def start(self):
        return self.begin("one", f"--module-arguments=startup-grace-ms {1000 * GRACE:.0f}")

    def send(self, number, which):
        os.kill(self.servers[number].pid, which)

    def come_back_empty(self, number):
        self.servers[number] = self.start()
        self.proxies[number].target = self.servers[number].port

    def count(self, number, name):
        return self.servers[number].client.info("rlock")[f"rlock_{name}"]

    def holders(self, key, *numbers):
        """The owner and the fence at each of these members."""
        infos = [self.servers[number].info(key) for number in numbers or range(3)]
        return [(it["owner"], it["fence"]) for info in infos for it in info["holders"]]

    def are_free(self, key):
        return all(it.is_free(key) for it in self.servers)


@pytest.fixture
def members(begin):
    members = Members(begin)
    yield members
    for each in members.proxies:
        each.listener.close()
        each.cut()


def test_a_lock(api, members, key):
    one, other = api(members.urls, any_grace=True, name="one"), api(members.urls, any_grace=True)
    one.connect()
    assert all(it.connections("one") for it in members.servers)
    activity = one.activity()
    with one.lock(key, activity=activity) as lock:
        until(lambda: [owner for owner, _ in members.holders(key)] == 3 * [lock.owner], "all hold it")
        assert 29 < lock.remaining <= 30 and lock.owned() and lock.fences == {key.encode(): lock.fence}
        with one.lock(key, activity=activity, wait=0) as again:
            assert again.fence == lock.fence and again.owner == lock.owner
        lock.check()
        for refused in other.lock(key), one.lock(key), one.lock(key, activity=one.activity()):
            assert refused.acquire(blocking=False) is False and refused.acquire(timeout=0.1) is False
        with pytest.raises(NotAcquired, match=f"{key}: not acquired within 0.1 s"), other.lock(key, wait=0.1):
            pytest.fail("held twice")
        assert lock.extend(60) is True and lock.remaining > 50
        before = lock.fence
    with other.lock(key, wait=SOON) as lock:
        assert lock.fence > before
    until(lambda: members.are_free(key), "free")
    began = time.monotonic()
    with one.lock(key, lease=5, release_after=1):
        pass
    with other.lock(key, wait=SOON):
        assert 1 <= time.monotonic() - began < 4
    lock = one.lock(key)
    lock.acquire()
    one.close()
    until(lambda: members.are_free(key), "released by its close")
    with pytest.raises(Lost):
        lock.check()


def test_a_lock_is_one_wait_and_one_hold(api, members, key):
    """And it is at risk if a majority confirms no renewal."""
    heard, left, losses = [], [], []
    quorum = api(members.urls, any_grace=True, listener=heard.append)
    quorum.connect()
    with quorum.lock(key):
        pass
    terms = {"lease": 2, "raise_lost": False, "on_risk": left.append, "on_loss": losses.append}
    with quorum.lock(key, **terms) as lock:
        members.send(0, signal.SIGSTOP)
        time.sleep(1.5)
        assert not left and lock.owned()
        members.send(1, signal.SIGSTOP)
        until(lambda: left, "a risk")
        assert lock.owned() and 0 < left[0] <= 1
        until(lambda: losses, "a loss")
        for number in 0, 1:
            members.send(number, signal.SIGCONT)
    until(lambda: len([it for it in heard if it.kind == "connected"]) >= 3, "all are connected")
    until(lambda: len([it for it in heard if it.kind == "hold"]) == 2, "both have ended")
    outcomes = [it.outcome for it in heard if it.kind in ("wait", "hold")]
    assert outcomes == ["granted", "released", "granted", "lease_ended"] and len(left) == len(losses) == 1
    assert [it.keys for it in heard if it.kind == "at_risk"] == [(key.encode(),)]


def test_what_is_refused(api, members, key):
    urls = members.urls
    for given, text in (
        ([], "members is 0 servers, it must be 3, 5, 7 or 9"),
        (urls[:2], "members is 2 servers, it must be 3, 5, 7 or 9"),
        (urls + urls[:1], "members is 4 servers, it must be 3, 5, 7 or 9"),
        ([urls[0], "redis+sentinel://h/m", urls[1]], r"members\[1\] is not of one server"),
        ([*urls[:2], "nothing"], r"members\[2\] is without a scheme"),
    ):
        with pytest.raises(OutOfRange, match=f"^{text}"):
            api(given)
    with pytest.raises(TypeError, match="^urls is 'redis://h', it must be a list"):
        Quorum("redis://h")
    with pytest.raises(OutOfRange, match="^response_timeout is -1"):
        api(urls, response_timeout=-1)
    with pytest.raises(TypeError, match="it must be a string or bytes"):
        api(urls).lock([key, key])
    with pytest.raises(TypeError, match="shared"):
        api(urls).lock(key, shared=True)
    # Two addresses of one server, for `connect` and for a lock without it.
    same = [urls[0], members.servers[0].url, urls[1]]
    for attempt in api(same).connect, api(same).lock(key, wait=SOON).acquire:
        with pytest.raises(Error, match=r"it is the same server as ") as refused:
            attempt()
        assert refused.value.code == "Member" and not refused.value.transient
    with pytest.raises(NotConnected, match="fewer than a majority") as refused:
        api([urls[0], "redis://127.0.0.1:1", "redis://127.0.0.1:2"]).connect()
    assert refused.value.transient
    # A lease that a member would forget.
    quorum = api(urls)
    for attempt in quorum.lock(key).acquire, quorum.lock(key, lease=GRACE + 0.001, wait=0).acquire:
        with pytest.raises(Error, match=r"startup-grace-ms` is 1500, below the lease") as refused:
            attempt()
        assert refused.value.code == "Member"
    with quorum.lock(key, lease=GRACE) as lock:
        with pytest.raises(Error, match="below the lease of 30000 ms"):
            lock.extend(30)
        assert lock.remaining <= GRACE
        for missing in lock.locked, lock.downgrade, lock.upgrade:
            with pytest.raises(OutOfRange, match="all locks of a quorum"):
                missing()
        lock.check()
    with api(urls, any_grace=True).lock(key) as lock:
        assert lock.remaining > 29 and lock.extend(60)
    # A password.
    members.servers[2].ask("CONFIG", "SET", "requirepass", "secret")
    for attempt in api(urls).connect, api(urls).lock(key, lease=GRACE, wait=SOON).acquire:
        with pytest.raises(NotConnected, match=f"{members.proxies[2].port}: NOAUTH"):
            attempt()
    with quorum.lock(key, lease=GRACE, wait=SOON):  # It has connected before.
        pass
    with api([*urls[:2], urls[2].replace("//", "//:secret@")]).lock(key, lease=GRACE):
        pass
    until(lambda: members.are_free(key), "nothing left")


def test_a_minority_fails_and_then_a_majority(api, members, key):
    losses = []
    one, other = api(members.urls, response_timeout=0.4), api(members.urls, response_timeout=0.4)
    lock = one.lock(key, lease=GRACE, on_loss=lambda error: losses.append((error, time.monotonic())))
    lock.acquire()
    until(lambda: len(members.holders(key)) == 3, "all hold it")
    # One hangs for longer than the lease: the others are renewed.
    members.send(0, signal.SIGSTOP)
    before = members.count(1, "renewals")
    until(lambda: members.count(1, "renewals") > before + 5, "renewals")
    lock.check()
    assert other.lock(key, lease=GRACE).acquire(blocking=False) is False
    with other.lock(key + "2", lease=GRACE, wait=SOON) as second:
        second.check()
    members.send(0, signal.SIGCONT)
    until(lambda: len(members.holders(key)) == 3, "it takes part again")
    # One is killed, and comes back without its data: it is taken again, not before the end of its grace.
    members.send(1, signal.SIGKILL)
    with other.lock(key + "2", lease=GRACE, wait=SOON):
        pass
    members.come_back_empty(1)
    began = time.monotonic()
    until(lambda: members.holders(key, 1), "it takes part again")
    assert time.monotonic() - began > GRACE / 2
    ((owner, fence),) = members.holders(key, 1)
    assert owner == lock.owner and fence >= lock.fence
    lock.check()
    assert not losses and other.lock(key, lease=GRACE).acquire(blocking=False) is False
    # Two are dead: the holder learns of it before its lease ends.
    began = time.monotonic()
    members.send(0, signal.SIGKILL)
    members.send(2, signal.SIGKILL)
    until(lambda: losses, "a loss")
    assert losses[0][1] - began < GRACE + 0.5 and lock.lost and lock.remaining == 0
    with pytest.raises(Lost):
        lock.check()
    with pytest.raises(Lost):
        lock.release()
    with pytest.raises((NotAcquired, rlock_client.Unavailable)):
        other.lock(key, lease=GRACE, wait=0.5).__enter__()
    # Both come back empty: it can be locked again, under a larger fence.
    members.come_back_empty(0)
    members.come_back_empty(2)
    with other.lock(key, lease=GRACE, wait=2 * SOON) as again:
        assert again.fence > fence
    until(lambda: members.are_free(key), "nothing left")


def contend(urls, key, lease):
    """A process with threads and with tasks, until its standard input closes. It prints when each of its holds began and
    ended, and its fence."""
    import asyncio, sys, threading, time
    import rlock_client.asyncio

    is_over = threading.Event()

    def held(began, lock):
        ended = time.monotonic()
        if lock.remaining:
            sys.stdout.write(f"{began} {ended} {lock.fence}\n")
            sys.stdout.flush()

    def thread():
        while not is_over.is_set():
            with quorum.lock(key, lease=lease, raise_lost=False) as lock:
                began = time.monotonic()
                time.sleep(0.002)
                held(began, lock)

    async def task(of):
        while not is_over.is_set():
            async with of.lock(key, lease=lease, raise_lost=False) as lock:
                began = time.monotonic()
                await asyncio.sleep(0.002)
                held(began, lock)

    async def tasks():
        async with rlock_client.asyncio.Quorum(urls, response_timeout=0.4) as of:
            await asyncio.gather(task(of), task(of))

    with rlock_client.Quorum(urls, response_timeout=0.4) as quorum:
        running = [threading.Thread(target=it) for it in (thread, thread, lambda: asyncio.run(tasks()))]
        [it.start() for it in running]
        sys.stdin.read()
        is_over.set()
        [it.join() for it in running]


def test_contenders_of_several_processes(members, key):
    """While members stop, die and come back empty, no two hold it at once, and fences rise."""
    program = inspect.getsource(contend) + f"contend({members.urls!r}, {key!r}, {GRACE})"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", program], **pipes) for _ in range(3)]
    seen = []  # One list for each process.

    def read(process):
        lines = []
        seen.append(lines)
        for line in process.stdout:
            lines.append(line)

    def more(count):
        enough = sum(map(len, seen)) + count
        until(lambda: sum(map(len, seen)) >= enough, f"{count} more holds", 30)

    readers = [threading.Thread(target=read, args=[it]) for it in processes]
    [it.start() for it in readers]
    with contextlib.ExitStack() as stack:
        [stack.callback(it.kill) for it in processes]
        more(50)
        members.send(1, signal.SIGSTOP)
        more(50)
        members.send(1, signal.SIGCONT)
        granted = members.count(1, "grants")
        until(lambda: members.count(1, "grants") > granted, "it grants again")
        members.send(2, signal.SIGKILL)
        more(50)
        members.come_back_empty(2)
        until(lambda: members.count(2, "grants") > 10, "it grants again")
        members.send(0, signal.SIGKILL)
        more(50)
        [it.stdin.close() for it in processes]
        codes = [it.wait(30) for it in processes]
    [it.join() for it in readers]
    assert codes == [0, 0, 0]
    holds = sorted(tuple(map(float, line.split())) for lines in seen for line in lines)
    for (_, ended, fence), (began, _, next_fence) in zip(holds, holds[1:]):
        assert ended <= began and fence < next_fence


def test_forks_loops_and_cancelled_tasks(members, key):
    with Quorum(members.urls, any_grace=True) as quorum, quorum.lock(key) as lock:

        def child():
            with quorum.lock(key + "2", wait=SOON) as mine:
                return [lock.owned(), quorum.lock(key).acquire(False), mine.owned()]

        assert in_child(child) == [False, False, True]
        other = rlock_client.asyncio.Quorum(members.urls, any_grace=True)

        async def work():
            async with other.lock(key + "2", wait=SOON) as mine:
                waits = [asyncio.ensure_future(other.lock(key).acquire()) for _ in range(20)]
                await asyncio.wait(waits, timeout=0.2)
                [it.cancel() for it in waits]
                await asyncio.wait(waits, timeout=SOON)
                assert all(it.cancelled() for it in waits)
                return await mine.owned()

        assert asyncio.run(work()) and asyncio.run(work())
        lock.check()
    until(lambda: members.are_free(key) and members.are_free(key + "2"), "nothing left")


def test_gevent(members, key):
    program = f"""if True:
        from gevent import monkey; monkey.patch_all()
        import gevent, rlock_client
        quorum, inside, most = rlock_client.Quorum({members.urls!r}, any_grace=True), [], []
        def work():
            with quorum.lock({key!r}):
                inside.append(1); most.append(len(inside)); gevent.sleep(0.001); inside.pop()
        gevent.joinall([gevent.spawn(work) for _ in range(20)], raise_error=True)
        lock = quorum.lock({key!r})
        lock.acquire()
        waits = gevent.spawn(quorum.lock({key!r}).acquire)
        gevent.sleep(0.1)
        waits.kill()
        print(len(most), max(most), lock.owned(), waits.dead)"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("20 1 True True\n", "")
    until(lambda: members.are_free(key), "released by the end of the program")
