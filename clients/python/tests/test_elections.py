"""Leaders, and their observers."""

import asyncio
import gc
import threading

import pytest
from conftest import until

import rlock_client
import rlock_client.asyncio
from rlock_client import Client, Lost, NotAcquired


def next_change(changes):
    change = changes.get(timeout=10)
    return change.leader and change.leader.value, change.missed


def subscribed(server, key):
    return server.ask("PUBSUB", "NUMSUB", f"rlock:value:{{{key}}}")[1]


def test_leaders_follow_one_another(server, key):
    with Client(server.url) as a, Client(server.url) as b, Client(server.url, name=f"other:{key}") as other:
        observers = [it.election(key).observe() for it in (a, other, other)]
        assert [next_change(it) for it in observers] == [(None, False)] * 3
        with a.election(key).campaign("a:1") as first:
            with pytest.raises(NotAcquired), other.election(key, wait=0.05).campaign("c"):
                pytest.fail("two lead")
            assert other.election(key).campaign("c").acquire(False) is False
            second = b.election(key, thread_local=False).campaign(b"b\xff\0:1")
            thread = threading.Thread(target=second.acquire)
            thread.start()
            until(lambda: server.info(key)["queued"] == 1, "a wait")
            first.proclaim("a:2")
            leader, before = other.election(key).leader(), first.fence
            assert leader[:3] == (first.fence, b"a:2", first.owner) and 25 < leader.time_left <= 30
            first.resign()
            thread.join()
            assert b.election(key).leader().fence > before
            server.ask("RLOCK.FORCE", key)
            first.acquire()
        seen = [(b"a:1", False), (b"a:2", False), (b"b\xff\0:1", False), (None, False), (b"a:1", False), (None, False)]
        assert [[next_change(it) for _ in seen] for it in observers] == [seen] * 3
        assert other.election(key).leader() is None and len(server.connections(f"other:{key}")) == 1


def test_observers_begin_again(server, proxy, key):
    with Client(proxy.url) as client, Client(server.url) as leader, client.election(key).observe() as changes:
        assert next_change(changes) == (None, False)
        proxy.cut()
        assert next_change(changes) == (None, True)
        with leader.election(key).campaign("v"):
            assert next_change(changes) == (b"v", False)
        assert next_change(changes) == (None, False) and changes.get(timeout=0.05) is None


def test_observers_that_end_leave_nothing(server, key):
    client = Client(server.url)
    with client.election(key).observe() as changes:
        assert next_change(changes) == (None, False) and subscribed(server, key) == 1
        threading.Timer(0.1, changes.close).start()
        assert list(changes) == []
    until(lambda: subscribed(server, key) == 0, "it has left")
    changes = client.election(key).observe()
    assert next_change(changes) == (None, False)
    del changes
    gc.collect()
    until(lambda: subscribed(server, key) == 0, "it has left when it is garbage-collected")
    changes = client.election(key).observe()
    assert next_change(changes) == (None, False)
    threading.Timer(0.1, client.close).start()
    for _ in range(2):
        with pytest.raises(rlock_client.Closed):
            next(changes)
    with pytest.raises(rlock_client.Closed):
        next(client.election(key).observe())


def test_what_is_not_taken_is_bounded(server, key):
    client = Client(server.url)
    changes = client.election(key).observe()
    assert next_change(changes) == (None, False)
    with client.election(key).campaign("0") as leadership:
        for i in range(1, 1101):
            leadership.proclaim(str(i))
        assert next_change(changes) == (b"77", True)
        assert [next_change(changes) for _ in range(1023)] == [(b"%d" % i, False) for i in range(78, 1101)]


def test_what_is_refused(server, key):
    user = key.replace(":", "-")
    server.ask("ACL", "SETUSER", user, "on", ">secret", "~*", "&rlock:client:*", "+@all")
    with Client(server.url.replace("redis://", f"redis://{user}:secret@")) as client:
        election = client.election(key, lease=0.3, renew=False)
        with pytest.raises(rlock_client.Error, match="channel") as refused:
            next(election.observe())
        assert refused.value.code == "Denied"
        for terms in ({"shared": True}, {"limit": 2}):
            with pytest.raises(TypeError, match="leads alone"):
                client.election(key, **terms)
            with pytest.raises(TypeError, match="leads alone"):
                election.campaign("x", **terms)
        with pytest.raises(TypeError, match="value is 7"):
            election.campaign(7)
        with pytest.raises(rlock_client.OutOfRange, match="1025 bytes"):
            election.campaign("x" * 1025).acquire()
        with pytest.raises(Lost), election.campaign("") as leadership:
            with pytest.raises(rlock_client.OutOfRange):
                leadership.proclaim("x" * 1025)
            leadership.check()
            until(lambda: leadership.lost, "the end of its lease")
            leadership.proclaim("x")


def test_with_asyncio(server, key):
    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            election, seen = client.election(key), []

            async def observe():
                async for change in election.observe():
                    seen.append(change.leader and change.leader.value)
                    if change.leader and change.leader.value == b"b":
                        return

            observer = asyncio.create_task(observe())
            async with election.observe() as changes:
                assert await changes.__anext__() == (None, False)
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(changes.__anext__(), 0.05)
                async with election.campaign("a") as first:
                    waits = asyncio.create_task(election.campaign("never").acquire())
                    while (await client.info(key))["queued"] != 1:
                        await asyncio.sleep(0.01)
                    waits.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await waits
                    await first.proclaim("b")
                    assert (await election.leader()).value == b"b"
                await observer
                assert seen == [None, b"a", b"b"]
                assert [(await changes.__anext__()).leader and 1 for _ in range(3)] == [1, 1, None]
            assert [it async for it in changes] == []
            left = election.observe()
            assert await left.__anext__() == (None, False)
        with pytest.raises(rlock_client.Closed):
            await left.__anext__()

    asyncio.run(main())
    until(lambda: server.is_free(key) and subscribed(server, key) == 0, "nothing left")


def test_an_observer_of_another_event_loop(server, key):
    async def begun():
        changes = rlock_client.asyncio.Client(server.url).election(key).observe()
        assert await changes.__anext__() == (None, False)
        return changes

    changes = asyncio.run(begun())
    with pytest.raises(rlock_client.Closed):
        asyncio.run(changes.__anext__())


def test_an_observer_keeps_its_client(server, key):
    changes = Client(server.url).election(key).observe()
    gc.collect()
    assert next_change(changes) == (None, False)
    with Client(server.url).election(key).campaign("v"):
        assert next_change(changes) == (b"v", False)

    async def main():
        changes = rlock_client.asyncio.Client(server.url).election(key).observe()
        gc.collect()
        assert await asyncio.wait_for(changes.__anext__(), 10) == (None, False)

    asyncio.run(main())


def test_observers_wake_each_thread(server, key):
    client = Client(server.url)
    changes, seen = client.election(key).observe(), []
    threads = [threading.Thread(target=lambda: seen.extend(changes)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(50):
        with client.election(key).campaign(str(i)):
            pass
    until(lambda: len(seen) == 101, f"all of {len(seen)} changes")
    changes.close()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
