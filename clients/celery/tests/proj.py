"""The Celery project of the tests."""

import functools
import math
import os
import time

import redis
from celery import Celery, schedules
from celery.beat import BeatLazyFunc
from celery.signals import task_prerun
from rlock_celery import Exclusive, held

BROKER = os.environ["BROKER"]
app = Celery("proj", broker=BROKER, backend=BROKER)
app.conf.update(
    rlock_url=os.environ["LOCKS"],
    rlock_beat_scheduler=os.environ.get("INNER"),
    rlock_beat_options={"lease": 2},
    rlock_listener="proj:heard",
    beat_sync_every=int(os.environ.get("SYNC_EVERY", 0)),
    worker_prefetch_multiplier=1,
)
broker = redis.Redis.from_url(BROKER)


outcomes = []


def heard(occurrence):
    outcomes.append((occurrence.kind, occurrence.outcome))


class EachSecond(schedules.schedule):
    """A crontab of seconds."""

    def is_due(self, last_run_at):
        now = self.now().timestamp()
        return schedules.schedstate(math.floor(now) > math.floor(last_run_at.timestamp()), math.ceil(now) - now)


@functools.lru_cache
def slow_once():
    """Sending takes long the first time, as if the broker were far."""
    time.sleep(0.4)


def second():
    now = int(time.time())
    if "SWALLOWS" in os.environ:
        broker.set("sending", 1)
        try:
            time.sleep(60)
        except SystemExit:
            raise OSError("the connection is closed") from None
    slow_once()
    return now


app.conf.beat_schedule = {
    "tick": {"task": "tick", "schedule": EachSecond(1), "kwargs": {"second": BeatLazyFunc(second)}}
}
if os.environ.get("INNER"):
    import django

    django.setup()
    app.conf.beat_schedule = {}


@task_prerun.connect
def began(task, args, **_):
    broker.rpush("begun", task.name)


def work(seconds):
    """Whether it was alone."""
    alone = broker.incr("inside") == 1
    time.sleep(seconds)
    broker.decr("inside")
    return alone


@app.task(base=Exclusive, rlock={"key": "work:{name}", "wait": 30})
def wait(name, seconds=0.2):
    return work(seconds)


@app.task(base=Exclusive, rlock={"key": "work:{name}", "otherwise": "skip"})
def skip(name, seconds=0.2):
    return work(seconds)


@app.task(base=Exclusive, rlock={"key": "work:{name}"}, default_retry_delay=0.1, max_retries=None)
def retry(name, seconds=0.2):
    return work(seconds)


@app.task(base=Exclusive, rlock={"key": "work:{name}"}, default_retry_delay=0, max_retries=1)
def retry_once(name):
    return "never"


@app.task(base=Exclusive, rlock={"key": "work:{name}", "otherwise": "fail"})
def fail(name):
    return "never"


@app.task(base=Exclusive, bind=True, rlock={"lease": 1})
def until_lost(self, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        held().check()
        time.sleep(0.01)
    return held().fence


@app.task(base=Exclusive, rlock={"key": "outer", "wait": 30})
def outer(name):
    before = held().fence
    inner = skip(name)
    return inner and held().fence == before
