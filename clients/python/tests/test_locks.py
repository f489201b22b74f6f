"""What a user sees while nothing breaks."""

import math
import os
import pathlib
import re
import time
from concurrent.futures import as_completed

import pytest

from conftest import ROOT, SOON, until
from rlock import NotAcquired, Refused


def test_one_holder_at_a_time_in_the_order_of_asking(locks, server, key, background):
    first = locks.lock(key)
    waiting = []
    for place in range(1, 5):
        waiting.append(background(locks.lock, key, wait=SOON))
        until(lambda: server.queued(key) == place, "the waiter stands in the queue")
    held = first
    for each in waiting:
        assert not any(later.done() for later in waiting[waiting.index(each) :])
        fence = held.fence
        assert held.release() is True
        held = each.result(SOON)
        assert held.fence > fence
    held.release()
    assert server.is_free(key)


def test_counting_under_the_lock_loses_no_count(locks, key, background):
    total = {"n": 0}

    def count():
        for _ in range(20):
            with locks.lock(key, wait=60):
                seen = total["n"]
                time.sleep(0.0005)
                total["n"] = seen + 1

    for each in [background(count) for _ in range(4)]:
        each.result(60)
    assert total["n"] == 80


def test_a_waiter_asks_once_and_is_handed_the_lock(locks, server, key, background):
    held = locks.lock(key)
    before = server.count()
    waiter = background(locks.lock, key, wait=SOON)
    until(lambda: server.queued(key) == 1, "the waiter stands in the queue")
    time.sleep(0.5)
    assert server.count() == before + 1
    held.release()
    waiter.result(SOON).release()
    assert server.count() == before + 1


def test_an_uncontended_lock_costs_two_commands(locks, server, key):
    locks.lock(key).release()
    before = server.client.info("stats")["total_commands_processed"]
    locks.lock(key).release()
    assert server.client.info("stats")["total_commands_processed"] == before + 3  # and INFO


def test_leaving_the_scope_releases_also_by_an_exception(locks, server, key):
    with pytest.raises(ZeroDivisionError), locks.lock(key) as held:
        assert server.info(key)["mode"] == "exclusive"
        assert server.info(key)["fence"] == held.fence
        1 / 0
    assert server.is_free(key)
    assert not held.lost
    assert held.release() is False


def test_a_try_that_fails_says_so_and_leaves_nothing(locks, server, key):
    with locks.lock(key):
        with pytest.raises(NotAcquired):
            locks.lock(key, wait=0)
        assert server.queued(key) == 0


def test_a_wait_that_is_over_leaves_no_place(locks, server, key):
    with locks.lock(key):
        began = time.monotonic()
        with pytest.raises(NotAcquired, match="within 0.3 s"):
            locks.lock(key, wait=0.3)
        assert time.monotonic() - began >= 0.299
        assert server.queued(key) == 0
    assert server.is_free(key)


def test_a_wait_of_many_pieces_keeps_its_place(face, server, key, background):
    locks = face(server.port, ask_every=0.1)
    held = locks.lock(key)
    first = background(locks.lock, key, wait=SOON)
    until(lambda: server.queued(key) == 1, "the first stands in the queue")
    second = background(locks.lock, key, wait=SOON)
    until(lambda: server.queued(key) == 2, "the second stands in the queue")
    until(lambda: server.info(key)["waiters"] and server.count() >= 6, "both have asked again")
    owners = [dict(zip(each[::2], each[1::2]))["waited-ms"] for each in server.info(key)["waiters"]]
    assert owners == sorted(owners, reverse=True)
    held.release()
    for each in as_completed([first, second], SOON):  # Between two askings the second may be served.
        each.result().release()


def test_a_lease_counts_from_the_grant_also_after_a_long_wait(locks, server, key, background):
    held = locks.lock(key)
    waiter = background(locks.lock, key, lease=0.6, wait=SOON)
    until(lambda: server.queued(key) == 1, "the waiter stands in the queue")
    time.sleep(0.7)  # Longer than its lease.
    held.release()
    with waiter.result(SOON) as later:
        assert not later.lost


def test_readers_share_and_a_writer_waits_for_all(locks, server, key, background):
    readers = [locks.lock(key, shared=True) for _ in range(3)]
    writer = background(locks.lock, key, wait=SOON)
    until(lambda: server.queued(key) == 1, "the writer waits")
    for each in readers:
        assert not writer.done()
        assert each.release() is True
    writer.result(SOON).release()


def test_permits_are_counted(locks, server, key):
    three = locks.lock(key, limit=4, permits=3)
    with pytest.raises(NotAcquired):
        locks.lock(key, limit=4, permits=2, wait=0)
    one = locks.lock(key, limit=4, wait=0)
    one.release(), three.release()
    assert server.is_free(key)


def test_several_keys_are_all_or_none(locks, server, key):
    keys = [f"{{{key}}}:{each}" for each in "abc"]
    with locks.lock(keys[1]):
        with pytest.raises(NotAcquired):
            locks.lock(keys, wait=0.1)
        assert all(server.queued(each) == 0 for each in keys) and not server.ask("EXISTS", keys[0])
    with locks.lock(keys, lease=0.6) as held:
        time.sleep(1)
        assert {server.info(each)["fence"] for each in keys} == {held.fence}
        held.check()
        with pytest.raises(NotAcquired):
            locks.lock(keys[2], wait=0)
    assert all(server.is_free(each) for each in keys)


def test_the_owner_names_host_and_process_or_is_the_users(locks, server, key):
    with locks.lock(key) as held:
        assert server.ask("HEXISTS", key, held.owner) and held.owner.count(":") == 2
    with locks.lock(key, owner=b"worker\xff-1") as held:
        assert held.owner == b"worker\xff-1"
        with pytest.raises(ValueError, match="it holds or awaits"):
            locks.lock(key, owner=b"worker\xff-1")
    locks.lock(key, owner=b"worker\xff-1").release()


def test_the_options_of_the_users_client_carry_over(face, own_server, key):
    server = own_server(password="secret")
    locks = face(server.port, password="secret", db=3, decode_responses=True, client_name="billing")
    with locks.lock(key, lease=0.3), locks.lock(key + "2"):
        server.ask("SELECT", 3)
        assert server.ask("EXISTS", key) == 1
        names = [each["name"] for each in server.client.client_list()]
        assert names.count("billing") >= 1


BAD = [
    ({"lease": 0}, "lease is 0, must be 0.001 to 86400 seconds"),
    ({"lease": 86401}, "lease is 86401, must be"),
    ({"lease": math.nan}, "lease is nan, must be"),
    ({"lease": "30"}, "lease is '30', must be"),
    ({"lease": True}, "lease is True, must be"),
    ({"wait": -1}, "wait is -1, must be None or 0 to 86400 seconds"),
    ({"wait": math.inf}, "wait is inf, must be"),
    ({"limit": 0}, "limit is 0, must be 1 to 1000000"),
    ({"limit": 1_000_001}, "limit is 1000001, must be"),
    ({"limit": 1.5}, "limit is 1.5, must be"),
    ({"permits": 1}, "permits is 1, must be given together with limit"),
    ({"limit": 2, "permits": 3}, "permits is 3, must be 1 to limit, 2"),
    ({"key": []}, r"key is \(\), must be 1 to 1024 keys"),
    ({"key": [1]}, r"key is \(1,\), must be str or bytes"),
    ({"key": ["a", "a"]}, "must be each key once"),
    ({"key": ["a", "b"], "shared": True}, "shared is True, must be left out with several keys"),
    ({"key": ["a", "b"], "limit": 2}, "shared is False, must be left out with several keys, as limit is"),
    ({"owner": ""}, "owner is '', must be 1 to 256 bytes"),
    ({"owner": "é" * 129}, "owner is 'é+', must be 1 to 256 bytes"),
    ({"owner": "a b"}, "owner is 'a b', must be without bytes"),
    ({"owner": "rlock:1"}, "owner is 'rlock:1', must be a name that does not begin with 'rlock:'"),
    ({"owner": 7}, "owner is 7, must be str or bytes"),
]


def test_bad_arguments_are_named_with_value_and_limit_before_anything_is_sent(locks, server):
    before = server.client.info("stats")["total_commands_processed"]
    for arguments, words in BAD:
        with pytest.raises(ValueError, match=words):
            locks.lock(**{"key": "k", **arguments})
    assert server.client.info("stats")["total_commands_processed"] == before + 1


def test_the_arguments_at_their_limits_are_good(locks, server, key):
    for arguments in [{"lease": 86400}, {"wait": 86400}, {"limit": 1_000_000, "permits": 1_000_000}, {"owner": "é" * 128}]:
        locks.lock(key, **arguments).release()
    locks.lock([f"{key}:{each}" for each in range(1024)]).release()


def test_a_client_that_cannot_be_served_is_refused(face, server):
    class Cluster:
        nodes_manager = None

    with pytest.raises(ValueError, match="ask_every is 0, must be 0.1 to 600 seconds"):
        face(server.port, ask_every=0)
    kind = type(face(server.port).locks)
    with pytest.raises(TypeError, match="cluster client"):
        kind(Cluster())
    with pytest.raises(TypeError, match="must be a client of redis-py"):
        kind("redis://127.0.0.1")


def refusal(locks, *arguments, **options):
    with pytest.raises(Refused) as caught:
        locks.lock(*arguments, **options)
    return caught.value.code


def test_the_servers_refusals_can_be_told_apart(face, own_server, key, background):
    server = own_server()
    locks = face(server.port)
    server.ask("SET", "text", "1")
    assert refusal(locks, "text") == "WRONGTYPE"

    a, b = locks.lock("a", owner="one"), locks.lock("b", owner="two")
    waiter = background(locks.lock, "b", wait=SOON, owner="one")
    until(lambda: server.queued("b") == 1, "the first waits for the second")
    assert refusal(locks, "a", owner="two") == "DEADLOCK"
    assert a.release() and b.release()
    waiter.result(SOON).release()

    server.ask("CONFIG", "SET", "rlock.max-waiters", 1)
    with locks.lock(key):
        waiter = background(locks.lock, key, wait=SOON)
        until(lambda: server.queued(key) == 1, "the queue is full")
        assert refusal(locks, key) == "QUEUEFULL"
    waiter.result(SOON).release()

    server.ask("CONFIG", "SET", "rlock.max-lease-ms", 1000)
    assert refusal(locks, key) == "ERR"
    server.ask("CONFIG", "SET", "rlock.max-lease-ms", 86400000)
    server.ask("CONFIG", "SET", "maxmemory", 1)
    assert refusal(locks, key) == "OOM"
    server.ask("CONFIG", "SET", "maxmemory", 0)
    server.ask("REPLICAOF", "127.0.0.1", 1)
    assert refusal(locks, key) == "READONLY"
    server.ask("REPLICAOF", "NO", "ONE")
    server.ask("ACL", "SETUSER", "mere", "on", ">p", "~other", "+@all")
    assert refusal(face(server.port, username="mere", password="p"), key) == "NOPERM"


def test_a_server_without_the_module_is_named_as_such(face, own_server, key):
    locks = face(own_server(module=None).port)
    with pytest.raises(Refused, match="has not loaded the rlock module") as caught:
        locks.lock(key)
    assert caught.value.code == "NOMODULE"


def test_a_server_that_cannot_be_reached_is_an_error_at_once(face, own_server, key):
    server = own_server()
    server.kill()
    with pytest.raises(face.broken):
        face(server.port).lock(key)


def test_the_rights_of_an_application_are_enough(face, own_server, background):
    page = pathlib.Path(os.environ.get("RLOCK_DOCS", ROOT / "docs"), "operating.md").read_text()
    rule = re.search(r"`user (application on >a-password [^`]*)`", page)[1]
    server = own_server()
    server.ask("ACL", "SETUSER", *rule.split())
    locks = face(server.port, username="application", password="a-password")
    held = locks.lock("lock:a", lease=1.5)
    waiting = background(locks.lock, "lock:a", wait=SOON)
    until(lambda: server.queued("lock:a") == 1, "the waiter stands in the queue")
    with pytest.raises(NotAcquired):
        locks.lock("lock:a", wait=2)
    held.check()  # It was renewed.
    held.release()
    waiting.result(SOON).release()
    for key, options in [("lock:a", {"shared": True}), ("lock:u", {"limit": 4, "permits": 3}), (["lock:a", "lock:b"], {})]:
        with locks.lock(key, **options):
            pass
    assert server.ask("ACL", "LOG") == []
    with pytest.raises(Refused):
        locks.lock("other")
