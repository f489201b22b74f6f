"""Locks of a Redis or Valkey server that has loaded the rlock module, for redis-py.

    locks = Locks(redis.Redis())
    with locks.lock("invoice:7", lease=30, wait=10) as held:
        write(..., fence=held.fence)

All times are seconds. ``rlock_asyncio`` has the same for ``redis.asyncio``. Clients of valkey-py work too.
"""

import math
import os
import threading
import time
from collections import deque

from rlock_request import ANSWERED, BROKEN, IDLE_MOST, REPLY_LIMIT, LockError, Lost, NotAcquired, Refused, Request, Turn
from rlock_request import check, connection_options, now

__all__ = ["Held", "LockError", "Locks", "Lost", "NotAcquired", "Refused"]


class Locks:
    """Takes locks through connections of its own, made as those of ``client``: TLS, password and database are the same.

    ``ask_every``: seconds, 0.1 to 600, default 10. How often a waiter asks again, in its place in the queue. It is
    the time within which a waiter sees that a connection hangs. A reply may take the client's ``socket_timeout``
    longer than the wait (5 s if there is none). Threads may share a ``Locks``. Raises TypeError for a cluster client.
    """

    def __init__(self, client, *, ask_every=10.0):
        self._make, self._options = connection_options(client, ask_every)
        self._client, self._ask_every = client, ask_every  # The client of a Sentinel must live on.
        self._idle, self._pid = deque(), os.getpid()
        self._claims, self._guard = set(), threading.Lock()
        self._starter = Starter()

    def lock(self, key, lease=30.0, wait=None, *, shared=False, limit=None, permits=None, owner=None, on_loss=None):
        """Waits in the server's queue and returns a ``Held``, to be used with ``with``. The README has the options.

        Raises NotAcquired when the wait is over, Refused when the server refuses, ValueError for a bad argument, and
        the library's ConnectionError or TimeoutError when the server cannot be reached to begin with. Whatever is
        raised, KeyboardInterrupt too, the request is withdrawn first, and a grant that came meanwhile is released.
        """
        request = Request.of(key, lease, wait, shared, limit, permits, owner)
        self._claim(request)
        try:
            return Held(self, request, *self._acquire(request), on_loss)
        except BaseException:
            self._disclaim(request)
            raise

    def close(self):
        """Closes the idle connections. Locks that are held are renewed and released all the same."""
        while self._idle:
            self._idle.pop().disconnect()

    def _claim(self, request):
        with self._guard:
            taken = self._claims & request.claims()
            check("owner", request.owner, not taken, f"one activity's: it holds or awaits {taken} already")
            self._claims |= request.claims()

    def _disclaim(self, request):
        with self._guard:
            self._claims -= request.claims()

    def _acquire(self, request):
        """The fence, and the time from which the lease counts: before the request was sent."""
        turn, connection, is_left = Turn(request, self._ask_every), None, False
        try:
            while True:
                piece_ms = turn.piece_ms()
                try:
                    connection = self._connect()
                    turn.asked, is_left, sent = turn.asked + 1, True, now()
                    fence = self._ask(connection, request.acquire(piece_ms), piece_ms / 1000)
                    waited = now() - sent
                    if fence is not None and waited > request.lease / 3:  # Granted when? A holder's lease starts anew.
                        sent = now()
                        fence = self._ask(connection, request.acquire())
                    self._keep(connection)
                    connection = None
                except (*ANSWERED, *BROKEN) as error:
                    is_left = is_left and (turn.asked > 1 or not isinstance(error, ANSWERED))
                    connection = self._drop(connection)
                    time.sleep(turn.failed(error, not turn.asked))
                    continue
                if fence is not None:
                    return fence, sent
                is_left = request.wait > 0  # Its place is kept, for the next piece of the wait.
                turn.refused(waited, piece_ms)
        except BaseException:
            if is_left:
                self._withdraw(request, connection)
            raise

    def _withdraw(self, request, unanswered):
        """Ends a request. A CANCEL may overtake it, so it is repeated until the request's call is answered."""
        try:
            give_up = now() + REPLY_LIMIT
            while self._call(request.cancel()) is not None and now() < give_up:
                if unanswered is None or unanswered._sock is None or unanswered.can_read(0.1):
                    break
            self._call(request.release())
        except (*ANSWERED, *BROKEN):
            pass  # The server cannot be reached: its lease ends a grant.
        finally:
            self._drop(unanswered)

    def _call(self, command, limit=None, tries=3):
        """The reply to a command that may be repeated; raises the library's error when the last try fails."""
        for left in reversed(range(tries)):
            connection = None
            try:
                connection = self._connect()
                reply = self._ask(connection, command, 0, limit)
                self._keep(connection)
                return reply
            except BaseException as error:
                self._drop(connection)
                if not left or not isinstance(error, BROKEN):
                    raise

    def _ask(self, connection, command, wait=0, limit=None):
        limit = limit or self._options["socket_timeout"]
        connection.send_command(*command)
        if not connection.can_read(wait + limit):
            raise TimeoutError(f"no reply to {command[0]} within {limit} s")
        return connection.read_response()

    def _connect(self):
        if self._pid != os.getpid():  # The connections of the parent process are not ours to use.
            self._idle, self._pid = deque(), os.getpid()
        while True:
            try:
                connection = self._idle.pop()
                if not connection.can_read(0):
                    return connection
                connection.disconnect()
            except IndexError:
                break
            except BROKEN:
                continue
        connection = self._make(**self._options)
        connection.connect()
        return connection

    def _keep(self, connection):
        if len(self._idle) < IDLE_MOST:
            self._idle.append(connection)
        else:
            connection.disconnect()

    def _drop(self, connection):
        if connection is not None:
            connection.disconnect()


class Held:
    """A lock that is held and renewed every third of its lease. Leaving its ``with`` releases it.

    ``fence``: the fencing token, an integer. ``key``, ``keys``, ``owner``: what was asked for, and by whom.
    """

    def __init__(self, locks, request, fence, sent, on_loss):
        self.fence, self.keys, self.key, self.owner = fence, request.keys, request.keys[0], request.owner
        self._locks, self._request, self._on_loss = locks, request, on_loss
        self._until = sent + request.lease
        self._why, self._guard, self._over = None, threading.Lock(), threading.Event()
        self._renewer = threading.Thread(target=self._renew, args=(sent,), name=f"rlock {self.key!r}", daemon=True)
        locks._starter.add(self._renewer, sent + request.lease / 3)
        if on_loss:  # In a thread of its own, as a renewal may hang.
            threading.Thread(target=self._watch, name=f"rlock {self.key!r} watch", daemon=True).start()

    @property
    def lost(self):
        """True from the moment at which the server may have granted the lock to somebody else, or earlier."""
        if self._why is None and not self._over.is_set() and now() >= self._until:
            self._lose("its lease is over, and could not be renewed")
        return self._why is not None

    def check(self):
        """Raises Lost if the lock is lost."""
        if self.lost:
            raise Lost(f"{self.keys}, fence {self.fence}: {self._why}")

    def release(self):
        """Gives the lock to the next waiter. Harmless when it is lost, or a second time.

        Returns True if the server confirms that the lock was held until now; False if not, or if that is not known
        as a reply was lost. Raises the library's ConnectionError or TimeoutError if the server cannot be reached
        with three tries: the lock is then free when its lease ends.
        """
        with self._guard:
            if self._locks is None:
                return False
            locks, self._locks = self._locks, None
        self._over.set()
        try:
            return self._request.is_released(locks._call(self._request.release()))
        finally:
            if not locks._starter.drop(self._renewer) and self._renewer is not threading.current_thread():
                self._renewer.join(REPLY_LIMIT)  # So that no late renewal meets another lock of the same owner.
            locks._disclaim(self._request)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.release()
        except (*ANSWERED, *BROKEN):
            if error is None:
                raise

    def _renew(self, sent):
        """Sends a renewal every third of the lease, and sooner after one that failed."""
        locks, pace = self._locks, self._request.lease / 3
        due = sent + pace
        while locks and not self._over.wait(max(0, min(due, self._until) - now())) and not self.lost:
            sent = now()
            try:
                limit = min(locks._options["socket_timeout"], max(self._until - sent, 0.001))
                reply = locks._call(self._request.renew(), limit, tries=1)
            except (*ANSWERED, *BROKEN):
                due = now() + min(pace / 3, 1)
                continue
            if self.lost:
                return
            if not self._request.is_renewed(reply, self.fence):
                return self._lose("the server says that it is no longer held")
            self._until, due = sent + self._request.lease, sent + pace

    def _watch(self):
        while not self._over.wait(max(0, self._until - now())) and not self.lost:
            pass

    def _lose(self, why):
        with self._guard:
            if self._why is not None or self._locks is None:
                return
            self._why = why
        self._over.set()
        if self._on_loss:
            self._on_loss(self)


class Starter:
    """Starts the threads that renew, each when its first renewal is due. Most holds are released before, and need none."""

    IDLE = 60.0  # seconds after which its own thread ends
    RETRY = 1.0  # seconds after which a thread that could not be started is tried again

    def __init__(self):
        self._due, self._change, self._thread, self._next = {}, threading.Condition(), None, math.inf

    def add(self, renewer, due):
        with self._change:
            self._due[renewer] = due
            if self._thread is None or not self._thread.is_alive():  # It is not in a process that was forked.
                self._thread = threading.Thread(target=self._run, name="rlock", daemon=True)
                self._thread.start()
            elif due < self._next:
                self._change.notify()

    def drop(self, renewer):
        """Whether it was not started, and now never is."""
        with self._change:
            return self._due.pop(renewer, None) is not None

    def _run(self):
        with self._change:
            while True:
                for renewer in [each for each, due in self._due.items() if due <= now()]:
                    try:
                        renewer.start()
                        del self._due[renewer]
                    except RuntimeError:  # This process has as many threads as it may.
                        self._due[renewer] = now() + self.RETRY
                self._next = min(self._due.values(), default=now() + self.IDLE)
                if not self._change.wait(max(0, self._next - now())) and not self._due:
                    self._thread = None
                    return
