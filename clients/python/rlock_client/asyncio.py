"""For asyncio, on the event loop's own connections. A task that is cancelled ends at once."""

import asyncio
import functools
import inspect
import socket
import ssl
import weakref
from types import TracebackType
from typing import Any, Awaitable, Callable, Dict, List, Optional, Sequence, Set, Tuple, Type, TypeVar, Union

from . import _errors as errors
from . import _host as common
from . import _wire as wire
from ._host import Activity, Call, Hold, Key, Terms, log

__all__ = ["Client", "Lock"]
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


class _Call(Call):
    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.future: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _Connection(asyncio.Protocol):
    def __init__(self, host: "_Host", number: int, where: str) -> None:
        self.host, self.number, self.where = host, number, where
        self.socket: Optional[socket.socket] = None
        self.transport: Optional[asyncio.Transport] = None
        self.output: List[bytes] = []
        self.dialing: "Optional[asyncio.Task[None]]" = None

    def write(self, data: bytes) -> None:
        # What is said in one turn of the loop goes in one piece.
        if not self.output:
            self.host.loop.call_soon(self.flush)
        self.output.append(data)

    def flush(self) -> None:
        output, self.output = b"".join(self.output), []
        if self.transport and not self.transport.is_closing():
            self.transport.write(output)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.is_current():
            self.host.step(wire.head(wire.OPENED, self.number))
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.is_current():
            self.host.step(wire.received(wire.RECEIVED, self.number, len(data)) + data)

    def connection_lost(self, error: Optional[Exception]) -> None:
        self.host.ended(self.number, self, error, self.where)

    def is_current(self) -> bool:
        return self.host.connections.get(self.number) is self


class _Host(common.Host):
    def __init__(self, settings: common.Settings, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(settings)
        self.loop, self.due = loop, wire.NONE
        self.timer: Optional[asyncio.TimerHandle] = None
        self.tasks: "Set[asyncio.Future[Any]]" = set()

    def wake_at(self, deadline: int) -> None:
        # A timer that is too early does no harm.
        if deadline == wire.NONE or (self.timer and self.due <= deadline):
            return
        if self.timer:
            self.timer.cancel()
        self.due = deadline
        self.timer = self.loop.call_later(max(0.0, (deadline - wire.now()) / 1e9), self.tick)

    def tick(self) -> None:
        self.timer = None
        self.step(bytes([wire.TICK]))

    def connect(self, connection: int, how: int, host: str, port: int) -> None:
        it = self.connections[connection] = _Connection(self, connection, host if how == 3 else f"{host}:{port}")
        # A task of its own: no caller's end is its end.
        it.dialing = self.loop.create_task(self.dial(it, how, host, port))

    async def dial(self, it: _Connection, how: int, host: str, port: int) -> None:
        try:
            it.socket = await self.reach(how, host, port)
            context = self.settings.context(how)
            name = host if context else None
            await self.loop.create_connection(lambda: it, sock=it.socket, ssl=context, server_hostname=name)
        except BaseException as error:  # Of whatever kind: it is told.
            if it.socket:
                it.socket.close()
            self.ended(it.number, it, error, it.where)
            if isinstance(error, asyncio.CancelledError):
                raise

    async def reach(self, how: int, host: str, port: int) -> socket.socket:
        if how == 3:
            places: List[Any] = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", host)]
        else:
            places = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for place in places:
            made = socket.socket(*place[:3])
            try:
                made.setblocking(False)
                await self.loop.sock_connect(made, place[4])
                if how != 3:
                    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return made
            except BaseException as error:
                made.close()
                if place is places[-1] or not isinstance(error, OSError):
                    raise
        raise OSError("the host has no address")

    def close_connection(self, connection: _Connection) -> None:
        if connection.dialing:
            connection.dialing.cancel()
        if connection.transport:
            connection.flush()
            connection.transport.abort()

    def abandon_connection(self, connection: _Connection) -> None:
        # Not by its transport: the parent's selector is the same one.
        if connection.socket:
            connection.socket.close()

    def forgotten(self, guard: int) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.step, wire.head(wire.LEAVE, guard))

    def lost(self, hold: Hold) -> None:
        if hold.on_loss:
            self.keep(self.loop.create_task(self.tell_loss(hold)))

    def keep(self, task: "asyncio.Future[Any]") -> None:
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def tell_loss(self, hold: Hold) -> None:
        try:
            assert hold.on_loss
            answer = hold.on_loss(hold.loss)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            log.exception("on_loss of %s", hold.text)

    async def call(self, call: _Call, kind: int, fields: bytes = b"") -> Any:
        self.begin(call, kind, fields)
        try:
            await call.future
        except BaseException:
            self.give_up(call)
            raise
        return call.result()

    async def close(self, timeout: float) -> None:
        if self.is_closed:
            return
        flush = _Call("")
        self.step(bytes([wire.LEAVE_ALL]))
        self.begin(flush, wire.FLUSH)
        self.is_closed = True
        try:
            await asyncio.wait({flush.future}, timeout=timeout)
        finally:
            self.step(bytes([wire.CLOSED]))
            for connection in list(self.connections.values()):
                self.close_connection(connection)
            self.connections.clear()
            for call in list(self.calls.values()):
                call.finish(None, errors.Closed("the client has been closed"))
            self.calls.clear()
            if self.timer:
                self.timer.cancel()
        await asyncio.sleep(0)  # The transports close their sockets in the next turn.


class Client:
    """Locks of one server, cluster or group of Sentinels. It has connections of its own in each event loop."""

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        name: str = "",
        tls: Optional[ssl.SSLContext] = None,
        response_timeout: Optional[float] = None,
        retry_timeout: Optional[float] = None,
        replication_timeout: Optional[float] = None,
    ) -> None:
        timeouts = dict(response_timeout=response_timeout, retry_timeout=retry_timeout)
        self._settings = common.Settings(url, name, tls, {**timeouts, "replication_timeout": replication_timeout})
        self._hosts: Dict[asyncio.AbstractEventLoop, _Host] = {}
        self._is_closed = False

    def lock(
        self,
        keys: Union[Key, Sequence[Key]],
        *,
        lease: float = 30,
        wait: Optional[float] = None,
        shared: bool = False,
        limit: Optional[int] = None,
        permits: int = 1,
        activity: Optional[Activity] = None,
        renew: bool = True,
        max_hold: Optional[float] = None,
        bound: Optional[float] = None,
        replicas: int = 0,
        release_after: Optional[float] = None,
        on_loss: Optional[Callable[[errors.Lost], Any]] = None,
        raise_lost: bool = True,
    ) -> "Lock":
        """A lock, which is not acquired yet: see the table of options in README."""
        common.millis("wait", wait)
        common.millis("release_after", release_after)
        terms = Terms(keys, shared, limit, permits, activity, lease, renew, max_hold, bound, replicas)
        return Lock(self, terms, wait, release_after, on_loss, raise_lost)

    def activity(self) -> Activity:
        """For what is done one after the other: it enters again what it holds, and deadlocks are seen."""
        return Activity()

    async def connect(self) -> None:
        """Connects now instead of with the first lock, and says what is wrong."""
        await self._host().call(_Call(""), wire.CONNECT)

    async def info(self, key: Key) -> Dict[str, Any]:
        """What the server says of a lock: the fields of ``RLOCK.INFO``."""
        return common.described(await self._ask(key, ["RLOCK.INFO", key]))

    async def force(self, key: Key) -> bool:
        """Takes a lock away from whoever has it. True if somebody had it."""
        return bool(await self._ask(key, ["RLOCK.FORCE", key], True))

    async def metrics(self) -> Dict[str, int]:
        """What this client has counted in this event loop."""
        return common.metrics(await self._host().call(_Call(""), wire.METRICS))

    async def aclose(self, timeout: float = 5) -> None:
        """Releases what is held, ends what waits, and closes the connections of this event loop."""
        self._is_closed = True
        host = self._hosts.pop(asyncio.get_running_loop(), None)
        if host and not host.is_foreign:
            await host.close(timeout)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def _host(self) -> _Host:
        loop = asyncio.get_running_loop()
        host = self._hosts.get(loop)
        if host and not host.is_foreign:
            return host
        if self._is_closed:
            raise errors.Closed("the client has been closed")
        for other in [it for it in list(self._hosts) if it.is_closed()]:
            self._hosts.pop(other).is_foreign = True
        host = self._hosts[loop] = _Host(self._settings, loop)
        return host

    async def _ask(self, key: Key, words: List[Union[str, bytes]], changes: bool = False) -> Any:
        fields = common.question(common.key_bytes(key), words, changes)
        return common.answer(await self._host().call(_Call(""), wire.QUESTION, fields))


class Lock(common.LockBase):
    """A lock to acquire and release, any number of times. Each task that uses it has a hold of its own."""

    def __init__(
        self,
        client: Client,
        terms: Terms,
        wait: Optional[float],
        release_after: Optional[float],
        on_loss: Optional[Callable[[errors.Lost], Any]],
        raise_lost: bool,
    ) -> None:
        self._client, self._terms, self._wait, self._release_after = client, terms, wait, release_after
        self._on_loss, self._raise_lost = on_loss, raise_lost
        self._holds: "List[Tuple[weakref.ref[asyncio.Task[Any]], Hold]]" = []

    def _top(self) -> Optional[Hold]:
        """What this task has acquired last. Otherwise what a task did that has ended, as those of `asyncio.wait_for`
        do, or what the only one did."""
        current: "Optional[asyncio.Task[Any]]" = None
        try:
            current = asyncio.current_task()
        except RuntimeError:  # No loop runs in this thread.
            pass
        other: Optional[Hold] = None
        for reference, hold in self._holds[::-1]:
            task = reference()
            if task is not None and task is current:
                return hold
            if other is None and (task is None or task.done() or len(self._holds) == 1):
                other = hold
        return other

    async def acquire(self, blocking: bool = True, timeout: Optional[float] = None) -> bool:
        """False if it was not acquired in ``timeout`` seconds (by default ``wait``), or at once if not ``blocking``."""
        event = self._terms.event(common.wait_of(self._wait, blocking, timeout))
        task = asyncio.current_task()
        assert task
        hold = await self._client._host().call(_Call(str(self._terms), self._on_loss), wire.LOCK, event)
        if hold:
            self._holds.append((weakref.ref(task), hold))
        return bool(hold)

    async def release(self) -> None:
        """Raises `Lost` if it was lost before, unless ``raise_lost`` is false."""
        hold = self._hold
        self._holds = [it for it in self._holds if it[1] is not hold]
        hold.is_released = True
        if hold.host.is_foreign:
            return
        try:
            assert isinstance(hold.host, _Host)
            await hold.host.call(_Call(hold.text), *common.release_event(hold, self._release_after))
        except errors.Lost:
            if self._raise_lost:
                raise

    async def locked(self) -> bool:
        """Whether anybody holds it, as the server says."""
        modes = [(await self._client.info(key))["mode"] for key in self._terms.keys]
        return any(mode != "free" for mode in modes)

    async def owned(self) -> bool:
        """Whether it is held here, judged now."""
        return self.remaining > 0

    async def extend(self, lease: float) -> bool:
        """Has it last for at least so many seconds from now."""
        await self._change(wire.EXTEND, wire.number(common.millis("lease", lease)))
        return True

    async def downgrade(self) -> None:
        """Shares what is held alone."""
        await self._change(wire.DOWNGRADE)

    async def upgrade(self, wait: Optional[float] = None) -> bool:
        """Has alone what is shared. False if that did not come in ``wait`` seconds; it is shared as before then."""
        hold = self._hold
        call = _Call(hold.text, None, hold)
        return bool(await self._change(wire.UPGRADE, wire.number(common.millis("wait", wait)), call))

    async def _change(self, kind: int, fields: bytes = b"", call: Optional[_Call] = None) -> Any:
        hold = self._hold
        hold.check()
        assert isinstance(hold.host, _Host)
        return await hold.host.call(call or _Call(hold.text), kind, wire.number(hold.number) + fields)

    async def __aenter__(self) -> "Lock":
        if not await self.acquire():
            raise errors.NotAcquired(f"{self._terms}: not acquired within {self._wait} s")
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            await self.release()
        except errors.Error as failure:
            if error is None:
                raise
            log.warning("after another error: %s", failure)

    def __call__(self, function: F) -> F:
        """As a decorator of a coroutine function: each call has the lock."""

        @functools.wraps(function)
        async def locked(*arguments: Any, **named: Any) -> Any:
            about = (self._wait, self._release_after, self._on_loss, self._raise_lost)
            async with Lock(self._client, self._terms, *about):
                return await function(*arguments, **named)

        return locked  # type: ignore[return-value]
