"""Locks on a server that works."""

import asyncio
import contextlib
import functools
import gc
import inspect
import json
import math
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import ROOT, SOON, AsyncApi, Server, until

import rlock_client
import rlock_client.asyncio
from rlock_client import Client, Lost, NotAcquired, _engine, _format


def test_a_lock(client, server, key):
    lock = client.lock(key, lease=30)
    assert not lock.locked() and not lock.owned() and lock.remaining == 0
    assert lock.acquire() is True
    assert lock.locked() and lock.owned() and 29 < lock.remaining <= 30
    (holder,) = server.info(key)["holders"]
    assert (holder["owner"], holder["fence"]) == (lock.owner, lock.fence) and lock.fences == {key.encode(): lock.fence}
    other = client.lock(key, wait=0.1)
    assert other.acquire(blocking=False) is False and other.acquire(timeout=0.05) is False and not other.owned()
    with pytest.raises(NotAcquired, match="not acquired within 0.1 s"), other:
        pytest.fail("held twice")
    assert lock.extend(60) is True and lock.remaining > 50
    lock.check()
    before = lock.fence
    lock.release()
    with lock as again:
        assert again is lock and lock.fence > before
    assert server.is_free(key)
    with pytest.raises(Lost):
        lock.release()


@pytest.mark.parametrize(
    "terms, code",
    [
        ({"wait": -1}, "OutOfRange"),
        ({"lease": 0.002}, "OutOfRange"),
        ({"limit": 2, "permits": 3}, "OutOfRange"),
        ({"limit": 2, "shared": True}, "OutOfRange"),
        ({"margin": 11}, "OutOfRange"),
        ({"replicas": 70000}, "OutOfRange"),
        ({"replicas": 1, "wait": 1}, "NotReplicated"),
    ],
)
def test_what_is_refused(client, server, key, terms, code):
    with pytest.raises(rlock_client.Error) as refused:
        client.lock(key, **terms).acquire()
    assert refused.value.code == code
    assert isinstance(refused.value, ValueError) == (code == "OutOfRange")
    until(lambda: server.is_free(key), "free")
    with pytest.raises(rlock_client.OutOfRange, match="key is empty"):
        client.lock("").acquire()


SECONDS = "it must be a number of seconds from 0 to 2592000"


def refuses(text):
    return pytest.raises((rlock_client.OutOfRange, TypeError), match=f"^{re.escape(text)}$")


@pytest.mark.parametrize("value", [10**400, math.nan, -0.001, -math.inf, 2592000.001, "5", True])
def test_times_are_numbers_of_seconds_in_their_range(client, key, value):
    for name in ("wait", "lease", "max_hold", "bound", "release_after"):
        with refuses(f"{name} is {value!r}, {SECONDS}"):
            client.lock(key, **{name: value})


def test_only_what_has_no_limit_by_default_takes_infinity(client, server, key):
    for name, value in (("lease", None), ("lease", math.inf), ("bound", math.inf), ("release_after", math.inf)):
        with refuses(f"{name} is {value}, {SECONDS}"):
            client.lock(key, **{name: value})
    with client.lock(key, wait=math.inf, max_hold=math.inf) as lock:
        for call, text in (
            (lambda: lock.acquire(timeout=-2), "timeout is -2"),
            (lambda: lock.upgrade(wait=math.nan), "wait is nan"),
            (lambda: lock.extend(math.inf), "lease is inf"),
            (lambda: client.close(math.nan), "timeout is nan"),
        ):
            with refuses(f"{text}, {SECONDS}"):
                call()
        assert lock.owned()
    for name in ("response_timeout", "retry_timeout", "replication_timeout"):
        with refuses(f"{name} is inf, {SECONDS}"):
            rlock_client.Client(server.url, **{name: math.inf})


@pytest.mark.parametrize(
    "terms, text",
    [
        ({"limit": 0}, "limit is 0, it must be a whole number from 1 to 1000000"),
        ({"limit": 2, "permits": 1.5}, "permits is 1.5, it must be a whole number from 1 to 1000000"),
        ({"replicas": "1"}, "replicas is '1', it must be a whole number from 0 to 65535"),
    ],
)
def test_counts_are_whole_numbers_in_their_range(client, key, terms, text):
    with refuses(text):
        client.lock(key, **terms)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"url": None}, "url is of the type NoneType, it must be a string"),
        ({"url": b"redis://x"}, "url is of the type bytes, it must be a string"),
        ({"url": "redis://\ud800"}, "url is text with a surrogate, it must be text that UTF-8 can encode"),
        ({"name": 5}, "name is of the type int, it must be a string"),
        ({"name": "\ud800"}, "name is text with a surrogate, it must be text that UTF-8 can encode"),
        ({"tls": 5}, "tls is 5, it must be an ssl.SSLContext"),
    ],
)
def test_what_a_client_refuses(options, text):
    for kind in (Client, rlock_client.asyncio.Client):
        with refuses(text):
            kind(**options)


def test_what_names_no_lock_is_refused(client, key):
    for value, text in (
        ("", "key is empty, it must be at least 1 byte"),
        (b"", "key is empty, it must be at least 1 byte"),
        ("\ud800", "key is text with a surrogate, it must be text that UTF-8 can encode"),
        (7, "key is 7, it must be a string or bytes"),
    ):
        for use in (client.info, client.force, client.election, lambda value: client.lock([key, value])):
            with refuses(text):
                use(value)
    with refuses("keys is None, it must be a string, bytes, or several of them"):
        client.lock(None)
    with refuses("activity is 5, it must be an activity of a client"):
        client.lock(key, activity=5)


def test_kinds(client, server, key):
    with client.lock(key, shared=True) as one, client.lock(key, shared=True) as two:
        assert one.upgrade(wait=0.05) is False and one.owned()
        two.release()
        assert two.acquire() and two.upgrade(wait=0) is False
    server.ask("RLOCK.ACQUIRE", key, "other", 60000, "SHARED")
    with pytest.raises(Lost, match="ended"), client.lock(key, shared=True) as lost:

        def force():
            until(lambda: server.info(key)["queued"] == 1, "the upgrade waits")
            server.ask("RLOCK.FORCE", key)

        thread = threading.Thread(target=force)
        thread.start()
        with pytest.raises(Lost, match="ended"):
            lost.upgrade(wait=10)
        thread.join()
        until(lambda: server.is_free(key), "it is not held")
    reader = client.lock(key, shared=True)
    with reader:
        fence = reader.fence
        assert reader.upgrade(wait=1) and server.info(key)["mode"] == "exclusive" and reader.fence > fence
        reader.downgrade()
        assert server.info(key)["mode"] == "shared"
    with client.lock(key, limit=4, permits=3), client.lock(key, limit=4):
        assert not client.lock(key, limit=4).acquire(False)
    both = client.lock([key, key + "2"])
    with both:
        assert set(both.fences) == {key.encode(), key.encode() + b"2"} and both.fence == max(both.fences.values())
        assert not client.lock(key + "2").acquire(False)
    assert server.is_free(key) and server.is_free(key + "2")


def test_some_permits_are_released_and_the_rest_stays(client, server, key):
    lock, other = client.lock(key, limit=3, permits=3), client.lock(key, limit=3)
    with lock:
        fence = lock.fence
        for value in (0, 4, -1, 1.5, "1", True):
            with refuses(f"permits is {value!r}, it must be a whole number from 1 to 3"):
                lock.release(value)
        assert not other.acquire(False)
        lock.release(1)
        with other:
            assert lock.owned() and lock.fence == fence
            assert sorted(it["permits"] for it in server.info(key)["holders"]) == [1, 2]
            with refuses("permits is 3, it must be a whole number from 1 to 2"):
                lock.release(permits=3)
        assert not client.lock(key, limit=3, permits=2).acquire(False)
    assert server.is_free(key) and not lock.owned()
    lock.acquire(), lock.release(2)
    assert lock.owned() and client.lock(key, limit=3, permits=2).acquire(False)
    lock.release(1)
    with pytest.raises(Lost):
        lock.release(1)
    with client.lock(key + "2", permits=2) as alone:
        with refuses("permits is 2, it must be a whole number from 1 to 1"):
            alone.release(2)


def test_threads_release_the_permits_of_one_hold(server, key):
    with Client(server.url) as client:
        for _ in range(20):
            lock = client.lock(key, limit=8, permits=8, thread_local=False)
            lock.acquire()
            threads = [threading.Thread(target=lock.release, args=(2,)) for _ in range(4)]
            [it.start() for it in threads], [it.join() for it in threads]
            assert not lock.owned() and server.is_free(key)


def test_an_activity_re_enters_its_locks_and_deadlocks_are_detected(client, server, key):
    one, two = client.activity(), client.activity()
    with client.lock(key, activity=one) as first:
        with client.lock(key, activity=one, wait=1) as second:
            assert second.fence == first.fence
        assert first.owned()
        with client.lock(key + "2", activity=two):
            thread = threading.Thread(target=client.lock(key, activity=two, wait=SOON).acquire)
            waits = threading.Thread(target=lambda: client.lock(key + "2", activity=one, wait=1).acquire(False))
            thread.start(), waits.start()
            until(lambda: server.info(key)["queued"] == 1, "a wait")
            with pytest.raises(rlock_client.Deadlock):
                client.lock(key + "2", activity=one, wait=SOON).acquire()
    thread.join(), waits.join()


def test_terms(client, server, key):
    losses = []
    with pytest.raises(Lost), client.lock(key, lease=0.3, renew=False, on_loss=losses.append) as fixed:
        until(lambda: losses, "a loss")
        assert fixed.lost and isinstance(losses[0], Lost) and key in str(losses[0])
    with client.lock(key, lease=0.3, raise_lost=False, max_hold=0.6, on_loss=losses.append):
        time.sleep(0.4)
        assert len(losses) == 1
        until(lambda: len(losses) == 2, "the end of the longest hold")
    with client.lock(key, bound=0.1):
        assert server.info(key)["holders"][0]["bound"] == 1
    began = time.monotonic()
    with client.lock(key, release_after=0.5):
        pass
    lock = client.lock(key)
    assert lock.acquire(timeout=SOON) and time.monotonic() - began > 0.4
    assert client.force(key) is True and client.info(key)["mode"] == "free" and client.metrics()["grants"] >= 4


def test_only_the_hold_with_a_fence_is_ended(client, key):
    lock = client.lock(key, raise_lost=False)
    with lock:
        assert client.force(key, lock.fence - 1) is False and not lock.lost
        assert client.force(key, fence=client.info(key)["fence"]) is True
        assert client.info(key)["mode"] == "free"
    for value in (0, -1, 2**53, 1.5, "7", True):
        with refuses(f"fence is {value!r}, it must be a whole number from 1 to 9007199254740991"):
            client.force(key, fence=value)


def test_a_decorator(server, key):
    seen = []
    with Client(server.url) as client:

        @client.lock(key)
        def work(number):
            seen.append(server.info(key)["mode"])
            return number

        threads = [threading.Thread(target=work, args=(1,)) for _ in range(4)]
        [it.start() for it in threads], [it.join() for it in threads]
        assert work(2) == 2 and seen == ["exclusive"] * 5

    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:

            @client.lock(key)
            async def work(number):
                return number, await client.lock(key).locked()

            assert await asyncio.gather(work(1), work(2)) == [(1, True), (2, True)]

    asyncio.run(main())


def test_a_decorator_refuses_what_works_after_its_call(server, key):
    async def coroutine():
        pass

    def generator():
        yield

    async def asynchronous_generator():
        yield

    with Client(server.url) as client:
        for function in (coroutine, generator, asynchronous_generator, functools.partial(coroutine)):
            with pytest.raises(TypeError, match="hold the lock inside it"):
                client.lock(key)(function)
    for function in (generator, asynchronous_generator):
        with pytest.raises(TypeError, match="hold the lock inside it"):
            rlock_client.asyncio.Client(server.url).lock(key)(function)


def test_one_lock_for_many_threads_and_tasks(server, key):
    inside, most = 0, 0

    def work(lock):
        nonlocal inside, most
        for _ in range(5):
            with lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1

    with Client(server.url) as client:
        lock = client.lock(key)
        threads = [threading.Thread(target=work, args=(lock,)) for _ in range(16)]
        [it.start() for it in threads], [it.join() for it in threads]

    async def task(lock, number):
        nonlocal inside, most
        for _ in range(5):
            if number % 2:
                await lock.acquire()
            else:
                await asyncio.wait_for(lock.acquire(), SOON)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1
            await lock.release()

    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            lock = client.lock(key)
            await asyncio.gather(*(task(lock, number) for number in range(16)))

    asyncio.run(main())
    assert (inside, most) == (0, 1) and server.is_free(key)


def test_another_thread_releases(server, key):
    with Client(server.url) as client:
        lock, own = client.lock(key, thread_local=False), client.lock(key + "2")
        assert lock.acquire() and own.acquire()
        seen = []
        thread = threading.Thread(target=lambda: seen.extend([lock.owned(), own.owned(), lock.release()]))
        thread.start(), thread.join()
        assert seen == [True, False, None] and server.is_free(key) and own.owned()
        own.release()

    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            for is_own in (True, False):
                lock, done = client.lock(key, shared=True, thread_local=is_own), asyncio.Event()

                async def hold(lock=lock, done=done, is_own=is_own):
                    await lock.acquire()
                    await done.wait()
                    if is_own:
                        await lock.release()

                tasks = [asyncio.ensure_future(hold()) for _ in range(2)]
                while server.info(key)["mode"] == "free" or len(server.info(key)["holders"]) < 2:
                    await asyncio.sleep(0.01)
                assert await lock.owned() != is_own
                if not is_own:
                    await lock.release(), await lock.release()
                done.set()
                await asyncio.gather(*tasks)
                assert server.is_free(key)

    asyncio.run(main())


def test_a_hold_belongs_to_the_task_that_calls_acquire(server, key):
    """Even if another task runs the call, as those of `gather`, `create_task` and, in older versions, `wait_for` do."""

    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            lock, twin = client.lock(key), client.lock(key + "2")
            assert await asyncio.wait_for(lock.acquire(), SOON) and await asyncio.create_task(twin.acquire())

            async def other():
                assert not await lock.owned() and lock.remaining == 0 and not lock.lost
                assert not await lock.acquire(blocking=False)
                for call in (lock.release, lambda: lock.extend(9), lock.upgrade, lock.downgrade):
                    with pytest.raises(Lost, match="not held by this task.*thread_local=False"):
                        await call()
                for look in (lock.check, lambda: lock.fence, lambda: lock.fences, lambda: lock.owner):
                    with pytest.raises(Lost, match="not held by this task"):
                        look()

            await asyncio.gather(other(), other())
            lock.check(), twin.check()
            assert await asyncio.gather(lock.extend(60), twin.owned()) == [True, True] and lock.remaining > 50
            await asyncio.gather(lock.release(), asyncio.wait_for(twin.release(), SOON))
            with pytest.raises(Lost, match="not held by this task"):
                await lock.release()
            assert server.is_free(key) and server.is_free(key + "2")

    asyncio.run(main())


def test_the_end_of_a_block_leaves_the_hold_of_another_task(server, key):
    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            lock, held, over = client.lock(key), asyncio.Event(), asyncio.Event()

            async def first():
                with pytest.raises(Lost):
                    async with lock:
                        await lock.release()
                        await held.wait()
                over.set()

            async def second():
                async with lock:
                    held.set()
                    await over.wait()
                    lock.check()
                    assert server.info(key)["holders"][0]["fence"] == lock.fence

            await asyncio.gather(first(), second())

    asyncio.run(main())
    assert server.is_free(key)


def test_what_a_task_holds_when_it_ends_is_for_a_task_without_a_hold(server, key):
    """As before Python 3.12, where `wait_for` makes a task, and where a test is prepared in another one. A task that
    has lost the lock does not use the next holder's."""

    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            lock = client.lock(key)

            async def begins():
                assert await lock.acquire(timeout=SOON)

            await asyncio.create_task(begins())
            gc.collect()
            assert await lock.owned() and lock.fence == server.info(key)["holders"][0]["fence"]
            await lock.release()
            assert server.is_free(key)
            await asyncio.create_task(begins())
            server.ask("RLOCK.FORCE", key)
            await asyncio.create_task(begins())
            for _ in range(2):
                with pytest.raises(Lost, match="the server ended it"):
                    lock.check()
            with pytest.raises(Lost, match="the server ended it"):
                await lock.release()
            assert await lock.owned() and not server.is_free(key)
            await lock.release()
            assert server.is_free(key)

    asyncio.run(main())


def test_the_end_of_a_block_ends_the_hold_of_its_beginning(server, key):
    """In any task: the event loop closes a generator that was left in a task of its own."""

    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            lock, units = client.lock(key), client.lock(key + "2", limit=3)

            async def items(of):
                async with of:
                    yield 1

            async def leaves(of):
                async for _ in items(of):
                    break
                gc.collect()
                await asyncio.sleep(0.05)

            async def begins(of):
                await anext_(of)
                server.ask("RLOCK.FORCE", key)

            for _ in range(2):
                await leaves(lock)
                assert await lock.acquire(timeout=SOON)
                await lock.release()
            assert server.is_free(key)
            # Others are in blocks of the same object.
            async with units:
                await asyncio.gather(leaves(units), leaves(units))
                assert [it["fence"] for it in server.info(key + "2")["holders"]] == [units.fence]
            # The block that has lost its hold belongs to another task, and to the same one.
            for begin in (lambda old: asyncio.create_task(begins(old)), begins):
                old = items(lock)
                await begin(old)
                async with lock:
                    await old.aclose()
                    lock.check()
                    assert [it["fence"] for it in server.info(key)["holders"]] == [lock.fence]
                assert server.is_free(key)
            # What was acquired by hand in a block is not left when it ends.
            async with lock:
                await lock.release()
                assert await lock.acquire(timeout=SOON)
            assert server.is_free(key)
            # One task enters blocks, another one ends them, and a third one is in a block.
            stack = contextlib.AsyncExitStack()
            await asyncio.create_task(stack.enter_async_context(units))
            async with units:
                await asyncio.create_task(stack.aclose())
                assert [it["fence"] for it in server.info(key + "2")["holders"]] == [units.fence]
            await asyncio.create_task(lock.__aenter__())
            await lock.release()
            async with lock:
                with pytest.raises(Lost, match="not held by this task"):
                    await asyncio.create_task(ends(lock))
                lock.check()
            assert server.is_free(key) and server.is_free(key + "2")

    async def anext_(of):
        return await of.__anext__()

    async def ends(lock):
        await lock.__aexit__(None, None, None)

    asyncio.run(main())
    with Client(server.url) as client:
        lock = client.lock(key)

        def items():
            with lock:
                yield 1

        old = items()
        next(old)
        server.ask("RLOCK.FORCE", key)
        until(lambda: lock.lost, "lost")
        assert lock.acquire()
        old.close()
        lock.check()
        lock.release()
        # Another thread ends a block whose hold was released by hand.
        begun = items()
        thread = threading.Thread(target=lambda: (next(begun), lock.release()))
        thread.start(), thread.join()
        assert lock.acquire()
        with pytest.raises(Lost, match="not held by this thread"):
            next(begun)
        lock.check()
        lock.release()


def test_ends_of_blocks_that_are_kept(server, key):
    """A test calls `addCleanup(lock.__exit__, …)`, and a program `ExitStack.push`. The next lock is another one."""

    async def main():
        async with rlock_client.asyncio.Client(server.url) as client, contextlib.AsyncExitStack() as stack:
            for lock in [client.lock(f"{key} {number}") for number in range(3)]:
                await lock.__aenter__()
                stack.push_async_exit(lock)
            stack.push_async_callback(client.lock(f"{key} 3").__aexit__, None, None, None)
            await stack.enter_async_context(client.lock(f"{key} 4"))
            with pytest.raises(Lost, match=f"{key} 3"):
                await stack.aclose()
            assert all(server.is_free(f"{key} {number}") for number in range(5))

    asyncio.run(main())
    with Client(server.url) as client, contextlib.ExitStack() as stack:
        for number, lock in enumerate([client.lock(f"{key} {number}") for number in range(4)]):
            lock.__enter__()
            if number % 2:
                stack.push(lock)
            else:
                stack.callback(lock.__exit__, None, None, None)
        stack.enter_context(client.lock(f"{key} 4"))
        stack.close()
        assert all(server.is_free(f"{key} {number}") for number in range(5))
        lock.acquire()
        with unittest.mock.patch.object(type(lock), "__exit__", autospec=True), client.lock(key):
            pass
        lock.release()


def test_a_test_that_is_prepared(server, key):
    class Prepared(unittest.IsolatedAsyncioTestCase):
        async def asyncSetUp(self):
            self.client = rlock_client.asyncio.Client(server.url)
            self.addAsyncCleanup(self.client.aclose)
            self.lock, self.twin = self.client.lock(key), self.client.lock(key + "2")
            self.addCleanup(lambda: server.is_free(key) or self.fail("it is held"))
            if sys.version_info >= (3, 11):
                await self.enterAsyncContext(self.lock)
            assert await self.twin.acquire()
            self.addCleanup(lambda: server.is_free(key + "2") or self.fail("it is held"))
            if sys.version_info[:2] == (3, 11):  # Its `unittest` awaits only what an `async def` returns.
                self.addAsyncCleanup(self.releases)
            else:
                self.addAsyncCleanup(self.twin.release)

        async def releases(self):
            await self.twin.release()

        async def test_it(self):
            self.twin.check()
            assert await self.lock.owned() or sys.version_info < (3, 11)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = Prepared("test_it").run()
    assert result.testsRun == 1 and not result.failures + result.errors


def test_a_look_does_not_disturb_a_release(server, key):
    """A task may end before the release begins that it has called."""

    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            lock, releases = client.lock(key), []

            async def begins():
                await lock.acquire()
                releases.append(asyncio.create_task(lock.release()))

            async def looks():
                while not releases:
                    await asyncio.sleep(0)
                return lock.remaining

            await asyncio.gather(asyncio.create_task(begins()), asyncio.create_task(looks()))
            await releases[0]
            assert server.is_free(key)

    asyncio.run(main())


def test_a_cancelled_upgrade_leaves_the_hold_shared(server, key):
    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            lock = client.lock(key, shared=True)
            for turns in range(20):
                await lock.acquire()
                upgrade = asyncio.create_task(lock.upgrade())
                for _ in range(turns):
                    await asyncio.sleep(0)
                is_cancelled = upgrade.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    is_cancelled = not await upgrade
                await asyncio.sleep(0.02)
                assert server.info(key)["mode"] == ("shared" if is_cancelled else "exclusive"), turns
                await lock.release()

    asyncio.run(main())


def test_one_client_in_many_event_loops(server, key):
    client, opened = rlock_client.asyncio.Client(server.url, name=key), set()
    lock = client.lock(key, lease=60)

    async def main():
        async with client.lock(key + "2"):
            opened.add(len(os.listdir("/dev/fd")))

    asyncio.run(lock.acquire())  # A hold of a loop that is closed keeps nothing open.
    for _ in range(5):
        asyncio.run(main())
    assert len(opened) == 1 and len(server.connections(key)) <= 2
    server.ask("RLOCK.FORCE", key)


def test_a_long_task_and_a_long_lock_keep_nothing(server, key):
    """A worker makes a lock for each job, and each request is a task that uses the same lock."""

    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            shared = client.lock(key)

            async def request():
                async with shared:
                    pass

            lost = client.lock(key + "2", lease=0.01, renew=False)

            async def loses():
                await lost.acquire()

            async def some():
                for number in range(200):
                    async with client.lock(f"{key} {number}"):
                        pass
                    await asyncio.create_task(request())
                    await asyncio.create_task(loses())
                gc.collect()
                return len(gc.get_objects())

            before = await some()
            assert await some() < before + 100

    asyncio.run(main())


def test_the_methods_count_as_coroutine_functions():
    lock = rlock_client.asyncio.Client().lock("k")
    for method in (lock.acquire, lock.release, lock.owned, lock.extend, lock.upgrade, lock.downgrade, lock.locked):
        assert asyncio.iscoroutinefunction(method)
    lock = rlock_client.Client().lock("k")
    for method in (lock.acquire, lock.release, lock.owned, lock.extend, lock.upgrade, lock.downgrade, lock.locked):
        assert not asyncio.iscoroutinefunction(method)


def test_a_hold_without_a_task_belongs_to_the_thread(server, key):
    """A program may call `acquire` while no event loop runs."""
    client = rlock_client.asyncio.Client(server.url)
    lock, loops = client.lock(key), [asyncio.new_event_loop() for _ in range(2)]
    one, two = [it.run_until_complete for it in loops]
    assert one(lock.acquire()) and lock.fence and one(lock.owned()) and not two(lock.owned())
    with pytest.raises(Lost, match="event loop"):
        two(lock.release())
    with pytest.raises(Lost), ThreadPoolExecutor() as pool:
        pool.submit(lock.check).result()
    one(lock.release())
    assert server.is_free(key)
    for run, loop in zip((one, two), loops):
        run(client.aclose()), loop.close()


@pytest.mark.parametrize("thread_local", [True, False])
def test_event_loops_share_no_hold(server, key, thread_local):
    client = rlock_client.asyncio.Client(server.url)
    lock = client.lock(key, thread_local=thread_local)

    async def other():
        assert not await lock.owned() and lock.remaining == 0
        for call in (lock.release, lambda: lock.extend(9)):
            with pytest.raises(Lost, match="event loop"):
                await asyncio.wait_for(call(), SOON)
        await client.aclose()

    async def main():
        async with lock:
            await asyncio.to_thread(asyncio.run, other())
            lock.check()
        await client.aclose()

    asyncio.run(main())
    assert server.is_free(key)


@pytest.fixture
def switching():
    """Python switches between threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(work, count=4):
    with ThreadPoolExecutor(count) as pool:
        [it.result() for it in [pool.submit(work) for _ in range(count)]]


def test_threads_that_share_a_lock_lose_no_hold(server, key, switching):
    with Client(server.url) as client:
        lock = client.lock(key, limit=1000, thread_local=False)
        in_threads(lambda: [lock.acquire() for _ in range(100)])
        in_threads(lambda: [(lock.acquire(), lock.release(), lock.release()) for _ in range(100)])
        assert server.is_free(key) and not lock.owned()


def test_activities_of_several_threads_are_different(switching):
    numbers = []
    in_threads(lambda: numbers.extend([rlock_client.Activity().number for _ in range(10000)]))
    assert len(set(numbers)) == 40000


def test_event_loops_that_share_a_lock_lose_no_hold(server, key, switching):
    client = rlock_client.asyncio.Client(server.url)
    lock = client.lock(key, limit=1000)

    async def task():
        async with lock:
            await asyncio.sleep(0.01)
            lock.check()

    async def main():
        for _ in range(4):
            await asyncio.gather(*[task() for _ in range(200)])
        await client.aclose()

    in_threads(lambda: asyncio.run(main()))
    assert server.is_free(key)


def test_a_garbage_collected_lock_is_released(client, server, key, caplog):
    lock = client.lock(key)
    lock.acquire()
    del lock
    until(lambda: server.is_free(key), "released")
    assert "garbage-collected" in caplog.text


def test_a_closed_client(api, server, key):
    client = api(server.url, name=key)
    lock, failed = client.lock(key), []
    lock.acquire()

    def wait():
        try:
            client.lock(key).acquire()
        except rlock_client.Closed as error:
            failed.append(error.code)

    waits = threading.Thread(target=wait)
    waits.start()
    until(lambda: server.info(key)["queued"] == 1 and len(server.connections(key)) == 1, "a wait")
    lost, ignored = (client.lock(f"{key}:lost:{report}", raise_lost=report) for report in (True, False))
    for each, report in ((lost, True), (ignored, False)):
        each.acquire()
        server.ask("RLOCK.FORCE", f"{key}:lost:{report}")
    until(lambda: lost.lost and ignored.lost, "their losses")
    if isinstance(client, AsyncApi):
        client.aclose()
    else:
        client.close()
    waits.join(SOON)
    assert failed == ["Closed"] and server.is_free(key)
    until(lambda: not server.connections(key), "closed connections")
    with pytest.raises(rlock_client.Closed):
        client.lock(key).acquire()
    with pytest.raises(rlock_client.Closed):
        lock.release()
    with pytest.raises(rlock_client.Lost, match="the server ended it"):
        lost.release()
    ignored.release()


def test_a_thread_that_begins_after_the_end_of_a_client_may_have_the_number_of_its_thread(server, key):
    for _ in range(20):
        client = Client(server.url)
        lock = client.lock(key, thread_local=False)
        lock.acquire()
        client.close()
        with ThreadPoolExecutor(1) as pool:
            assert isinstance(pool.submit(lock.release).exception(), rlock_client.Closed)


def test_each_call_that_closes_waits_until_nothing_is_held(server, key):
    async def main():
        client = rlock_client.asyncio.Client(server.url, name=key)
        lock = client.lock(key)
        await lock.acquire()
        first = asyncio.create_task(client.aclose())
        await asyncio.sleep(0)
        await client.aclose()
        assert server.is_free(key) and not await lock.owned()
        with pytest.raises(rlock_client.Closed):
            await client.lock(key).acquire()
        await first

    asyncio.run(main())


@pytest.mark.parametrize("how", ["threads", "no time", "cancelled"])
def test_a_client_that_is_closed_without_time_leaves_nothing(server, key, how):
    keys = [f"{key} {number}" for number in range(3000)]

    async def main():
        client = rlock_client.asyncio.Client(server.url)
        locks = [client.lock(it) for it in keys]
        await asyncio.gather(*[it.acquire() for it in locks])
        if how == "no time":
            return await client.aclose(0)
        closing = asyncio.create_task(client.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})

    if how == "threads":
        client = Client(server.url)
        locks = [client.lock(it) for it in keys]
        assert all(lock.acquire() for lock in locks)
        client.close(0)
    else:
        asyncio.run(main())
    until(lambda: all(server.is_free(it) for it in keys), "nothing is held")


def test_a_program_that_ends_at_once_leaves_nothing(begin, key):
    """Its server answers a moment later."""
    server = begin("one")
    program = f"""
import os, subprocess
from rlock_client import Client
client = Client({server.url!r})
locks = [client.lock(f"{key} {{number}}") for number in range(1500)]
assert all(lock.acquire() for lock in locks)
os.kill({server.pid}, 19)
subprocess.Popen(["sh", "-c", "sleep 0.3; kill -CONT {server.pid}"])
client.close(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=SOON)
    until(lambda: all(server.is_free(f"{key} {number}") for number in range(1500)), "nothing is held")


def test_a_client_that_is_garbage_collected_is_closed(server, key):
    async def main():
        client = rlock_client.asyncio.Client(server.url, name=key)
        async with client.lock(key):
            assert server.connections(key)
        del client
        gc.collect()
        while server.connections(key):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), SOON))
    client = Client(server.url, name=key)
    client.connect()
    del client
    until(lambda: not server.connections(key), "no connection")


README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
DOCS = pathlib.Path(os.environ.get("RLOCK_DOCS", pathlib.Path(__file__).parents[3] / "docs"))
README += "".join((DOCS / page).read_text() for page in ("../README.md", "guides.md", "migration.md"))


@pytest.fixture(scope="session")
def durable():
    """Three servers of a quorum, which forget nothing."""
    servers = [Server("one", "--set=appendonly yes", "--set=appendfsync always") for _ in range(3)]
    yield servers
    for each in servers:
        each.end()


@pytest.mark.parametrize("example", re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE))
def test_an_example(server, request, example):
    servers = request.getfixturevalue("durable") if "redis://locks-" in example else [server]
    program = example.replace("6379", str(server.port))
    for number, each in enumerate(servers, 1):
        program = program.replace(f"redis://locks-{number}/", each.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    says = "^Leader" if ".campaign(" in example else "^held|^one at a time"
    assert re.search(says, done.stdout, re.MULTILINE) and "somebody else" not in done.stdout
    assert all(it.is_free(key) for it in servers for key in re.findall(r'lock\("([^"]*)"', example))


NAMES = ["connect", "write", "close", "granted", "refused", "done", "failed", "answered", "over", "note", "occurred"]
KINDS = {getattr(_format, name.upper()): name for name in NAMES}


EVENTS = [it for it in vars(_format).values() if inspect.isfunction(it)]
EVENTS = EVENTS[EVENTS.index(_format.configuration) + 1 :]  # In the order of their numbers.


def encoded(form, values):
    """What a function of `_format` makes of the next recorded values. Bytes may be a group, which such a function
    encodes."""
    fields = []
    for name, it in inspect.signature(form).parameters.items():
        group = vars(_format).get(name) if it.annotation is bytes else None
        value = encoded(group, values) if group else next(values)
        if isinstance(value, str) and it.annotation is bytes:
            value = value.encode()
        if isinstance(value, list):
            value = [item.encode() for item in value]
        fields.append(_format.NONE if value is None else value)
    return form(*fields)


def test_the_recorded_run():
    """The engine gives the recorded outputs, and each action is decoded as recorded."""
    run = json.loads(pathlib.Path(os.environ.get("RLOCK_RUN", ROOT / "crates/rlock-embed/tests/host/run.json")).read_text())
    engine = _engine.Engine(bytes.fromhex(run["configuration"]["bytes"]))
    for step in run["steps"]:
        kind, *values = [value for _, _, value in step["fields"]]
        event = encoded(EVENTS[kind - 1], iter(values))
        assert event.hex() == step["event"]
        output = engine.handle(step["now"], event)
        assert output.hex() == step["output"]
        deadline, actions = _engine.read(output)
        assert deadline == (_format.NONE if step["deadline"] is None else step["deadline"])
        for action, recorded in zip(actions, step["actions"], strict=True):
            if action[0] == _format.LEADER:
                (_, call, leader, missed), shown = action, recorded["leader"]
                fields = leader and [leader[0], leader[1].decode(), leader[2]]
                assert (recorded["call"], recorded["missed"], shown and shown[:3]) == (call, missed, fields)
            else:
                assert recorded[KINDS[action[0]]] == action[1]
            if action[0] == _format.OCCURRED:
                _, _, what, outcome, nanoseconds, keys, text = action
                fields = {"what": what, "outcome": outcome, "nanoseconds": nanoseconds, "text": text}
                assert recorded == {"occurred": action[1], "keys": [key.decode() for key in keys], **fields}


def test_errors_can_be_pickled():
    for name in rlock_client.__all__:
        kind = getattr(rlock_client, name)
        if isinstance(kind, type) and issubclass(kind, rlock_client.Error):
            again = pickle.loads(pickle.dumps(kind("why", "Code", True)))
            assert (type(again), str(again), again.code, again.transient) == (kind, "why", "Code", True)
