"""Carries out the actions of the engine, for the APIs for threads and for asyncio. It decides nothing about locks."""

import collections
import contextlib
import functools
import inspect
import itertools
import logging
import math
import os
import secrets
import selectors
import socket
import ssl
import threading
import time
import weakref
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    SupportsFloat,
    SupportsIndex,
    Tuple,
    Union,
)

from . import _errors as errors
from . import _format as wire
from ._engine import Engine, __version__, read

log = logging.getLogger("rlock_client")
Key = Union[str, bytes]
_LEVELS = {
    wire.LEVEL_DEBUG: logging.DEBUG,
    wire.LEVEL_INFORMATION: logging.INFO,
    wire.LEVEL_WARNING: logging.WARNING,
}
_LOSSES = {
    wire.ENDING_LEASE_ENDED: "its lease ended",
    wire.ENDING_ENDED_BY_SERVER: "the server ended it",
    wire.ENDING_RELEASED: "it was released",
}
_BLOCKED = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# On Linux this clock also runs while the machine is suspended.
_clock = getattr(time, "CLOCK_BOOTTIME", None)


def is_interrupt(error: BaseException) -> bool:
    """Whether the handler of a signal may have raised it: such handlers run in the main thread only."""
    is_main = threading.get_ident() == threading.main_thread().ident
    return is_main and isinstance(error, (KeyboardInterrupt, SystemExit))


def write(level: int, text: str, *values: Any, with_error: bool = False) -> None:
    """Writes to the log. If a handler of the log raises, only this line is lost: nothing else depends on it."""
    try:
        log.log(level, text, *values, exc_info=with_error)
    except BaseException as error:
        if is_interrupt(error) or not isinstance(error, (Exception, SystemExit)):
            raise


def now() -> int:
    return time.monotonic_ns() if _clock is None else time.clock_gettime_ns(_clock)


ABSENT, ENDLESS = (None,), (None, math.inf)
SECONDS_MAX = 30 * 24 * 3600
CLOSING = "rlock-close"  # The name of threads that close connections.
RESPONSE = 5.0  # The response timeout of the engine, if none is given.


def millis(name: str, seconds: Optional[float], none: Sequence[Optional[float]] = ()) -> int:
    """Seconds as the engine's milliseconds. The values in ``none`` mean no limit, or no time at all."""
    if seconds in none:
        return wire.NONE
    text = f"{name} is {seconds!r}, it must be a number of seconds from 0 to {SECONDS_MAX}"
    # The protocol comes last, because a check of it takes 7 µs.
    if isinstance(seconds, bool) or not isinstance(seconds, (float, int, SupportsFloat)):
        raise TypeError(text)
    try:
        number = float(seconds)
    except OverflowError:
        raise errors.OutOfRange(text) from None
    if not 0 <= number <= SECONDS_MAX:
        raise errors.OutOfRange(text)
    return math.ceil(round(number * 1000, 3))


def count(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, SupportsIndex)) or not least <= value <= most:
        raise errors.OutOfRange(f"{name} is {value!r}, it must be a whole number from {least} to {most}")


def utf8(name: str, value: Any) -> bytes:
    """The text's bytes. The errors do not show it, because it may be secret."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is of the type {type(value).__name__}, it must be a string")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise errors.OutOfRange(f"{name} is text with a surrogate, it must be text that UTF-8 can encode") from None


class Occurrence(NamedTuple):
    """What has happened to a call, a hold or a connection: docs/telemetry.md has a table of the kinds and outcomes. Its
    ``repr`` leaves out the keys, which may be secret."""

    kind: str
    outcome: str
    """How a wait or a hold ended; otherwise empty."""
    duration: float
    """In seconds."""
    keys: Tuple[bytes, ...]
    text: str
    """The address of a server, or its error."""

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self._asdict().items() if name != "keys"]
        return f"Occurrence({', '.join(shown)})"


Listener = Callable[[Occurrence], Any]


class Settings:
    """The settings of a client or a quorum, for each of its hosts."""

    def __init__(
        self,
        urls: Sequence[str],
        together: int,
        name: str,
        tls: Optional[ssl.SSLContext],
        listener: Optional[Listener],
        **timeouts: Optional[float],
    ) -> None:
        if listener is not None and (not callable(listener) or inspect.iscoroutinefunction(listener)):
            raise TypeError(f"listener is {listener!r}, it must be a function, and no coroutine function")
        if tls is not None and not callable(getattr(tls, "wrap_socket", None)):
            raise TypeError(f"tls is {tls!r}, it must be an ssl.SSLContext")
        utf8("name", name)
        response, retry, replication = [millis(name, timeout, ABSENT) for name, timeout in timeouts.items()]
        # After this time the engine gives up an attempt to connect.
        self.response = RESPONSE if response == wire.NONE else response / 1000
        servers = [utf8("url", url) for url in urls], together
        begin = functools.partial(wire.configuration, wire.VERSION, *servers, name, "rlock-python", __version__)
        self.configuration = functools.partial(begin, response, retry, replication, listener is not None)
        self.tls, self.listener = tls, listener
        self.engine()  # Raises an error now if the settings are invalid.

    def engine(self) -> Engine:
        try:
            return Engine(self.configuration(secrets.token_bytes(32)))
        except ValueError as error:
            raise errors.OutOfRange(str(error)) from None

    def context(self, how: int) -> Optional[ssl.SSLContext]:
        """The TLS context for an address of the engine."""
        if how not in (wire.TRANSPORT_TLS, wire.TRANSPORT_INSECURE):
            return None
        if self.tls is None or how == wire.TRANSPORT_INSECURE:
            context = ssl.create_default_context()
            if how == wire.TRANSPORT_INSECURE:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                return context
            self.tls = context
        return self.tls


class Activity:
    """An owner for sequential work: it re-enters its locks, and the server detects deadlocks."""

    numbers = itertools.count(1)  # Its next number is taken in one step, whatever other threads do.

    def __init__(self) -> None:
        self.number = next(Activity.numbers)


def named(keys: Sequence[bytes]) -> str:
    return ", ".join(key.decode("utf-8", "backslashreplace") for key in keys)


class Hold:
    """The hold that was granted to one call."""

    def __init__(self, host: "Host", number: int, about: "Call") -> None:
        self.host, self.number, self.keys = host, number, about.keys
        self.on_loss, self.on_risk = about.on_loss, about.on_risk
        self.owner, self.fences = "", {}  # type: str, Dict[bytes, int]
        self.loss: Optional[errors.Lost] = None  # Or the end of its client.
        self.is_lost = False
        self.is_released, self.is_of_block, self.permits = False, False, 1
        # Its thread can take it again, if an exception from a signal handler has left it locked.
        self.lock = threading.RLock()

    def take(self, permits: Optional[int]) -> Optional[bool]:
        """Takes permits out of the hold, or all that it still has. True if none is left: the hold is released. ``None``
        if it was released before."""
        with self.lock:
            if self.is_released:
                return None
            if permits is not None:
                count("permits", permits, 1, self.permits)
                self.permits -= int(permits)
            self.is_released = permits is None or self.permits == 0
            return self.is_released

    def remaining(self) -> float:
        if self.is_released or self.loss or self.host.is_foreign:
            return 0.0
        return self.host.engine.remaining(self.number, now()) / 1e9

    def lost(self, why: str) -> errors.Lost:
        return errors.Lost(f"{named(self.keys)}: the lock was lost: {why}")

    def check(self) -> None:
        if self.remaining() <= 0:
            why = _LOSSES[wire.ENDING_RELEASED if self.is_released else wire.ENDING_LEASE_ENDED]
            if self.host.is_foreign:
                why = "it belongs to the process, or the event loop, that acquired it"
            raise self.loss or self.lost(why)

    def __del__(self) -> None:
        host = self.host
        host.holds.pop(self.number, None)
        if not (self.is_released or host.is_foreign or host.is_closed):
            host.post(functools.partial(host.step, wire.leave(self.number)))
            if not self.loss:
                text = "%s: a lock was garbage-collected, or its thread ended, while it was held; it is released"
                write(logging.WARNING, text, named(self.keys))


class Call:
    """A call that a thread or a task waits for."""

    is_observer = False

    def __init__(
        self,
        keys: Sequence[bytes] = (),
        on_loss: Optional[Callable[[errors.Lost], Any]] = None,
        on_risk: Optional[Callable[[float], Any]] = None,
        hold: Optional[Hold] = None,
    ) -> None:
        self.keys, self.on_loss, self.on_risk, self.hold, self.number = keys, on_loss, on_risk, hold, 0
        self.is_upgraded = False
        self.is_done, self.value, self.error = False, None, None  # type: bool, Any, Optional[errors.Error]
        # If nobody waits for the call, nothing is woken.
        self.wake: Callable[[], None] = lambda: None

    def leader_changed(self, leader: Any, missed: bool) -> None:
        """Takes a new leader. An observer receives any number of them before its end."""
        raise NotImplementedError

    def finish(self, value: Any, error: Optional[errors.Error] = None) -> None:
        self.is_done, self.value, self.error = True, value, error
        self.wake()

    def result(self) -> Any:
        if self.error:
            raise self.error
        return self.value


class Connection:
    """A non-blocking socket. A separate thread connects it."""

    def __init__(self, host: "Host", number: int, how: int, place: str, port: int) -> None:
        self.host, self.number, self.how, self.place, self.port = host, number, how, place, port
        self.socket: Optional[socket.socket] = None
        self.output, self.mask = b"", 0

    @property
    def is_current(self) -> bool:
        return self.host.connections.get(self.number) is self

    def dial(self) -> None:
        made: Optional[socket.socket] = None
        try:
            if self.how == wire.TRANSPORT_UNIX:
                made = socket.socket(socket.AF_UNIX)
                made.settimeout(self.host.settings.response)
                made.connect(self.place)
            else:
                made = socket.create_connection((self.place, self.port), self.host.settings.response)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self.host.settings.context(self.how)
            if context:
                made = context.wrap_socket(made, server_hostname=self.place)
            made.setblocking(False)
        except Exception as error:  # Every kind is reported.
            if made:
                made.close()
            self.host.post(functools.partial(self.ended, error))
        else:
            self.host.post(functools.partial(self.opened, made))

    def opened(self, made: socket.socket) -> None:
        if not self.is_current:
            return made.close()
        self.socket = made
        self.host.writing.add(self)
        self.host.step(wire.opened(self.number))

    def send(self) -> None:
        if self.socket is None or not self.is_current:
            return
        try:
            if self.output:
                self.output = self.output[self.socket.send(self.output) :]
        except _BLOCKED:
            pass
        except OSError as error:
            return self.ended(error)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.output else 0)
        if wanted != self.mask:
            self.host.watch(self, self.socket, wanted)
            self.mask = wanted

    def receive(self) -> None:
        data, error = b"", None  # type: bytes, Optional[OSError]
        try:
            assert self.socket
            data = self.socket.recv(65536)
            while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
                data += self.socket.recv(65536)
        except _BLOCKED:
            return
        except OSError as failure:
            error = failure
        if data:
            self.host.step(wire.received(self.number, data))
        else:
            self.ended(error)

    def ended(self, error: Optional[Exception]) -> None:
        """The connection could not be opened, or it has ended."""
        if not self.is_current or self.host.is_foreign:
            return
        self.host.connections.pop(self.number).close()
        late = isinstance(error, (TimeoutError, socket.timeout))
        why = wire.FAULT_TIME if late else wire.FAULT_IO
        if isinstance(error, ssl.SSLCertVerificationError):
            why = wire.FAULT_CERTIFICATE
        where = self.place if self.how == wire.TRANSPORT_UNIX else f"{self.place}:{self.port}"
        self.host.step(wire.ended(self.number, why, f"{where}: {error or 'the connection was closed'}"))

    def close(self) -> None:
        if not self.socket:
            return
        with contextlib.suppress(OSError):
            if self.output:
                self.output = self.output[self.socket.send(self.output) :]
        if self.mask:
            self.host.watch(self, self.socket, 0)
        if not self.host.is_hurried:
            return self.socket.close()
        try:
            threading.Thread(target=self.leave, name=CLOSING, daemon=False).start()
        except RuntimeError:  # The interpreter ends.
            self.leave()

    def leave(self) -> None:
        """Writes the releases, and waits for at most a second until the server has read them: it would drop those that it
        has not read when it cannot send an answer, because the socket is closed here."""
        end = time.monotonic() + 1
        with contextlib.suppress(OSError, ValueError):  # No time is left.
            assert self.socket
            self.socket.settimeout(end - time.monotonic())
            self.socket.sendall(self.output)
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(65536):
                self.socket.settimeout(end - time.monotonic())
        if self.socket:
            self.socket.close()


class Host:
    """One engine with its connections. A child of a fork creates its own host."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.engine, self.is_foreign, self.is_closed = settings, settings.engine(), False, False
        self.connections: Dict[int, Connection] = {}
        self.writing: Set[Connection] = set()
        self.calls: Dict[int, Call] = {}
        self.reports: Deque[Any] = collections.deque()
        self.holds: Dict[int, "weakref.ref[Hold]"] = {}
        self.last, self.deadline = 0, wire.NONE
        self.is_hurried = False
        """Whether it closes its connections before the servers have answered all releases."""

    # The API for threads or for asyncio implements these.
    async def call(self, call: Call, event: Callable[..., bytes], *fields: Any) -> Any:
        raise NotImplementedError

    def post(self, work: Callable[[], None]) -> None:
        """Runs ``work`` soon. Any thread may call this at any time, and destructors may too."""
        raise NotImplementedError

    def watch(self, connection: Connection, of: socket.socket, mask: int) -> None:
        raise NotImplementedError

    def stepped(self) -> None:
        """Sets the timer to the deadline, writes the pending output, and notifies callers."""
        raise NotImplementedError

    def tell(self, what: str, callback: Callable[[Any], Any], value: Any) -> None:
        """Calls a callback of a lock, which may take long. What it raises is logged."""
        raise NotImplementedError

    def begin(self, call: Call, event: Callable[..., bytes], *fields: Any) -> None:
        if self.is_closed:
            return call.finish(None, errors.Closed("the client has been closed"))
        self.last = call.number = self.last + 1
        self.calls[call.number] = call
        self.step(event(call.number, *fields))

    def give_up(self, call: Call) -> None:
        """Abandons a call that nobody waits for any more, or whose caller could not take the grant."""
        if self.calls.pop(call.number, None):
            self.step(wire.abandon(call.number))
        elif isinstance(call.value, Hold) and not call.value.is_released:
            if call.hold is None:
                call.value.is_released = True
                self.step(wire.untaken(call.value.number))
            elif call.is_upgraded:
                self.begin(Call(), wire.downgrade, call.value.number)

    def step(self, event: bytes) -> None:
        self.deadline, actions = read(self.engine.handle(now(), event))
        for action in actions:
            kind, number = action[:2]
            if kind == wire.WRITE:
                connection = self.connections.get(number)
                if connection:  # All output of one turn is sent together.
                    connection.output += action[2]
                    self.writing.add(connection)
            elif kind == wire.CLOSE:
                connection = self.connections.pop(number, None)
                if connection:
                    connection.close()
            elif kind == wire.CONNECT:
                self.connect(Connection(self, *action[1:]))
            else:
                self.reports.append(action)
        self.stepped()

    def connect(self, connection: Connection) -> None:
        self.connections[connection.number] = connection
        try:
            # In a separate thread: a name look-up may take long, and must not end with a caller.
            threading.Thread(target=connection.dial, name="rlock-connect", daemon=True).start()
        except RuntimeError as error:
            self.post(functools.partial(connection.ended, error))

    def report(self, kind: int, number: int, *rest: Any) -> None:
        if kind == wire.NOTE:
            return write(_LEVELS[number], "%s", rest[0])
        if kind == wire.OCCURRED:
            return self.occurred(number, *rest)
        if kind == wire.OVER:
            hold = self.hold(number)
            if hold and not hold.loss:
                hold.loss, hold.is_lost = hold.lost(_LOSSES[rest[0]]), rest[0] != wire.ENDING_RELEASED
                if hold.is_lost and hold.on_loss:
                    self.tell(f"on_loss of {hold.loss}", hold.on_loss, hold.loss)
            return None
        call = self.calls.get(number)
        if kind == wire.LEADER and call and call.is_observer:
            return call.leader_changed(*rest)
        self.calls.pop(number, None)
        if call is None:
            return self.step(wire.untaken(rest[0])) if kind == wire.GRANTED else None
        if kind == wire.GRANTED:
            hold = call.hold or Hold(self, rest[0], call)
            call.is_upgraded = hold.fences != rest[2]  # An exclusive hold stays as it is.
            hold.owner, hold.fences = rest[1:]
            self.holds[rest[0]] = weakref.ref(hold)
            return call.finish(hold)
        if kind == wire.FAILED:
            text = f"{named(call.keys)}: {rest[1]}" if call.keys else rest[1]
            return call.finish(None, errors.of(rest[0], text, rest[2]))
        return call.finish(rest[0] if kind in (wire.ANSWERED, wire.LEADER) else kind == wire.DONE)

    def hold(self, number: int) -> Optional[Hold]:
        reference = self.holds.get(number)
        return reference() if reference else None

    def occurred(self, number: int, kind: str, outcome: str, nanos: int, keys: Sequence[bytes], text: str) -> None:
        if self.settings.listener is not None:
            try:
                self.settings.listener(Occurrence(kind, outcome, nanos / 1e9, tuple(keys), text))
            except BaseException as error:
                if is_interrupt(error):
                    raise
                write(logging.ERROR, "listener", with_error=True)
        hold = self.hold(number) if kind == "at_risk" else None
        if hold and hold.on_risk and not hold.is_released:
            self.tell(f"on_risk of {named(hold.keys)}", hold.on_risk, nanos / 1e9)

    def flush(self) -> None:
        while self.writing:
            self.writing.pop().send()

    def end(self) -> None:
        """Closes the connections, and ends the calls that still wait."""
        for connection in list(self.connections.values()):
            connection.close()
        self.connections.clear()
        for call in list(self.calls.values()):
            call.finish(None, errors.Closed("the client has been closed"))
        self.calls.clear()

    def forget(self) -> None:
        """Closes the connections that nobody serves: those of the parent in the child of a fork, or of an event loop that is
        closed."""
        self.is_foreign = True
        for connection in self.connections.values():
            if connection.socket:  # It stays registered: the parent uses the same selector, a closed loop has none.
                with contextlib.suppress(Exception):
                    connection.socket.close()


# A host adds itself once it is complete.
_hosts: "weakref.WeakSet[Host]" = weakref.WeakSet()


def _after_fork() -> None:
    for host in list(_hosts):
        host.is_foreign = True
    for host in list(_hosts):
        with contextlib.suppress(Exception):  # The others too must be forgotten.
            host.forget()
    _hosts.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
