"""The API for asyncio. It runs in the event loop, and a cancelled task ends at once."""

import asyncio
import contextlib
import functools
import inspect
import logging
import selectors
import socket
import threading
import weakref
from typing import Any, Awaitable, Callable, Coroutine, Dict, List, Optional, Set, TypeVar

from . import _errors as errors
from . import _format as wire
from . import _host as common
from ._elections import FOREIGN, Change, ChangesBase, ElectionBase, LeadershipBase
from ._base import Block, BlockEnd, ClientBase, LockBase, LocksBase, QuorumBase, refuse_to_decorate
from ._host import Call, Connection, Hold, Host, Settings, millis, now, write

__all__ = ["Changes", "Client", "Election", "Leadership", "Lock", "Quorum"]
_TASKS_UNTIL_LOOK = 16  # Before a lock looks for what tasks have lost that have ended.
C = TypeVar("C", bound="_Locks")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
K = TypeVar("K", bound="Lock")


class _Host(Host):
    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(settings)
        self.loop, self.due, self.is_sending = loop, wire.NONE, False
        self.timer: Optional[asyncio.TimerHandle] = None
        self.tasks: "Set[asyncio.Future[Any]]" = set()
        self.ended: "asyncio.Future[None]" = loop.create_future()
        self.flushing = Call()
        common._hosts.add(self)

    def post(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self.loop.call_soon_threadsafe(work)

    def watch(self, connection: Connection, of: socket.socket, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self.loop.add_writer(of, connection.send)
        else:
            self.loop.remove_writer(of)
        if not mask:
            self.loop.remove_reader(of)
        elif not connection.mask:
            self.loop.add_reader(of, connection.receive)

    def stepped(self) -> None:
        if self.writing and not self.is_sending:  # All output of one turn of the loop is sent together.
            self.is_sending = True
            self.loop.call_soon(self.send)
        # A timer that fires too early does no harm.
        if self.deadline != wire.NONE and not (self.timer and self.due <= self.deadline):
            if self.timer:
                self.timer.cancel()
            self.due = self.deadline
            self.timer = self.loop.call_later(max(0.0, (self.due - now()) / 1e9), self.tick)
        while self.reports:
            self.report(*self.reports.popleft())

    def send(self) -> None:
        self.is_sending = False
        self.flush()

    def tick(self) -> None:
        self.timer = None
        self.step(wire.tick())

    def tell(self, what: str, callback: Callable[[Any], Any], value: Any) -> None:
        self.keep(self.tell_now(what, callback, value))

    async def tell_now(self, what: str, callback: Callable[[Any], Any], value: Any) -> None:
        try:
            answer = callback(value)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            write(logging.ERROR, "%s", what, with_error=True)

    async def call(self, call: Call, event: Callable[..., bytes], *fields: Any) -> Any:
        future: "asyncio.Future[None]" = self.loop.create_future()
        call.wake = lambda: None if future.done() else future.set_result(None)
        self.begin(call, event, *fields)
        try:
            await future
        except BaseException:
            self.give_up(call)
            raise
        return call.result()

    def give_up(self, call: Call) -> None:
        if self.loop.is_closed():  # The server withdraws what waits when its connection ends.
            self.forget()
        else:
            super().give_up(call)

    async def close(self, timeout: float) -> None:
        if self.is_closed:  # Another task closes it, or has closed it.
            await asyncio.wait({self.ended}, timeout=timeout)
            return
        flushed = self.loop.create_future()
        self.leave(lambda: None if flushed.done() else flushed.set_result(None))
        try:
            await asyncio.wait({flushed}, timeout=timeout)
        finally:
            self.finish()

    def leave(self, flushed: Callable[[], None]) -> None:
        self.flushing.wake = flushed
        self.step(wire.leave_all())
        self.begin(self.flushing, wire.flush)
        self.is_closed = True

    def finish(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
            self.is_hurried, self.flushing = not self.flushing.is_done, Call()  # Without a cycle.
            self.step(wire.closed())
            self.end()
            if self.timer:
                self.timer.cancel()

    def dropped(self) -> None:
        """Closes the host of a client that is garbage-collected. Without a task: the loop may end before it runs."""
        if not self.is_closed:
            self.leave(self.finish_soon)
            self.loop.call_later(5, self.finish)

    def finish_soon(self) -> None:
        self.loop.call_soon(self.finish)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs it in a task, which the event loop alone would not keep."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class _Own(List[Hold]):
    """The holds of a task or a thread. While there are some, the lock keeps those of a task, so that they stay when it
    ends: `wait_for` makes a task before Python 3.12, and so may what prepares a test."""

    def __init__(self, lock: "Lock", task: Optional["asyncio.Task[Any]"]) -> None:
        super().__init__()
        # Without a cycle, so that a lock that nobody has any more is collected at once.
        self.lock, self.task = weakref.ref(lock), weakref.ref(task) if task else None

    def append(self, hold: Hold) -> None:
        super().append(hold)
        lock = self.lock()
        if lock and self.task:
            lock._keep(self)

    def remove(self, hold: Hold) -> None:
        super().remove(hold)
        lock = self.lock()
        if lock and not self:
            lock._of_tasks.pop(id(self), None)

    def is_ended(self) -> bool:
        task = self.task() if self.task else None
        # In the child of a fork, no task of its parent goes on.
        return task is None or task.done() or any(hold.host.is_foreign for hold in self)


def _caller() -> Any:
    """The current task; outside a task the thread."""
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    return task or threading.current_thread()


_end = BlockEnd(LockBase._exit, _caller)


class Lock(LockBase):
    """A lock to acquire and release any number of times. Each task that uses it has its own hold, which belongs to the
    task that calls `acquire`, even if another one runs the coroutine; outside a task it belongs to the thread. What a
    task still holds when it ends is for a task without a hold of its own."""

    _here = {
        True: "by this task in this event loop: with thread_local=False, any task of the loop may use the hold",
        False: "in this event loop",
    }

    def _begin(self) -> None:
        # All callers share the only list, or each task or thread has its own.
        self._shared: Optional[List[Hold]] = None if self._terms.thread_local else []
        self._of_callers: "weakref.WeakKeyDictionary[Any, _Own]" = weakref.WeakKeyDictionary()
        self._of_tasks: Dict[int, _Own] = {}
        self._most = _TASKS_UNTIL_LOOK

    @property
    def _own(self) -> List[Hold]:
        return self._own_of(_caller())

    def _own_of(self, caller: Any) -> List[Hold]:
        if self._shared is not None:
            return self._shared
        own = self._of_callers.get(caller)
        if own is None:
            own = self._of_callers[caller] = _Own(self, None if isinstance(caller, threading.Thread) else caller)
        return own

    @property
    def _holds(self) -> List[Hold]:
        return self._holds_of(_caller())

    def _holds_of(self, caller: Any) -> List[Hold]:
        own = self._own_of(caller) if caller else []
        return own or self._of_ended() or own

    def _holds_of_block(self, block: Block) -> List[Hold]:
        if self._has_hold(block) and block.hold in block.holds:
            return block.holds
        return self._holds_of(block.by())

    def _of_ended(self) -> Optional[_Own]:
        """What one of the tasks that have ended holds. A task that has lost the lock must not use, or release, the next
        holder's. So it is first the one that has lost it, and last one whose block goes on."""
        ended = [(own, self._last(own)) for own in list(self._of_tasks.values()) if own.is_ended()]
        ranks = [((hold.remaining() == 0, not hold.is_of_block), own) for own, hold in ended if hold]
        return max(ranks, key=lambda it: it[0])[1] if ranks else None

    def _keep(self, own: _Own) -> None:
        self._of_tasks[id(own)] = own
        if len(self._of_tasks) > self._most:
            # Tasks that have lost the lock may end without a release. Only what the last of them has is kept.
            kept = list(self._of_tasks.items())
            lost = [number for number, it in kept if it.is_ended() and not any(hold.remaining() for hold in it)]
            for number in lost[:-1]:
                self._of_tasks.pop(number, None)
            self._most = 2 * len(self._of_tasks) + _TASKS_UNTIL_LOOK

    def _last(self, holds: List[Hold]) -> Optional[Hold]:
        loop = asyncio._get_running_loop()
        here = [it for it in holds[:] if loop is None or it.host.loop is loop]  # type: ignore[attr-defined]
        return here[-1] if here else None

    def __aenter__(self: K) -> Coroutine[Any, Any, K]:
        return self._enter(self._own, self._call(), _end.begin(self))

    __aexit__ = _end

    def __call__(self, function: F) -> F:
        """Decorates a coroutine function: each call holds the lock. `TypeError` for a generator function."""
        refuse_to_decorate(function, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

        @functools.wraps(function)
        async def locked(*arguments: Any, **named: Any) -> Any:
            async with Lock(self._client, self._terms):
                return await function(*arguments, **named)

        return locked  # type: ignore[return-value]


class Leadership(Lock, LeadershipBase):
    """The right to lead: see `rlock_client.Leadership`."""


def _mark(function: Any) -> None:
    """It returns a coroutine, so it counts as a coroutine function for those who choose by that how to call it."""
    if hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)


for _method in (
    *(LockBase.acquire, LockBase.release, LockBase.owned, LockBase.extend, LockBase.downgrade, LockBase.upgrade),
    *(LeadershipBase.proclaim, LeadershipBase.resign, Lock.__aenter__),
):
    _mark(_method)


class Changes(ChangesBase):
    """The current leader and each change, as an asynchronous iterator: see `rlock_client.Changes`. It ends with
    ``close``, with its ``async with`` block, or when it is garbage-collected. A task that is cancelled while it waits
    takes no change."""

    def __init__(self, client: "ClientBase[Any, Any]", key: bytes) -> None:
        self._loop, self._ready = asyncio.get_running_loop(), asyncio.Event()
        super().__init__(client, key, self._ready.set)
        self._host.begin(self._observer, wire.observe, key)

    def __aiter__(self) -> "Changes":
        return self

    async def __anext__(self) -> Change:
        if self._loop is not asyncio.get_running_loop():
            raise errors.Closed(FOREIGN)
        while not self._observer.is_closed:
            change = self._observer.take(self._host)
            if change:
                return change
            self._ready.clear()
            await self._ready.wait()
        raise StopAsyncIteration

    async def __aenter__(self) -> "Changes":
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()


class Election(ElectionBase[Leadership]):
    """The right to lead at a key, and the current leader: see `rlock_client.Election`."""

    _kind = Leadership

    def observe(self) -> Changes:
        """The current leader, then each change. It begins at once. All observers of one client share its connection."""
        return Changes(self._client, self._key)


class _Locks(LocksBase[Lock]):
    """What a client and a quorum share."""

    _kind = Lock

    def _begin(self) -> None:
        self._hosts: Dict[asyncio.AbstractEventLoop, _Host] = {}

    async def aclose(self, timeout: float = 5) -> None:
        """Releases all holds, ends all waits, and closes the connections of this event loop."""
        millis("timeout", timeout)
        self._is_closed = True
        loop = asyncio.get_running_loop()
        host = self._hosts.get(loop)
        if host and not host.is_foreign:
            await host.close(timeout)
            self._hosts.pop(loop, None)

    async def __aenter__(self: C) -> C:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        for host in list(getattr(self, "_hosts", {}).values()):
            if not host.is_foreign:
                host.post(host.dropped)

    def _host(self) -> _Host:
        loop = asyncio.get_running_loop()
        host = self._hosts.get(loop)
        if host and not host.is_foreign:
            return host
        if self._is_closed:
            raise errors.Closed("the client has been closed")
        for other in [it for it in list(self._hosts) if it.is_closed()]:
            closed = self._hosts.pop(other, None)  # Several threads may be here.
            if closed:
                closed.forget()
        host = self._hosts[loop] = _Host(self._settings, loop)
        return host


class Client(_Locks, ClientBase[Lock, Election]):
    """Locks of one server, cluster or group of Sentinels. It has separate connections in each event loop."""

    _election = Election


class Quorum(_Locks, QuorumBase[Lock]):
    """Locks of several independent servers: see `rlock_client.Quorum`. It has separate connections in each event
    loop."""
