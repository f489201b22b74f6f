"""Beats on several machines, with a second of schedule: what the broker got."""

import contextlib
import os
import random
import signal
import sqlite3
import time

import pytest
from conftest import Messages, until

KEY = "lock:beat:proj"
LEASE = 2
DATABASE = "django_celery_beat.schedulers:DatabaseScheduler"
PREPARE = """
import datetime, django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from django.utils import timezone
second, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
hour, _ = IntervalSchedule.objects.get_or_create(every=1, period="hours")
PeriodicTask.objects.create(name="tick", task="tick", interval=second, last_run_at=timezone.now())
late = timezone.now() - datetime.timedelta(hours=2)
PeriodicTask.objects.create(name="hourly", task="hourly", interval=hour, kwargs='{"hourly": true}', last_run_at=late)
"""


@pytest.fixture(params=["PersistentScheduler", "DatabaseScheduler"])
def scheduled(request, world):
    """The world, and what the broker gets."""
    if request.param == "DatabaseScheduler":
        world.environment.update(INNER=DATABASE, DJANGO_SETTINGS_MODULE="settings", DATABASE=str(world.directory / "db"))
        (world.directory / "prepare.py").write_text(PREPARE)
        assert world.run("prepare").wait(60) == 0
    return world, Messages(world.broker)


def sent_by(messages, process, count=2):
    before = len(messages.of(process))
    until(lambda: len(messages.of(process)) >= before + count, f"messages of {process.pid}")


def saved(world):
    """How many runs the database knows."""
    with contextlib.closing(sqlite3.connect(world.environment["DATABASE"], timeout=20)) as database:
        return database.execute("SELECT sum(total_run_count) FROM django_celery_beat_periodictask").fetchone()[0]


def until_saved(world, messages):
    if "DATABASE" in world.environment:
        until(lambda: saved(world) >= len(messages.all), "a saved state")


def leader(world, *beats):
    owner = until(lambda: world.locks.owner(KEY), "a leader", 30)
    return next(it for it in beats if owner.split(":")[1] == str(it.pid))


def begun(world):
    """Two beats: the leader, which has sent something, and another one, which waits."""
    beats = [world.beat(number) for number in (1, 2)]
    leads = leader(world, *beats)
    until(lambda: world.locks.client.execute_command("RLOCK.INFO", KEY)["queued"] == 1, "a waiter")
    return leads, next(it for it in beats if it is not leads)


def check(messages, may_repeat=0):
    """No second, and nothing hourly, was sent twice."""
    seconds = [it["second"] for _, _, it in messages.all if "second" in it]
    assert len(seconds) == len(set(seconds))
    hourly = [it for it in messages.all if "hourly" in it[2]]
    assert len(hourly) <= 1 + may_repeat
    ticks = [it[0] for it in messages.all if not it[2]]
    assert sum(later - earlier < 0.8 for earlier, later in zip(ticks, ticks[1:])) <= may_repeat


def test_one_beat_sends_and_the_next_one_takes_over(scheduled):
    world, messages = scheduled
    old, new = begun(world)
    sent_by(messages, old, 3)
    assert not messages.of(new)
    until_saved(world, messages)
    killed = time.monotonic()
    old.kill()
    sent_by(messages, new)
    assert messages.of(new)[0][0] - killed < LEASE + 2.5
    third = world.beat(3)
    until(lambda: world.locks.client.execute_command("RLOCK.INFO", KEY)["queued"] == 1, "a waiter")
    sent_by(messages, new, 1)
    until_saved(world, messages)
    new.terminate()
    ended = time.monotonic()
    sent_by(messages, third)
    assert new.wait(10) == 0 and messages.of(third)[0][0] - ended < 1.9  # It did not wait for the lease.
    check(messages)


def test_a_beat_that_was_stopped_sends_nothing_until_it_leads_again(scheduled):
    world, messages = scheduled
    old, new = begun(world)
    sent_by(messages, old)
    until_saved(world, messages)  # Else it is stopped with SQLite's lock.
    os.kill(old.pid, signal.SIGSTOP)
    sent_by(messages, new)
    count = len(messages.of(old))
    os.kill(old.pid, signal.SIGCONT)
    until(lambda: "is lost" in world.log(old), "a loss")
    sent_by(messages, new, 3)
    assert len(messages.of(old)) == count and old.poll() is None
    new.kill()
    sent_by(messages, old)
    assert old.poll() is None
    check(messages)


@pytest.mark.parametrize("scheduled", ["DatabaseScheduler"], indirect=True)
def test_a_former_leader_does_not_write_what_it_knew(scheduled):
    world, messages = scheduled
    world.environment["SYNC_EVERY"] = "1000"
    old = world.beat(1)
    sent_by(messages, old, 3)
    os.kill(old.pid, signal.SIGSTOP)
    del world.environment["SYNC_EVERY"]
    new = world.beat(2)
    sent_by(messages, new, 4)
    new.terminate()
    new.wait(20)
    known = until(lambda: saved(world), "a saved state")
    world.locks.client.execute_command("RLOCK.ACQUIRE", KEY, "nobody", 60000)
    os.kill(old.pid, signal.SIGCONT)
    until(lambda: "is lost" in world.log(old), "a loss")
    old.terminate()
    assert old.wait(20) == 0 and saved(world) == known


def test_a_beat_ends_even_if_the_library_of_the_broker_swallows_the_signal(world):
    """Celery closes the broker's connection in the signal's handler, and redis-py may report that instead."""
    world.environment["SWALLOWS"] = "1"
    beat = world.beat(1)
    until(lambda: world.broker.client.get("sending"), "a message")
    beat.terminate()
    assert beat.wait(20) == 0 and world.locks.owner(KEY) is None


def test_a_server_without_the_module(world):
    world.locks.kill()
    world.locks.start(has_module=False)
    beat, messages = world.beat(1), Messages(world.broker)
    until(lambda: "does not have the rlock module" in world.log(beat), "an error")
    world.locks.kill()
    world.locks.start()
    sent_by(messages, beat)


@pytest.mark.parametrize("down", [0, LEASE + 1])
def test_a_restart_of_the_server(scheduled, down):
    world, messages = scheduled
    beats = begun(world)
    sent_by(messages, beats[0])
    world.locks.kill()
    time.sleep(down)
    count = len(messages.all)
    world.locks.start()
    until(lambda: len(messages.all) >= count + 3, "messages after the restart", 30)
    assert [it.poll() for it in beats] == [None, None]
    check(messages)
    leads = leader(world, *beats)
    until(lambda: len(messages.all) >= count + 5, "more messages")
    assert all(pid == leads.pid for _, pid, _ in messages.all[-2:])


def test_an_operator_ends_the_hold(scheduled):
    world, messages = scheduled
    beats = begun(world)
    sent_by(messages, beats[0], 1)
    for _ in range(5):
        count = len(messages.all)
        until(lambda: len(messages.all) > count, "a message")
        until_saved(world, messages)
        world.locks.client.execute_command("RLOCK.FORCE", KEY)
    world.locks.client.execute_command("RLOCK.FORCE", KEY, "QUEUE")
    count = len(messages.all)
    until(lambda: len(messages.all) >= count + 3, "messages")
    assert [it.poll() for it in beats] == [None, None]
    check(messages)


def test_random_faults(scheduled):
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    world, messages = scheduled
    chance, beats, files, kills = random.Random(seed), [world.beat(n) for n in range(3)], [0, 1, 2], 0
    until(lambda: messages.all, "a message", 30)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        at = chance.randrange(3)
        what = chance.choice(["kill", "stop", "terminate", "restart", "force"])
        time.sleep(chance.uniform(0, 2.5))
        if what in ("kill", "terminate"):
            getattr(beats[at], what)()
            kills += 1
            assert beats[at].wait(20) in (0, -9, -15)  # The last one before Celery listens to signals.
            if what == "kill":  # Its machine, too.
                files[at] = max(files) + 1
            beats[at] = world.beat(files[at])
        elif what == "stop":
            os.kill(beats[at].pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0.5, 1.5) * LEASE)
            os.kill(beats[at].pid, signal.SIGCONT)
        elif what == "restart":
            world.locks.kill()
            time.sleep(chance.uniform(0, 1))
            world.locks.start()
        else:
            world.locks.client.execute_command("RLOCK.FORCE", KEY)
    count = len(messages.all)
    until(lambda: len(messages.all) >= count + 3, "messages", 30)
    assert [it.poll() for it in beats] == [None] * 3
    check(messages, kills)
