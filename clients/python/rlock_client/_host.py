"""What both faces share: carries out what the engine says. It decides nothing about locks."""

import contextlib
import logging
import math
import os
import secrets
import socket
import ssl
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from . import _errors as errors
from . import _wire as wire
from ._engine import VERSION, Engine

__version__ = "0.1.0"
log = logging.getLogger("rlock_client")
Key = Union[str, bytes]
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING)
_LOSSES = ("its lease ended", "the server ended it", "it was released")


def millis(name: str, seconds: Optional[float]) -> int:
    """Seconds as the engine counts them; ``None`` is without limit."""
    if seconds is None or seconds == math.inf:
        return wire.NONE
    if not 0 <= seconds < 2**53:
        raise errors.OutOfRange(f"{name} is {seconds}, it must be a number of seconds, not below zero")
    return math.ceil(round(seconds * 1000, 3))


def whole(name: str, value: int, bits: int) -> int:
    if not 0 <= value < 2**bits:
        raise errors.OutOfRange(f"{name} is {value}, it must be from 0 to {2**bits - 1}")
    return value


def key_bytes(key: Key) -> bytes:
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"key is {key!r}, it must be a string or bytes")
    return key.encode() if isinstance(key, str) else key


class Settings:
    """Of a client; each of its hosts begins with them."""

    def __init__(
        self, url: str, name: str, tls: Optional[ssl.SSLContext], timeouts: Dict[str, Optional[float]]
    ) -> None:
        fields = [wire.text(it) for it in (url, name, "rlock-python", __version__)]
        limits = [wire.number(millis(name, timeout)) for name, timeout in timeouts.items()]
        self.begin, self.tls = wire.u32.pack(VERSION) + b"".join(fields + limits), tls
        self.engine()  # Says now what is wrong with them.

    def engine(self) -> Engine:
        try:
            return Engine(self.begin + secrets.token_bytes(32))
        except ValueError as error:
            raise errors.OutOfRange(str(error)) from None

    def context(self, how: int) -> Optional[ssl.SSLContext]:
        """For TLS, as an address of the engine has it."""
        if how not in (1, 2):
            return None
        if self.tls is None or how == 2:
            context = ssl.create_default_context()
            if how == 2:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                return context
            self.tls = context
        return self.tls


class Terms:
    """The event that asks for a lock, but for its number and its wait."""

    def __init__(
        self,
        keys: Union[Key, Sequence[Key]],
        shared: bool,
        limit: Optional[int],
        permits: int,
        activity: "Optional[Activity]",
        lease: float,
        renew: bool,
        max_hold: Optional[float],
        bound: Optional[float],
        replicas: int,
    ) -> None:
        if shared and limit is not None:
            raise errors.OutOfRange("shared and limit cannot be given both")
        self.keys = [key_bytes(it) for it in ([keys] if isinstance(keys, (str, bytes)) else keys)]
        self.activity = activity
        mode = 1 if shared else 0 if limit is None else 2
        self.before = b"".join(
            [wire.head(1 if activity else 0, activity.number if activity else 0), wire.text(""), wire.listed(self.keys)]
            + [bytes([mode]), wire.u32.pack(whole("permits", permits, 32))]
            + [wire.u32.pack(whole("limit", limit or 0, 32))]
        )
        self.after = b"".join(
            [wire.number(millis("lease", lease)), bytes([renew]), wire.number(millis("max_hold", max_hold))]
            + [wire.number(millis("bound", bound)), wire.u16.pack(whole("replicas", replicas, 16))]
        )

    def event(self, wait: int) -> bytes:
        return self.before + wire.number(wait) + self.after

    def __str__(self) -> str:
        return ", ".join(key.decode("utf-8", "backslashreplace") for key in self.keys)


class Activity:
    """An owner for what one activity does one after the other: it enters again what it holds, and deadlocks are seen."""

    last = 0

    def __init__(self) -> None:
        Activity.last += 1
        self.number = Activity.last


class Hold:
    """What was granted to one call."""

    def __init__(self, host: "Host", number: int, about: "Call", owner: str, fences: Dict[bytes, int]) -> None:
        self.host, self.number, self.text, self.on_loss = host, number, about.text, about.on_loss
        self.owner, self.fences = owner, fences
        self.loss: Optional[errors.Lost] = None
        self.is_released = False

    def remaining(self) -> float:
        if self.is_released or self.loss or self.host.is_foreign:
            return 0.0
        return self.host.engine.remaining(self.number, wire.now()) / 1e9

    def check(self) -> None:
        if self.remaining() <= 0:
            why = _LOSSES[2 if self.is_released else 0]
            if self.host.is_foreign:
                why = "it belongs to the process, or the event loop, that acquired it"
            raise self.loss or errors.Lost(f"{self.text}: the lock was lost: {why}")

    def __del__(self) -> None:
        if not (self.is_released or self.host.is_foreign or self.host.is_closed):
            log.warning("%s: a lock was forgotten while it was held; it is released", self.text)
            self.host.forgotten(self.number)


class Call:
    """Somebody waits for its end."""

    def __init__(self, text: str, on_loss: Optional[Callable[[Any], Any]] = None, hold: Optional[Hold] = None) -> None:
        self.text, self.on_loss, self.hold, self.number = text, on_loss, hold, 0
        self.is_done, self.value, self.error = False, None, None  # type: bool, Any, Optional[errors.Error]

    def finish(self, value: Any, error: Optional[errors.Error] = None) -> None:
        self.is_done, self.value, self.error = True, value, error
        self.wake()

    def wake(self) -> None:
        raise NotImplementedError

    def result(self) -> Any:
        if self.error:
            raise self.error
        return self.value


class Host:
    """One machine with its connections. A child of a fork gets one of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.engine, self.is_foreign, self.is_closed = settings, settings.engine(), False, False
        self.connections: Dict[int, Any] = {}
        self.calls: Dict[int, Call] = {}
        self.holds: "weakref.WeakValueDictionary[int, Hold]" = weakref.WeakValueDictionary()
        self.last = 0
        _hosts.add(self)

    # What a face has to say.
    def connect(self, connection: int, how: int, host: str, port: int) -> None:
        raise NotImplementedError

    def close_connection(self, connection: Any) -> None:
        raise NotImplementedError

    def wake_at(self, deadline: int) -> None:
        raise NotImplementedError

    def forgotten(self, guard: int) -> None:
        raise NotImplementedError

    def lost(self, hold: Hold) -> None:
        raise NotImplementedError

    def begin(self, call: Call, kind: int, fields: bytes = b"") -> None:
        if self.is_closed:
            raise errors.Closed("the client has been closed")
        self.last = call.number = self.last + 1
        self.calls[call.number] = call
        self.step(wire.head(kind, call.number) + fields)

    def give_up(self, call: Call) -> None:
        """Its caller does not wait any more, or could not take what it was granted."""
        if self.calls.pop(call.number, None):
            self.step(wire.head(wire.ABANDON, call.number))
        elif isinstance(call.value, Hold) and call.hold is None and not call.value.is_released:
            call.value.is_released = True
            self.step(wire.head(wire.UNTAKEN, call.value.number))

    def step(self, event: bytes) -> None:
        deadline, actions = wire.read(self.engine.handle(wire.now(), event))
        told = []
        for action in actions:
            if action[0] == 2:
                if action[1] in self.connections:
                    self.connections[action[1]].write(action[2])
            elif action[0] == 3:
                connection = self.connections.pop(action[1], None)
                if connection:
                    self.close_connection(connection)
            elif action[0] == 1:
                self.connect(*action[1:])
            else:
                told.append(action)
        self.wake_at(deadline)
        for action in told:
            self.tell(*action)

    def tell(self, kind: int, number: int, *rest: Any) -> None:
        if kind == 10:
            return log.log(_LEVELS[number], "%s", rest[0])
        if kind == 9:
            hold = self.holds.get(number)
            if hold and not hold.loss:
                hold.loss = errors.Lost(f"{hold.text}: the lock was lost: {_LOSSES[rest[0]]}")
                if rest[0] != 2:
                    self.lost(hold)
            return None
        call = self.calls.pop(number, None)
        if call is None:
            return self.step(wire.head(wire.UNTAKEN, rest[0])) if kind == 4 else None
        if kind == 4:
            guard, owner, fences = rest
            hold = call.hold or Hold(self, guard, call, owner, fences)
            hold.owner, hold.fences = owner, fences
            self.holds[guard] = hold
            return call.finish(hold)
        if kind == 7:
            return call.finish(None, errors.of(rest[0], f"{call.text}: {rest[1]}" if call.text else rest[1], rest[2]))
        return call.finish(rest[0] if kind == 8 else kind == 6)

    def ended(self, number: int, connection: Any, error: Optional[BaseException], where: str) -> None:
        """A connection could not be made, or is at its end."""
        if self.connections.get(number) is not connection or self.is_foreign:
            return
        del self.connections[number]
        self.close_connection(connection)
        why = 3 if isinstance(error, ssl.SSLCertVerificationError) else 1 if isinstance(error, (TimeoutError, socket.timeout)) else 0
        text = str(error or "the connection was closed")
        self.step(wire.head(wire.ENDED, number) + bytes([why]) + wire.text(f"{where}: {text}"))

    def forget_parent(self) -> None:
        """In the child of a fork: what the parent has is none of ours."""
        self.is_foreign = True
        for connection in self.connections.values():
            with contextlib.suppress(Exception):
                self.abandon_connection(connection)

    def abandon_connection(self, connection: Any) -> None:
        raise NotImplementedError


_hosts: "weakref.WeakSet[Host]" = weakref.WeakSet()


def _after_fork() -> None:
    for host in list(_hosts):
        host.forget_parent()
    _hosts.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class LockBase:
    """What every lock knows of what it holds."""

    _terms: Terms

    def _top(self) -> Optional[Hold]:
        raise NotImplementedError

    @property
    def _hold(self) -> Hold:
        hold = self._top()
        if hold is None:
            raise errors.Lost(f"{self._terms}: the lock is not held here")
        return hold

    def check(self) -> None:
        """Raises `Lost` unless it is held here, judged now."""
        self._hold.check()

    @property
    def remaining(self) -> float:
        """For how many seconds it is held if nothing is heard any more; 0 if it is not."""
        hold = self._top()
        return hold.remaining() if hold else 0.0

    @property
    def lost(self) -> bool:
        """Whether what was acquired here is lost."""
        return self._top() is not None and self.remaining == 0

    @property
    def fence(self) -> int:
        """Larger than that of every earlier holder. Send it along with each write."""
        return max(self._hold.fences.values())

    @property
    def fences(self) -> Dict[bytes, int]:
        """That of each key."""
        return dict(self._hold.fences)

    @property
    def owner(self) -> str:
        """Who holds it."""
        return self._hold.owner


def question(key: bytes, words: List[Union[str, bytes]], changes: bool) -> bytes:
    listed = wire.listed(key_bytes(it) for it in words)
    return wire.data(key) + listed + bytes([changes]) + wire.number(wire.NONE)


def answer(values: List[Any]) -> Any:
    if isinstance(values[0], Exception):
        raise errors.of("Refused", str(values[0]), False)
    return values[0]


def described(flat: Any) -> Dict[str, Any]:
    """What ``RLOCK.INFO`` says, by the names of its fields."""
    pairs = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2]))
    return {str(name): value for name, value in pairs.items()}


def metrics(values: List[int]) -> Dict[str, int]:
    return dict(zip(("grants", "waits", "losses", "late_renewals", "reconnects"), values))


def release_event(hold: Hold, least: Optional[float]) -> Tuple[int, bytes]:
    return wire.RELEASE, wire.number(hold.number) + wire.number(millis("release_after", least))


def wait_of(default: Optional[float], blocking: bool, timeout: Optional[float]) -> int:
    """As `threading.Lock.acquire` has it: a timeout of -1 is without limit."""
    wait = default if timeout is None else None if timeout == -1 else timeout
    return millis("timeout", wait) if blocking else 0
