"""The API for threads and for gevent. Each client has one thread for its sockets and its timer."""

import atexit
import collections
import contextlib
import functools
import inspect
import logging
import selectors
import socket
import threading
import time
from typing import Any, Callable, Coroutine, Deque, List, Optional, Tuple, TypeVar

from . import _errors as errors
from . import _host as common
from . import _format as wire
from ._elections import Change, ChangesBase, ElectionBase, Leader, LeadershipBase
from ._base import Block, BlockEnd, ClientBase, LockBase, LocksBase, QuorumBase, Value, documented, refuse_to_decorate
from ._host import ENDLESS, Call, Connection, Hold, Key, Settings, millis, now, write

C = TypeVar("C", bound="_Locks")
F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K", bound="Lock")
T = TypeVar("T")


class _Host(common.Host):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.selector, self.is_asleep = selectors.DefaultSelector(), False
        self.posts: Deque[Callable[[], None]] = collections.deque()
        self.untold: Deque[Tuple[str, Callable[[Any], Any], Any]] = collections.deque()
        self.telling, self.is_telling, self.is_stopped = threading.Lock(), False, False
        self.stop_at = wire.NONE
        self.wake_sender, self.wake_receiver = socket.socketpair()
        for each in (self.wake_sender, self.wake_receiver):
            each.setblocking(False)
        self.selector.register(self.wake_receiver, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self.run, name="rlock", daemon=True)
        self.thread.start()
        common._hosts.add(self)

    def run(self) -> None:
        try:
            self.handle_events()
        except Exception:
            write(logging.CRITICAL, "the client has failed and is closed", with_error=True)
        finally:
            self.stop()

    def handle_events(self) -> None:
        """Only this thread uses the engine. So an exception from a signal handler, which can interrupt the main thread
        between any two steps, does no harm."""
        events: List[Any] = []
        while True:
            self.is_asleep = False
            for key, mask in events:
                if key.data is None:
                    self.wake_receiver.recv(4096)
                elif key.data.is_current:
                    if mask & selectors.EVENT_WRITE:
                        self.writing.add(key.data)
                    key.data.receive()
            if now() >= self.deadline:
                self.step(wire.tick())
            while self.posts or self.writing:
                while self.posts:
                    self.posts.popleft()()
                self.flush()
            time_now = now()
            if time_now >= self.stop_at:
                self.is_hurried = self.stop_at > 0
                return self.step(wire.closed())
            self.is_asleep = True
            due = 0 if self.posts else min(self.deadline, self.stop_at) - time_now
            events = self.selector.select(min(max(0, due) / 1e9, 3600))

    def stop(self) -> None:
        self.is_closed = self.is_stopped = True
        while self.posts:
            self.posts.popleft()()
        self.end()
        for each in (self.selector, self.wake_sender, self.wake_receiver):
            each.close()

    def post(self, work: Callable[[], None]) -> None:
        self.posts.append(work)
        # Only the other thread changes this: an exception from a signal handler may come before the next line.
        if self.is_asleep:
            with contextlib.suppress(OSError):
                self.wake_sender.send(b"!")

    def watch(self, connection: Connection, of: socket.socket, mask: int) -> None:
        if not mask:
            self.selector.unregister(of)
        elif connection.mask:
            self.selector.modify(of, mask, connection)
        else:
            self.selector.register(of, mask, connection)

    def stepped(self) -> None:
        while self.reports:
            self.report(*self.reports.popleft())

    def forget(self) -> None:
        for each in (self.selector, self.wake_sender, self.wake_receiver):
            each.close()
        super().forget()

    def tell(self, what: str, callback: Callable[[Any], Any], value: Any) -> None:
        self.untold.append((what, callback, value))
        with self.telling:
            if self.is_telling:
                return
            self.is_telling = True
            try:
                threading.Thread(target=self.tell_all, name="rlock-callbacks", daemon=True).start()
            except RuntimeError:
                self.is_telling = False
                write(logging.ERROR, "no thread can be started to call %s", what, with_error=True)

    def tell_all(self) -> None:
        while True:
            with self.telling:
                if not self.untold:
                    self.is_telling = False
                    return
                what, callback, value = self.untold.popleft()
            try:
                callback(value)
            except BaseException:  # Also `sys.exit()`, which must not end the thread: later calls come from it.
                write(logging.ERROR, "%s", what, with_error=True)

    def refuse_to_wait_for_itself(self) -> None:
        if threading.current_thread() is self.thread:  # A later thread may have its number.
            raise RuntimeError("a listener must not wait for its own client")

    async def call(self, call: Call, event: Callable[..., bytes], *fields: Any) -> Any:
        self.refuse_to_wait_for_itself()
        ended = threading.Lock()
        ended.acquire()
        call.wake = ended.release
        try:
            self.post(functools.partial(self.begin, call, event, *fields))
            if self.is_stopped:
                raise errors.Closed("the client has been closed")
            ended.acquire()
            return call.result()
        except errors.Error:
            raise
        except BaseException:
            self.post(functools.partial(self.give_up, call))
            raise

    def close(self, timeout: float) -> None:
        self.post(functools.partial(self.leave_all, timeout))

    def leave_all(self, timeout: float) -> None:
        if not self.is_closed:
            self.stop_at = now() + int(timeout * 1e9)
            flush = Call()
            flush.wake = functools.partial(setattr, self, "stop_at", 0)
            self.step(wire.leave_all())
            self.begin(flush, wire.flush)
            self.is_closed = True


def _close_all() -> None:
    open_hosts = [host for host in list(common._hosts) if isinstance(host, _Host) and host.thread.is_alive()]
    for host in open_hosts:
        host.close(1)
    for host in open_hosts:
        host.thread.join(2)
    for thread in threading.enumerate():
        if thread.name == common.CLOSING:
            thread.join(1)


atexit.register(_close_all)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that is never suspended."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("the coroutine was suspended")


class _Shared:
    def __init__(self) -> None:
        self.holds: List[Hold] = []


class _OfThread(threading.local, _Shared):
    pass


def _end_block(lock: "Lock", *error: Any, block: Block) -> None:
    hold: Optional[Hold] = None
    try:
        hold = lock._last(lock._at_end(block))
        _run(lock._exit(*error, block=block))
    except errors.Error:
        raise
    except BaseException:
        lock._leave(lock._holds_of_block(block), hold or lock._last(lock._at_end(block)))
        raise


_end = BlockEnd(_end_block)


@documented
class Lock(LockBase):
    """A lock to acquire and release any number of times. Each thread that uses it has its own hold."""

    _here = {True: "by this thread: with thread_local=False, any thread may use the hold", False: "here"}

    def _begin(self) -> None:
        self._mine: _Shared = _OfThread() if self._terms.thread_local else _Shared()

    @property
    def _holds(self) -> List[Hold]:
        return self._mine.holds

    def acquire(self, blocking: bool = True, timeout: Optional[float] = None) -> bool:  # type: ignore[override]
        call = self._call()
        try:
            return _run(self._acquire(self._holds, call, blocking, timeout))
        except errors.Error:
            raise
        except BaseException:
            self._give_up(self._holds, call)
            raise

    def release(self, permits: Optional[int] = None) -> None:  # type: ignore[override]
        hold: Optional[Hold] = None
        try:
            hold = self._last(self._holds)
            _run(super().release(permits))
        except errors.Error:
            raise
        except BaseException:
            self._leave(self._holds, hold or self._last(self._holds), permits)
            raise

    def locked(self) -> bool:  # type: ignore[override]
        return _run(super().locked())

    def owned(self) -> bool:  # type: ignore[override]
        return self.remaining > 0

    def extend(self, lease: float) -> bool:  # type: ignore[override]
        return _run(super().extend(lease))

    def downgrade(self) -> None:  # type: ignore[override]
        _run(super().downgrade())

    def upgrade(self, wait: Optional[float] = None) -> bool:  # type: ignore[override]
        return _run(super().upgrade(wait))

    def __enter__(self: K) -> K:
        call = self._call()
        try:
            return _run(self._enter(self._holds, call, _end.begin(self)))
        except errors.Error:
            raise
        except BaseException:
            self._give_up(self._holds, call)
            raise

    __exit__ = _end

    def __call__(self, function: F) -> F:
        """Decorates a function: each call holds the lock. `TypeError` for a coroutine function or a generator function,
        whose call returns before it works."""
        kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        refuse_to_decorate(function, *kinds)

        @functools.wraps(function)
        def locked(*arguments: Any, **named: Any) -> Any:
            with Lock(self._client, self._terms):
                return function(*arguments, **named)

        return locked  # type: ignore[return-value]


@documented
class Leadership(Lock, LeadershipBase):
    """The right to lead: a lock that publishes a value while it is held. A leader that stalls or loses its connection
    may notice this only after another one leads: send ``fence`` with each write."""

    def proclaim(self, value: Value) -> None:  # type: ignore[override]
        _run(super().proclaim(value))

    def resign(self) -> None:  # type: ignore[override]
        self.release()


def _wake(waiting: "Deque[threading.Lock]") -> None:
    with contextlib.suppress(IndexError):  # Another thread wakes them too.
        for _ in range(len(waiting)):
            waiting.popleft().release()


class Changes(ChangesBase):
    """The current leader and each change, as an iterator that any thread may use. It ends with ``close``, with its
    ``with`` block, or when it is garbage-collected.

    The first change is the current leader, or ``None``. Each change comes once, and fences never decrease. After a new
    connection, a fail-over or a moved slot, the next change is the leader of that moment, and it is ``missed``. The
    iterator keeps at most 1024 changes: it drops older ones, and the next one is ``missed``.

    It continues while the server is unreachable. It raises errors that do not pass by themselves: ``Denied``,
    ``NotALock``, ``ModuleMissing``, ``Refused``, `Closed`."""

    _host: _Host

    def __init__(self, client: "ClientBase[Any, Any]", key: bytes) -> None:
        # A lock for each thread that waits, as each call has one: no event, which an interrupt could leave locked.
        self._waiting: "Deque[threading.Lock]" = collections.deque()
        super().__init__(client, key, functools.partial(_wake, self._waiting))
        self._host.post(functools.partial(self._host.begin, self._observer, wire.observe, key))
        if self._host.is_stopped:
            self._observer.finish(None, errors.Closed("the client has been closed"))

    def get(self, timeout: Optional[float] = None) -> Optional[Change]:
        """The next change; ``None`` if there is none within ``timeout`` seconds, or after ``close``."""
        wait = millis("timeout", timeout, ENDLESS)
        end = None if wait == wire.NONE else time.monotonic() + wait / 1000
        while True:
            woken = threading.Lock()
            woken.acquire()
            self._waiting.append(woken)  # Before the look, so that what comes after it wakes this thread.
            try:
                change = None if self._observer.is_closed else self._observer.take(self._host)
                rest = -1 if end is None else max(0.0, end - time.monotonic())
                if change or self._observer.is_closed or rest == 0:
                    return change
                self._host.refuse_to_wait_for_itself()
                woken.acquire(timeout=rest)
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(woken)

    def __iter__(self) -> "Changes":
        return self

    def __next__(self) -> Change:
        change = self.get()
        if change is None:
            raise StopIteration
        return change

    def __enter__(self) -> "Changes":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@documented
class Election(ElectionBase[Leadership]):
    """The right to lead at a key. One owner at a time has it, first come, first served, and publishes a value, such as
    its address. It is the lock at the key: a holder that did not campaign keeps candidates waiting, but is not a
    leader."""

    _kind = Leadership

    def leader(self) -> Optional[Leader]:  # type: ignore[override]
        return _run(super().leader())

    def observe(self) -> Changes:
        """The current leader, then each change. It begins at once. All observers of one client share its connection."""
        return Changes(self._client, self._key)


@documented
class _Locks(LocksBase[Lock]):
    """What a client and a quorum share."""

    _kind = Lock

    def _begin(self) -> None:
        self._hosts: List[_Host] = []

    @property
    def _current(self) -> Optional[_Host]:
        """The first host that was made in this process."""
        for host in self._hosts[:]:
            if not host.is_foreign:
                return host
        return None

    def connect(self) -> None:  # type: ignore[override]
        _run(super().connect())

    def close(self, timeout: float = 5) -> None:
        """Releases all holds, ends all waits, and closes the connections."""
        millis("timeout", timeout)
        self._is_closed = True
        host = self._current
        if host:
            host.close(timeout)
            host.thread.join(timeout + 1)

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        for host in getattr(self, "_hosts", []):
            if not host.is_foreign:
                host.close(5)

    def _host(self) -> _Host:
        """It takes no lock, because the handler of a signal may call it meanwhile. If several threads make a host at
        once, all use the first one."""
        host = self._current
        if host:
            return host
        made = None if self._is_closed else _Host(self._settings)
        if made:
            self._hosts.append(made)
        host = self._current
        if made and (host is not made or self._is_closed):
            self._hosts.remove(made)
            made.close(0)
        if host is None or self._is_closed:
            raise errors.Closed("the client has been closed")
        return host


@documented
class Client(_Locks, ClientBase[Lock, Election]):
    """Locks of one server, cluster or group of Sentinels. Threads share it. One thread calls all ``on_loss`` and
    ``on_risk``, one after another."""

    _election = Election

    def info(self, key: Key) -> "dict[str, Any]":  # type: ignore[override]
        return _run(super().info(key))

    def force(self, key: Key, fence: Optional[int] = None) -> bool:  # type: ignore[override]
        return _run(super().force(key, fence))

    def metrics(self) -> "dict[str, int]":  # type: ignore[override]
        """The counters of this client."""
        return _run(super().metrics())


class Quorum(_Locks, QuorumBase[Lock]):
    """Locks that a majority of 3, 5, 7 or 9 independent servers holds, so they survive the failure of a minority.
    Threads share it. ``any_grace`` allows leases above the startup grace of a member: two owners may then hold a lock at
    once after a member has crashed."""
