"""Elections: the part that the APIs for threads and for asyncio share."""

import collections
import functools
import threading
from typing import Any, Callable, Coroutine, Deque, Dict, Generic, NamedTuple, Optional, Tuple, Type, TypeVar

from . import _errors as errors
from . import _format as wire
from ._base import ClientBase, LockBase, Value, key_bytes, value_bytes
from ._host import Call, Host, Key

CHANGES_MAX = 1024
FOREIGN = "it belongs to the process, or the event loop, that observes"
M = TypeVar("M", bound="LeadershipBase")


class Proclaimed(NamedTuple):
    """What a leader has published."""

    fence: int
    """Larger than the fence of every earlier leader."""
    value: bytes
    """0 to 1024 bytes."""


class Leader(NamedTuple):
    """The current leader, according to the server."""

    fence: int
    value: bytes
    owner: str
    time_left: float
    """The seconds until its leadership ends unless it is renewed."""


class Change(NamedTuple):
    """A new leader, as an observer receives it."""

    leader: Optional[Proclaimed]
    """``None`` if nobody leads."""
    missed: bool
    """Whether the observer may have missed leaders since the last change. This happens if there was no connection, or
    if it did not take its changes in time."""


class Observer(Call):
    """Receives each change from its host, and keeps changes until they are taken. The host never waits for those who take
    them, because an exception from a signal handler may interrupt them at any point."""

    is_observer = True

    def __init__(self, key: bytes, wake: Callable[[], None]) -> None:
        super().__init__([key])
        # Each change with its number. The oldest is dropped if there are too many.
        self._untaken: Deque[Tuple[int, Change]] = collections.deque(maxlen=CHANGES_MAX)
        self._received, self._taken, self._taking = 0, 0, threading.RLock()
        self.wake, self.is_closed = wake, False

    def leader_changed(self, leader: Optional[Tuple[int, bytes, str, Optional[float]]], missed: bool) -> None:
        self._received += 1
        self._untaken.append((self._received, Change(leader and Proclaimed(*leader[:2]), missed)))
        self.wake()

    def take(self, host: Host) -> Optional[Change]:
        """The next change; ``None`` if the caller must wait for it."""
        if host.is_foreign:
            raise errors.Closed(FOREIGN)
        is_done = self.is_done  # Before the changes, as it comes after the last of them.
        with self._taking:
            if self._untaken:
                number, change = self._untaken.popleft()
                is_next, self._taken = number == self._taken + 1, number
                return change if is_next else change._replace(missed=True)
        return self.result() if is_done else None

    def close(self) -> None:
        self.is_closed = True
        self.wake()


class ChangesBase:
    """An observer, from its first request until it is closed or garbage-collected."""

    _is_left = True  # Until it begins.

    def __init__(self, client: ClientBase[Any, Any], key: bytes, wake: Callable[[], None]) -> None:
        # A client that is garbage-collected ends its observers.
        self._client, self._host, self._observer = client, client._host(), Observer(key, wake)
        self._is_left = False

    def close(self) -> None:
        """Ends the observer. A thread or task that waits for a change stops waiting."""
        self._observer.close()
        self._leave()

    def _leave(self) -> None:
        if not self._is_left:
            self._is_left = True
            if not self._host.is_foreign:
                self._host.post(functools.partial(self._host.give_up, self._observer))

    def __del__(self) -> None:
        self._leave()  # It may run at any point of the program, so it takes no lock.


class LeadershipBase(LockBase):
    def proclaim(self, value: Value) -> Coroutine[Any, Any, Any]:
        """Publishes another value, which observers receive under the same fence. Raises `Lost`; `OutOfRange` for more
        than 1024 bytes; or `Unavailable`, after which either value may be published."""
        return self._change(self._holds, wire.proclaim, value_bytes(value))

    def resign(self) -> Coroutine[Any, Any, None]:
        """Ends the leadership: the same as ``release``."""
        return self.release()


class ElectionBase(Generic[M]):
    _kind: Type[M]

    def __init__(self, client: ClientBase[Any, Any], key: Key, terms: Dict[str, Any]) -> None:
        self._client, self._key, self._terms = client, key_bytes(key), terms
        self._lock({})  # Raises an error now if the terms are invalid.

    def _lock(self, terms: Dict[str, Any]) -> Any:
        all_terms = {**self._terms, **terms}
        wrong = {"shared", "limit", "permits"} & set(all_terms)
        if wrong:
            raise TypeError(f"an election has no {', '.join(sorted(wrong))}: one leads alone")
        return self._client.lock(self._key, **all_terms)

    def campaign(self, value: Value, **terms: Any) -> M:
        """A leadership, which is not acquired yet: a lock that publishes ``value`` (0 to 1024 bytes, or text) while it
        is held. ``terms`` are the options of `Client.lock`, such as ``wait``, without ``shared``, ``limit`` and
        ``permits``."""
        return self._kind(self._client, self._lock(terms)._terms._replace(value=value_bytes(value)))

    async def leader(self) -> Optional[Leader]:
        """The leader at the moment of the request; ``None`` if nobody leads. It may have changed since."""
        leader = await self._client._host().call(Call([self._key]), wire.leader, self._key)
        return leader and Leader(*leader)
