"""Tasks that run one at a time, in real workers."""

import gc
import importlib
import os
import signal
import time

import pytest
from conftest import HERE, until


@pytest.fixture
def proj(world, monkeypatch):
    """The project, as a web server would import it."""
    monkeypatch.syspath_prepend(HERE)
    for name in ("LOCKS", "BROKER"):
        monkeypatch.setenv(name, world.environment[name])
    import proj

    yield importlib.reload(proj)
    gc.collect()  # While the broker is there, because results unsubscribe.


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_one_at_a_time(world, proj, pool):
    for _ in range(2):
        world.worker(pool)
    waits = [proj.wait.delay("a") for _ in range(6)]
    assert [it.get(60) for it in waits] == [True] * 6
    retries = [proj.retry.delay("a") for _ in range(4)]
    assert [it.get(60) for it in retries] == [True] * 4
    skips = [proj.skip.delay(name="a", seconds=2) for _ in range(4)]
    assert sorted(str(it.get(60)) for it in skips) == ["None"] * 3 + ["True"]
    outer = [proj.outer.delay("b") for _ in range(3)]
    assert [it.get(60) for it in outer] == [True] * 3
    until(lambda: world.locks.owner("work:a") is None, "the end of all locks")


def test_a_lock_that_is_not_free(world, proj):
    from rlock_client import Client, NotAcquired

    world.worker()
    with Client(world.locks.url) as client, client.lock("work:a"):
        for task in (proj.fail, proj.retry_once):
            with pytest.raises(NotAcquired, match="work:a"):
                task.delay("a").get(60)
        assert proj.skip.delay("a").get(60) is None
        with pytest.raises(NotAcquired):  # Here, without a worker.
            proj.retry("a")
    assert proj.skip("a") is True
    until(lambda: {("wait", "refused"), ("hold", "released")} <= set(proj.outcomes), "what the listener hears")
    with pytest.raises(LookupError):
        proj.held()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_loss_is_an_exception_in_the_task(world, proj, pool):
    from rlock_client import Lost

    world.worker(pool)
    key = "lock:proj:proj.until_lost"
    lost = proj.until_lost.delay(60)
    until(lambda: world.locks.owner(key), "a task")
    world.locks.client.execute_command("RLOCK.FORCE", key)
    with pytest.raises(Lost):
        lost.get(60)
    lost = proj.wait.delay("a", 3)  # It does not look, so its end says so.
    until(lambda: world.locks.owner("work:a"), "a task")
    world.locks.client.execute_command("RLOCK.FORCE", "work:a")
    with pytest.raises(Lost):
        lost.get(60)
    assert proj.until_lost.delay(2).get(60) > 0  # Twice the lease.


def test_a_worker_that_dies_and_one_that_is_stopped(world, proj):
    key, workers = "lock:proj:proj.until_lost", [world.worker("solo"), world.worker("solo")]

    def holds():
        owner = until(lambda: world.locks.owner(key), "a task")
        return next(it for it in workers if owner.split(":")[1] == str(it.pid))

    proj.until_lost.delay(60)
    holds().kill()
    workers = [it for it in workers if it.poll() is None or it.wait(10) is None]
    until(lambda: world.locks.owner(key) is None, "the end of its lease")
    stopped = proj.until_lost.delay(60)
    worker = holds()
    os.kill(worker.pid, signal.SIGSTOP)
    until(lambda: world.locks.owner(key) is None, "the end of its lease")
    os.kill(worker.pid, signal.SIGCONT)
    with pytest.raises(Exception, match="lost"):
        stopped.get(60)


def test_what_is_wrong_is_said_when_the_task_is_defined(world, proj):
    from celery.exceptions import ImproperlyConfigured

    with pytest.raises(ImproperlyConfigured, match="fail, retry or skip"):
        proj.app.task(base=proj.Exclusive, name="wrong", rlock={"otherwise": "wait"})(proj.second).name
    proj.app.conf.rlock_url = None
    with pytest.raises(ImproperlyConfigured, match="rlock_url"):
        proj.fail("a")
