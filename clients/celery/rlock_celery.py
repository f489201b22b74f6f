"""For Celery: a beat of which one process schedules, and tasks that run one at a time. The locks are rlock's."""

import contextlib
import contextvars
import functools
import inspect
import os
import socket
import time

from celery import Task, beat
from celery.exceptions import ImproperlyConfigured
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger
from rlock_client import Client, Error, NotAcquired, Unavailable

__all__ = ["Exclusive", "Scheduler", "held"]
log = get_logger(__name__)
LEASE = 10  # A beat's, in seconds. After a leader has died, nobody leads until it ends.


def _open(app):
    url = app.conf.get("rlock_url")
    if not url:
        raise ImproperlyConfigured("rlock_url is not set: it is the URL of the server with the locks")
    listener = symbol_by_name(app.conf.get("rlock_listener"))
    return Client(url, name=f"{socket.gethostname()}:{os.getpid()}", listener=listener)  # The server shows the name.


class _Sending:
    """Comes before the class of a scheduler. Only the leader sends, and only the leader writes what all share."""

    def apply_entry(self, entry, producer=None):
        # The broker is connected at this point, which may have taken long.
        if self.leads():
            super().apply_entry(entry, producer=producer)

    def sync(self):
        if self.is_local or self.leads():
            super().sync()


class Scheduler:
    """Wraps the scheduler that ``rlock_beat_scheduler`` names. One of the beats with the same ``rlock_beat_key`` sends;
    the others wait for the lock.

    A `PersistentScheduler` has its state in a file of this machine. It goes on in a beat that waits, without sending: so
    it knows what the leader has sent. Any other is expected to have its state where all beats find it, such as a
    database. Only the leader has one, made when it begins to lead, so that it reads what earlier leaders have written."""

    def __init__(self, app, lazy=False, max_interval=None, **options):
        conf = app.conf
        kind = symbol_by_name(conf.get("rlock_beat_scheduler") or beat.PersistentScheduler)
        is_local = issubclass(kind, beat.PersistentScheduler)
        terms = {"lease": LEASE, "raise_lost": False, **(conf.get("rlock_beat_options") or {})}
        # A leader hears of a loss when it wakes.
        self.max_interval = min(max_interval or conf.beat_max_loop_interval or 5, terms["lease"] / 3)
        self._key = conf.get("rlock_beat_key") or f"lock:beat:{app.main or 'celery'}"
        self._client = _open(app)
        self._lock, self._led = self._client.lock(self._key, **terms), False
        self._wait, self._is_closed = None, False  # No wait until the first try.
        leading = {"leads": staticmethod(self._leads), "is_local": is_local}
        self._made = functools.partial(
            type(kind.__name__, (_Sending, kind), leading), app=app, max_interval=self.max_interval, **options
        )
        self._inner = self._made(lazy=lazy) if lazy or is_local else None
        self._is_local = is_local
        if not lazy:
            log.info("rlock: this beat sends while it has the lock %s", self._key)

    def __getattr__(self, name):
        return getattr(self.__dict__["_inner"], name)

    def _leads(self):
        return self._led and self._lock.remaining > 0

    def tick(self):
        """Celery's beat calls this in a loop, and sleeps for the answer in between. A beat that waits for the lock
        does so here, at most until the next task is due."""
        if self._is_closed:
            raise SystemExit  # Celery's own, raised while a message was sent, may not have come through.
        if not self._leads() and not self._begin() and not self._is_local:
            self._wait = self.max_interval
            return 0
        wait = self._inner.tick()
        if self._leads():
            return wait
        self._wait = max(0, min(wait or 0, self.max_interval))
        if self.should_sync():
            self._inner._do_sync()
        return 0

    def _begin(self):
        """Waits for the lock. Whether this beat leads now."""
        if self._led:
            log.warning("rlock: %s is lost, this beat sends nothing until it has it again", self._key)
            self._end()
        try:
            if not self._lock.acquire(timeout=self._wait or 0):
                return False
            if not self._is_local:
                self._inner = self._made()
                # The next leader must know what has been sent.
                self._inner.sync_every_tasks = self._inner.sync_every_tasks or 1
            elif self._wait is not None:
                # An earlier leader has sent what was due until now. Celery's heap may have it later than that.
                self._inner._heap = None
                for _ in range(len(self._inner.schedule)):
                    self._inner.tick()
        except Exception as error:
            self._end()
            if not isinstance(error, Unavailable):  # The client has warned of a server that it cannot reach.
                is_strange = not isinstance(error, Error)
                log.error("rlock: this beat cannot lead, and tries again: %s", error, exc_info=is_strange)
                time.sleep(self.max_interval)
            return False
        self._led = True
        log.info("rlock: this beat leads: %s, fence %d", self._key, self._lock.fence)
        return True

    def _end(self):
        self._led = False
        if not self._is_local:
            inner, self._inner = self._inner, None
            if inner and "connection" in vars(inner):
                with contextlib.suppress(Exception):
                    inner.connection.release()
        with contextlib.suppress(Error):
            self._lock.release()

    def should_sync(self):
        return self._inner is not None and self._inner.should_sync()

    def close(self):
        self._is_closed = True
        try:
            if self._inner is not None:
                self._inner.close()
        finally:
            self._client.close(2)


_held = contextvars.ContextVar("rlock_celery_held")


def held():
    """The lock of the task that runs here: ``check()`` raises `Lost` if it is lost, and ``fence`` goes with each write.
    A `LookupError` outside an `Exclusive` task."""
    return _held.get()


@functools.lru_cache(maxsize=None)
def _client(app, process):
    return _open(app)


class Exclusive(Task):
    """The base class of tasks that run one at a time: ``@app.task(base=Exclusive, rlock={...})``. ``rlock`` has the
    options of `Client.lock`, and ``key`` and ``otherwise``; the README has a table of them."""

    abstract = True
    rlock = {}

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        otherwise = cls.rlock.get("otherwise", "retry")
        if otherwise not in ("fail", "retry", "skip"):
            raise ImproperlyConfigured(f"{cls.name}: otherwise is {otherwise!r}, it must be fail, retry or skip")

    def __call__(self, *arguments, **named):
        terms = {"key": f"lock:{self.app.main or 'celery'}:{self.name}", "wait": 0, "otherwise": "retry", **self.rlock}
        bound = inspect.signature(self.run).bind(*arguments, **named)
        bound.apply_defaults()
        key, otherwise = terms.pop("key").format(**bound.arguments), terms.pop("otherwise")
        lock = _client(self.app, os.getpid()).lock(key, **terms)
        with contextlib.ExitStack() as stack:
            try:
                if not lock.acquire():
                    raise NotAcquired(f"{key}: not acquired within {terms['wait']} s")
            except Error as error:
                if otherwise == "skip" and isinstance(error, NotAcquired):
                    return log.info("rlock: %s is skipped: %s", self.name, error)
                if otherwise == "retry" and (error.transient or isinstance(error, NotAcquired)):
                    raise self.retry(exc=error)
                raise
            stack.push(lock)  # Its end releases the lock, and raises the loss.
            stack.callback(_held.reset, _held.set(lock))
            return super().__call__(*arguments, **named)
