"""Holders keep their lock by renewing it, and are told when it is lost."""

import subprocess
import sys
import threading
import time

import pytest

from conftest import SOON, until
from rlock import Lost, NotAcquired, Starter


def test_a_lock_is_renewed_past_its_lease(locks, server, key):
    with locks.lock(key, lease=0.5) as held:
        for _ in range(6):
            time.sleep(0.2)
            held.check()
        assert server.info(key)["fence"] == held.fence
    assert server.is_free(key)


def test_a_lock_that_was_taken_away_is_told_as_lost_once(locks, server, key):
    told = []
    with locks.lock(key, lease=0.6, on_loss=told.append) as held:
        assert not held.lost
        server.ask("RLOCK.FORCE", key)
        until(lambda: held.lost, "the holder is told", 5)
        with pytest.raises(Lost, match=str(held.fence)):
            held.check()
        server.ask("RLOCK.ACQUIRE", key, "another", 60000)
        assert held.release() is False
    assert len(told) == 1
    assert server.ask("RLOCK.RELEASE", key, "another") == 0


def test_a_fence_that_is_not_ours_is_a_loss(locks, server, key):
    with locks.lock(key, lease=0.6) as held:
        server.ask("RLOCK.FORCE", key)
        server.ask("RLOCK.ACQUIRE", key, held.owner, 60000)
        until(lambda: held.lost, "the holder is told", 5)


def test_one_of_several_keys_lost_is_a_loss(locks, server, key):
    with locks.lock([key, key + "2"], lease=0.6) as held:
        server.ask("RLOCK.FORCE", key + "2")
        until(lambda: held.lost, "the holder is told", 5)
    assert server.is_free(key)


HOLDER = """
import asyncio, sys, redis, redis.asyncio, rlock, rlock_asyncio
port, key, face = int(sys.argv[1]), sys.argv[2], sys.argv[3]
def say(held):
    print("held", flush=True)
    sys.stdin.readline()
    print("lost" if held.lost else "fine", flush=True)
async def hold():
    async with rlock_asyncio.Locks(redis.asyncio.Redis(port=port)).lock(key, lease=0.5) as held:
        say(held)
if face == "sync":
    with rlock.Locks(redis.Redis(port=port)).lock(key, lease=0.5) as held:
        say(held)
else:
    asyncio.run(hold())
"""


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_holder_that_stood_still_knows_at_once_that_it_is_lost(kind, server, key):
    line = [sys.executable, "-c", HOLDER, str(server.port), key, kind]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(subprocess.signal.SIGSTOP)
        until(lambda: server.ask("RLOCK.ACQUIRE", key, "another", 60000), "the lease ends")
        holder.stdin.write("\n")
        holder.stdin.flush()
        holder.send_signal(subprocess.signal.SIGCONT)
        assert holder.stdout.readline() == "lost\n"
    assert server.ask("RLOCK.RELEASE", key, "another") == 0


@pytest.mark.parametrize("how", ["close", "hang"])
def test_a_renewal_whose_reply_is_lost_is_sent_again(face, proxy, server, key, how):
    with face(proxy.port, socket_timeout=0.3).lock(key, lease=1.5) as held:
        proxy.lose = ("RLOCK.RENEW", how)
        until(lambda: proxy.lost, "a renewal meets its fate")
        time.sleep(1.5)
        held.check()
        assert server.info(key)["fence"] == held.fence


def test_a_holder_is_told_before_another_can_hold_even_if_its_renewal_hangs(face, own_server, key):
    server, told = own_server(), threading.Event()
    held = face(server.port).lock(key, lease=0.6, on_loss=lambda _: told.set())
    server.process.send_signal(subprocess.signal.SIGSTOP)
    assert told.wait(3)  # The client's limit for a reply is 5 s.
    assert held.lost
    server.process.send_signal(subprocess.signal.SIGCONT)
    held.release()
    until(lambda: server.is_free(key), "the lock is free")


def test_a_killed_server_is_told_as_a_loss(face, own_server, key):
    server = own_server()
    held = face(server.port).lock(key, lease=0.5)
    server.kill()
    until(lambda: held.lost, "the holder is told", 3)
    with pytest.raises(face.broken), held:
        pass


def test_a_waiter_outlives_a_restart_and_the_holder_of_before_is_told(face, own_server, key, background):
    server = own_server()
    locks = face(server.port)
    held = locks.lock(key, lease=1)
    waiter = background(locks.lock, key, wait=30)
    until(lambda: server.queued(key) == 1, "the waiter stands in the queue")
    server.kill()
    server.start()
    with waiter.result(30) as later:
        until(lambda: held.lost, "the holder is told", 5)
        assert later.fence > held.fence
        assert held.release() is False
        later.check()


def test_a_waiter_that_is_withdrawn_by_an_operator_ends(locks, server, key, background):
    with locks.lock(key):
        waiter = background(locks.lock, key, wait=SOON)
        until(lambda: server.queued(key) == 1, "the waiter stands in the queue")
        first = server.info(key)["waiters"][0]
        assert server.ask("RLOCK.CANCEL", key, dict(zip(first[::2], first[1::2]))["owner"]) == 1
        with pytest.raises(NotAcquired, match="withdrawn"):
            waiter.result(SOON)


def test_a_renewing_thread_that_cannot_be_started_is_tried_again():
    class Renewer:
        tries = 0

        def start(self):
            self.tries += 1
            if self.tries == 1:
                raise RuntimeError("can't start new thread")

    starter, renewers = Starter(), [Renewer(), Renewer()]
    starter.RETRY = 0.05
    for renewer in renewers:
        starter.add(renewer, 0)
    until(lambda: all(each.tries == 2 for each in renewers), "both are started")
