"""For threads, and for gevent: one thread for each client has its sockets and its timer."""

import atexit
import collections
import contextlib
import functools
import os
import selectors
import socket
import ssl
import threading
import weakref
from types import TracebackType
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Type, TypeVar, Union

from . import _errors as errors
from . import _host as common
from . import _wire as wire
from ._host import Activity, Call, Hold, Key, Terms, log

F = TypeVar("F", bound=Callable[..., Any])
_BLOCKED = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Call(Call):
    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.gate = threading.Lock()
        self.gate.acquire()
        self.wake = self.gate.release  # type: ignore[method-assign]


class _Connection:
    def __init__(self, host: "_Host", number: int, where: str) -> None:
        self.host, self.number, self.where = host, number, where
        self.socket: Optional[socket.socket] = None
        self.output, self.mask = b"", 0

    def write(self, data: bytes) -> None:
        # What is said in one turn goes in one piece.
        self.output += data
        self.host.writing.add(self)

    def send(self) -> None:
        if self.host.connections.get(self.number) is not self:
            return
        try:
            if self.socket and self.output:
                self.output = self.output[self.socket.send(self.output) :]
        except _BLOCKED:
            pass
        except OSError as error:
            self.host.ended(self.number, self, error, self.where)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.output else 0)
        if self.socket is None or wanted == self.mask:
            return
        if self.mask:
            self.host.selector.modify(self.socket, wanted, self)
        else:
            self.host.selector.register(self.socket, wanted, self)
        self.mask = wanted

    def receive(self) -> None:
        data, error = b"", None  # type: bytes, Optional[OSError]
        try:
            assert self.socket
            data = self.socket.recv(262144)
            while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
                data += self.socket.recv(262144)
        except _BLOCKED:
            return
        except OSError as failure:
            error = failure
        if data:
            self.host.step(wire.received(wire.RECEIVED, self.number, len(data)) + data)
        else:
            self.host.ended(self.number, self, error, self.where)


class _Host(common.Host):
    def __init__(self, settings: common.Settings) -> None:
        super().__init__(settings)
        self.selector, self.is_asleep = selectors.DefaultSelector(), False
        self.posts: Deque[Callable[[], None]] = collections.deque()
        self.writing: Set[_Connection] = set()
        self.losses: Deque[Hold] = collections.deque()
        self.telling, self.is_telling, self.is_stopped = threading.Lock(), False, False
        self.deadline, self.stop_at = wire.NONE, wire.NONE
        self.bell, self.ear = socket.socketpair()
        for each in (self.bell, self.ear):
            each.setblocking(False)
        self.selector.register(self.ear, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self.run, name="rlock", daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.turn()
        except Exception:
            log.critical("the client ends by an error of its own", exc_info=True)
        finally:
            self.stop()

    def turn(self) -> None:
        """The only one inside the machine. A signal's exception, which can meet the main thread between any two steps,
        so does it no harm."""
        events: List[Any] = []
        while True:
            self.is_asleep = False
            for key, mask in events:
                if key.data is None:
                    self.ear.recv(4096)
                    continue
                connection: _Connection = key.data
                if self.connections.get(connection.number) is connection:
                    if mask & selectors.EVENT_WRITE:
                        self.writing.add(connection)
                    connection.receive()
            if wire.now() >= self.deadline:
                self.step(bytes([wire.TICK]))
            while self.posts:
                self.posts.popleft()()
            while self.writing:
                self.writing.pop().send()
            now = wire.now()
            if now >= self.stop_at:
                return self.step(bytes([wire.CLOSED]))
            self.is_asleep = True
            due = 0 if self.posts else min(self.deadline, self.stop_at) - now
            events = self.selector.select(min(max(0, due) / 1e9, 3600))

    def stop(self) -> None:
        self.is_closed = self.is_stopped = True
        for connection in list(self.connections.values()):
            self.close_connection(connection)
        self.connections.clear()
        while self.posts:
            self.posts.popleft()()
        for call in list(self.calls.values()):
            call.finish(None, errors.Closed("the client has been closed"))
        self.calls.clear()
        for each in (self.selector, self.bell, self.ear):
            each.close()

    def post(self, work: Callable[[], None]) -> None:
        """Has the thread do it. May be called at any time, also by a destructor."""
        self.posts.append(work)
        if self.is_asleep:
            self.is_asleep = False
            with contextlib.suppress(OSError):
                self.bell.send(b"!")

    def wake_at(self, deadline: int) -> None:
        self.deadline = deadline

    def connect(self, connection: int, how: int, host: str, port: int) -> None:
        it = self.connections[connection] = _Connection(self, connection, host if how == 3 else f"{host}:{port}")
        try:
            threading.Thread(target=self.dial, args=(it, how, host, port), name="rlock-connect", daemon=True).start()
        except RuntimeError as error:
            self.post(functools.partial(self.ended, connection, it, error, it.where))

    def dial(self, it: _Connection, how: int, host: str, port: int) -> None:
        made: Optional[socket.socket] = None
        try:
            if how == 3:
                made = socket.socket(socket.AF_UNIX)
                made.connect(host)
            else:
                made = socket.create_connection((host, port), timeout=30)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self.settings.context(how)
            if context:
                made = context.wrap_socket(made, server_hostname=host)
            made.setblocking(False)
        except Exception as error:  # Of whatever kind: it is told.
            if made:
                made.close()
            self.post(functools.partial(self.ended, it.number, it, error, it.where))
        else:
            self.post(functools.partial(self.opened, it, made))

    def opened(self, it: _Connection, made: socket.socket) -> None:
        if self.connections.get(it.number) is not it:
            return made.close()
        it.socket = made
        self.writing.add(it)
        self.step(wire.head(wire.OPENED, it.number))

    def close_connection(self, connection: _Connection) -> None:
        if connection.socket:
            with contextlib.suppress(OSError):
                if connection.output:
                    connection.socket.send(connection.output)
            if connection.mask:
                self.selector.unregister(connection.socket)
            connection.socket.close()

    def abandon_connection(self, connection: _Connection) -> None:
        # Not unregistered: the parent's selector is the same one.
        if connection.socket:
            connection.socket.close()

    def forget_parent(self) -> None:
        for each in (self.selector, self.bell, self.ear):
            each.close()
        super().forget_parent()

    def forgotten(self, guard: int) -> None:
        self.post(lambda: self.step(wire.head(wire.LEAVE, guard)))

    def lost(self, hold: Hold) -> None:
        if hold.on_loss is None:
            return
        self.losses.append(hold)
        with self.telling:
            if self.is_telling:
                return
            self.is_telling = True
            try:
                threading.Thread(target=self.tell_losses, name="rlock-loss", daemon=True).start()
            except RuntimeError:
                self.is_telling = False
                log.exception("no thread can be started to tell of a loss: %s", hold.text)

    def tell_losses(self) -> None:
        while True:
            with self.telling:
                if not self.losses:
                    self.is_telling = False
                    return
                hold = self.losses.popleft()
            try:
                assert hold.on_loss
                hold.on_loss(hold.loss)
            except Exception:
                log.exception("on_loss of %s", hold.text)

    def start(self, call: Call, kind: int, fields: bytes) -> None:
        try:
            self.begin(call, kind, fields)
        except errors.Closed as error:
            call.finish(None, error)

    def call(self, call: _Call, kind: int, fields: bytes, take: Callable[[Any], None] = lambda value: None) -> Any:
        try:
            self.post(functools.partial(self.start, call, kind, fields))
            if self.is_stopped:
                raise errors.Closed("the client has been closed")
            call.gate.acquire()
            value = call.result()
            take(value)
            return value
        except errors.Error:
            raise
        except BaseException:
            self.post(functools.partial(self.give_up, call))
            raise

    def close(self, timeout: float) -> None:
        self.post(functools.partial(self.leave_all, timeout))

    def leave_all(self, timeout: float) -> None:
        if not self.is_closed:
            self.stop_at = wire.now() + int(timeout * 1e9)
            flush = _Call("")
            flush.wake = lambda: setattr(self, "stop_at", 0)  # type: ignore[method-assign]
            self.step(bytes([wire.LEAVE_ALL]))
            self.begin(flush, wire.FLUSH)
            self.is_closed = True


def _close_all() -> None:
    open_hosts = [host for host in list(common._hosts) if isinstance(host, _Host) and host.thread.is_alive()]
    for host in open_hosts:
        host.close(1)
    for host in open_hosts:
        host.thread.join(2)


atexit.register(_close_all)


class Client:
    """Locks of one server, cluster or group of Sentinels. Threads share it."""

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
        self._current: Optional[_Host] = None
        self._making = threading.Lock()
        self._is_closed = False
        _clients.add(self)

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
        thread_local: bool = True,
    ) -> "Lock":
        """A lock, which is not acquired yet: see the table of options in README."""
        common.millis("wait", wait)
        common.millis("release_after", release_after)
        terms = Terms(keys, shared, limit, permits, activity, lease, renew, max_hold, bound, replicas)
        return Lock(self, terms, wait, release_after, on_loss, raise_lost, thread_local)

    def activity(self) -> Activity:
        """For what is done one after the other: it enters again what it holds, and deadlocks are seen."""
        return Activity()

    def connect(self) -> None:
        """Connects now instead of with the first lock, and says what is wrong."""
        self._call(_Call(""), wire.CONNECT)

    def info(self, key: Key) -> Dict[str, Any]:
        """What the server says of a lock: the fields of ``RLOCK.INFO``."""
        return common.described(self._ask(key, ["RLOCK.INFO", key]))

    def force(self, key: Key) -> bool:
        """Takes a lock away from whoever has it. True if somebody had it."""
        return bool(self._ask(key, ["RLOCK.FORCE", key], True))

    def metrics(self) -> Dict[str, int]:
        """What this client has counted."""
        return common.metrics(self._call(_Call(""), wire.METRICS))

    def close(self, timeout: float = 5) -> None:
        """Releases what is held, ends what waits, and closes the connections."""
        with self._making:
            host, self._is_closed = self._current, True
        if host and not host.is_foreign:
            host.close(timeout)
            host.thread.join(timeout + 1)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        host = getattr(self, "_current", None)
        if host and not host.is_foreign:
            host.close(5)

    def _host(self) -> _Host:
        host = self._current
        if host and not host.is_foreign:
            return host
        with self._making:
            if self._is_closed:
                raise errors.Closed("the client has been closed")
            if self._current is None or self._current.is_foreign:
                self._current = _Host(self._settings)
            return self._current

    def _call(self, call: _Call, kind: int, fields: bytes = b"") -> Any:
        return self._host().call(call, kind, fields)

    def _ask(self, key: Key, words: List[Union[str, bytes]], changes: bool = False) -> Any:
        fields = common.question(common.key_bytes(key), words, changes)
        return common.answer(self._call(_Call(""), wire.QUESTION, fields))


_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._making = threading.Lock()  # Another thread may have had it.


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Shared:
    holds: List[Hold]


class _OfThread(threading.local, _Shared):
    pass


class Lock(common.LockBase):
    """A lock to acquire and release, any number of times. Each thread that uses it has a hold of its own."""

    def __init__(
        self,
        client: Client,
        terms: Terms,
        wait: Optional[float],
        release_after: Optional[float],
        on_loss: Optional[Callable[[errors.Lost], Any]],
        raise_lost: bool,
        thread_local: bool,
    ) -> None:
        self._client, self._terms, self._wait, self._release_after = client, terms, wait, release_after
        self._on_loss, self._raise_lost, self._thread_local = on_loss, raise_lost, thread_local
        self._mine: _Shared = _OfThread() if thread_local else _Shared()

    @property
    def _holds(self) -> List[Hold]:
        holds = getattr(self._mine, "holds", None)
        if holds is None:
            holds = self._mine.holds = []
        return holds

    def _top(self) -> Optional[Hold]:
        holds = self._holds
        return holds[-1] if holds else None

    def acquire(self, blocking: bool = True, timeout: Optional[float] = None) -> bool:
        """False if it was not acquired in ``timeout`` seconds (by default ``wait``), or at once if not ``blocking``."""
        event = self._terms.event(common.wait_of(self._wait, blocking, timeout))
        holds = self._holds
        call = _Call(str(self._terms), self._on_loss)
        try:
            return bool(self._client._host().call(call, wire.LOCK, event, lambda it: holds.append(it) if it else None))
        except BaseException:
            holds[:] = [hold for hold in holds if not hold.is_released]  # It may have come in the moment of the error.
            raise

    def release(self) -> None:
        """Raises `Lost` if it was lost before, unless ``raise_lost`` is false."""
        hold = self._hold
        self._holds.pop()
        hold.is_released = True
        if hold.host.is_foreign:
            return
        try:
            assert isinstance(hold.host, _Host)
            hold.host.call(_Call(hold.text), *common.release_event(hold, self._release_after))
        except errors.Lost:
            if self._raise_lost:
                raise

    def locked(self) -> bool:
        """Whether anybody holds it, as the server says."""
        return any(self._client.info(key)["mode"] != "free" for key in self._terms.keys)

    def owned(self) -> bool:
        """Whether it is held here, judged now."""
        return self.remaining > 0

    def extend(self, lease: float) -> bool:
        """Has it last for at least so many seconds from now."""
        self._change(wire.EXTEND, wire.number(common.millis("lease", lease)))
        return True

    def downgrade(self) -> None:
        """Shares what is held alone."""
        self._change(wire.DOWNGRADE)

    def upgrade(self, wait: Optional[float] = None) -> bool:
        """Has alone what is shared. False if that did not come in ``wait`` seconds; it is shared as before then."""
        hold = self._hold
        call = _Call(hold.text, None, hold)
        return bool(self._change(wire.UPGRADE, wire.number(common.millis("wait", wait)), call))

    def _change(self, kind: int, fields: bytes = b"", call: Optional[_Call] = None) -> Any:
        hold = self._hold
        hold.check()
        assert isinstance(hold.host, _Host)
        return hold.host.call(call or _Call(hold.text), kind, wire.number(hold.number) + fields)

    def __enter__(self) -> "Lock":
        if not self.acquire():
            raise errors.NotAcquired(f"{self._terms}: not acquired within {self._wait} s")
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self.release()
        except errors.Error as failure:
            if error is None:
                raise
            log.warning("after another error: %s", failure)

    def __call__(self, function: F) -> F:
        """As a decorator: each call has the lock."""

        @functools.wraps(function)
        def locked(*arguments: Any, **named: Any) -> Any:
            with self._copy():
                return function(*arguments, **named)

        return locked  # type: ignore[return-value]

    def _copy(self) -> "Lock":
        about = (self._wait, self._release_after, self._on_loss, self._raise_lost, self._thread_local)
        return Lock(self._client, self._terms, *about)
