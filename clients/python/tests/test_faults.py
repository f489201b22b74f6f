"""Whatever breaks, no hold and no place is left behind."""

import asyncio
import ctypes
import random
import socket
import threading
import time

import pytest

from conftest import SOON, Async, Sync, until
from rlock import NotAcquired


def holders(server, key):
    return [dict(zip(each[::2], each[1::2])) for each in server.info(key)["holders"]]


@pytest.mark.parametrize("how", ["close", "hang"])
@pytest.mark.parametrize("wait", [0, 5])
def test_a_grant_whose_reply_is_lost_is_asked_for_again_and_counts_once(face, proxy, server, key, how, wait):
    locks = face(proxy.port, socket_timeout=0.3, ask_every=0.3)
    proxy.lose = ("RLOCK.ACQUIRE", how)
    with locks.lock(key, wait=wait) as held:
        assert proxy.lost == 1
        assert [(each["fence"], each["count"]) for each in holders(server, key)] == [(held.fence, 1)]
    assert server.is_free(key)


@pytest.mark.parametrize("how", ["close", "hang"])
def test_a_waiter_whose_connection_breaks_keeps_its_place(face, proxy, server, key, how, background):
    held = face(server.port).lock(key)
    locks = face(proxy.port, socket_timeout=0.3, ask_every=1)
    proxy.lose = ("RLOCK.ACQUIRE", how)
    waiter = background(locks.lock, key, wait=SOON)
    until(lambda: server.queued(key) == 1 and proxy.lost, "the waiter stands in the queue")
    behind = background(face(server.port).lock, key, wait=SOON)
    until(lambda: server.queued(key) == 2, "another stands behind it")
    before = server.count()
    if how == "close":
        proxy.cut()
    until(lambda: server.count() > before, "the waiter has asked again")
    held.release()
    first = waiter.result(SOON)
    assert not behind.done()
    first.release()
    behind.result(SOON).release()


@pytest.mark.parametrize("how", ["close", "hang"])
def test_a_release_whose_reply_is_lost_is_repeated(face, proxy, server, key, how):
    held = face(proxy.port, socket_timeout=0.3).lock(key)
    proxy.lose = ("RLOCK.RELEASE", how)
    assert held.release() is False  # Released, but by which of the two requests is not known.
    assert proxy.lost == 1 and server.is_free(key)


def test_a_limit_of_the_client_that_is_shorter_than_the_wait_does_not_end_it(face, server, key, background):
    locks = face(server.port, socket_timeout=0.2)
    held = locks.lock(key)
    waiter = background(locks.lock, key, wait=SOON)
    until(lambda: server.queued(key) == 1, "the waiter stands in the queue")
    before = server.count()
    time.sleep(0.8)
    assert server.count() == before and not waiter.done()
    held.release()
    waiter.result(SOON).release()


def test_a_pool_of_one_does_not_block_the_holder(face, server, key, background):
    locks = face(server.port, max_connections=1)
    held = locks.lock(key, lease=0.6)
    waiters = [background(locks.lock, key, wait=SOON) for _ in range(5)]
    until(lambda: server.queued(key) == 5, "five wait")
    time.sleep(1)
    held.check()
    assert held.release() is True
    until(lambda: sum(each.done() for each in waiters) == 1, "one of them holds")
    while waiters:
        [done] = [each for each in waiters if each.done()]
        waiters.remove(done)
        done.result().release()
        until(lambda: not waiters or any(each.done() for each in waiters), "the next holds")


def test_idle_connections_that_the_server_closed_are_replaced(face, own_server, key):
    server = own_server()
    locks = face(server.port)
    held = locks.lock(key)
    server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert held.release() is True
    locks.lock(key).release()


@pytest.fixture(params=["redis", "valkey"])
def tasks(request, server):
    face = Async(__import__(request.param), server.port)
    __import__(request.param + ".asyncio")
    yield face
    face.end()


def test_a_cancelled_task_leaves_the_queue(tasks, server, key):
    held = tasks.lock(key)
    waiter = tasks.start(tasks.ask(key))
    until(lambda: server.queued(key) == 1, "the task waits")
    waiter.cancel()
    until(lambda: server.queued(key) == 0, "its place is gone", 2)
    held.release()
    assert server.is_free(key)


def test_a_limit_of_the_caller_leaves_the_queue_before_it_is_told(tasks, server, key):
    async def ask_in_vain():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await tasks.ask(key, wait=60)
        return server.queued(key)

    with tasks.lock(key):
        assert tasks.run(ask_in_vain()) == 0


def test_a_task_cancelled_in_the_moment_of_the_grant_leaves_the_lock_free(tasks, server, key):
    async def race(pause):
        held = await tasks.ask(key)
        waiter = asyncio.create_task(tasks.ask(key))
        while not server.queued(key):
            await asyncio.sleep(0)
        release = asyncio.create_task(held.release())
        await asyncio.sleep(pause)
        waiter.cancel()
        try:
            granted = await waiter
        except asyncio.CancelledError:
            await release
            return 0
        await release
        await granted.release()
        return 1

    async def races():
        granted = 0
        for _ in range(150):
            granted += await race(random.uniform(0, 0.002))
            assert server.is_free(key)
        return granted

    assert 0 < tasks.run(races()) < 150  # Both endings were met.


def test_a_task_cancelled_at_any_step_leaves_nothing(tasks, server, key):
    async def races():
        for _ in range(150):
            task = asyncio.create_task(tasks.ask(key, wait=random.choice([0, 1])))
            await asyncio.sleep(random.uniform(0, 0.002))
            task.cancel()
            try:
                await (await task).release()
            except asyncio.CancelledError:
                pass
            assert server.is_free(key)

    tasks.run(races())


def test_a_task_cancelled_twice_while_it_releases_has_released(tasks, server, key):
    async def hold():
        async with tasks.locks.lock(key):
            await asyncio.sleep(60)

    async def cancel():
        task = asyncio.create_task(hold())
        while server.is_free(key):
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    tasks.run(cancel())
    until(lambda: server.is_free(key), "the lock is free")


@pytest.mark.parametrize("library", ["redis", "valkey"])
def test_a_thread_interrupted_while_it_waits_leaves_the_queue(library, server, key):
    face, ended = Sync(__import__(library), server.port, ask_every=0.3, socket_timeout=0.3), []

    def wait():
        try:
            face.lock(key)
        except KeyboardInterrupt:
            ended.append(server.queued(key))

    with face.lock(key):
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: server.queued(key) == 1, "the thread waits")
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
        thread.join(SOON)
        assert ended == [0]
    assert server.is_free(key)
    face.end()


def test_a_server_that_is_gone_after_a_lost_reply_is_an_error_of_a_try(face, proxy, key, background):
    proxy.lose = ("RLOCK.ACQUIRE", "hang")
    asked = background(face(proxy.port, socket_timeout=0.3).lock, key, wait=0)
    until(lambda: proxy.lost, "the request meets its fate")
    proxy.listener.shutdown(socket.SHUT_RDWR)
    with pytest.raises(face.broken):
        asked.result(SOON)


def test_a_wait_through_an_outage_is_over_in_time(face, own_server, key, background):
    server = own_server()
    locks = face(server.port)
    locks.lock(key, lease=60)
    waiter = background(locks.lock, key, wait=1.5)
    until(lambda: server.queued(key) == 1, "the waiter stands in the queue")
    server.kill()
    with pytest.raises(NotAcquired, match="within 1.5 s") as caught:
        waiter.result(SOON)
    assert isinstance(caught.value.__cause__, face.broken)
