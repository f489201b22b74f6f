"""Clients and locks as coroutines, for the APIs for threads and for asyncio. With threads, no coroutine is ever
suspended."""

import contextlib
import functools
import logging
import ssl
import threading
import weakref
from types import TracebackType
from typing import (
    Any,
    Callable,
    Coroutine,
    Dict,
    Generic,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from . import _errors as errors
from . import _format as wire
from ._host import ABSENT, ENDLESS, Activity, Call, Hold, Host, Key, Listener, Settings, count, millis, named, utf8, write

L = TypeVar("L", bound="LockBase")
K = TypeVar("K", bound="LockBase")
E = TypeVar("E")
Value = Union[str, bytes]
T = TypeVar("T")
PERMITS_MAX = 1_000_000  # Per semaphore.
FENCE_MAX = 2**53 - 1
_NEW = wire.owner(wire.OWNING_NEW, 0, "")


def value_bytes(value: Value, name: str = "value") -> bytes:
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{name} is {value!r}, it must be a string or bytes")
    return utf8(name, value) if isinstance(value, str) else value


def key_bytes(key: Key) -> bytes:
    encoded = value_bytes(key, "key")
    if not encoded:
        raise errors.OutOfRange("key is empty, it must be at least 1 byte")
    return encoded


class Terms(NamedTuple):
    """The options of a lock, most of them already encoded for the event."""

    keys: List[bytes]
    wanted: bytes
    hold: bytes
    wait: Optional[float]
    least: int
    on_loss: Optional[Callable[[errors.Lost], Any]]
    on_risk: Optional[Callable[[float], Any]]
    raise_lost: bool
    thread_local: bool
    permits: int
    value: Optional[bytes] = None


@functools.lru_cache(maxsize=256, typed=True)  # `True` is no number here, but it equals 1.
def _parts(
    shared: bool,
    limit: Optional[int],
    permits: int,
    lease: float,
    renew: bool,
    max_hold: Optional[float],
    bound: Optional[float],
    replicas: int,
    margin: float,
) -> Tuple[bytes, bytes]:
    """The encoded mode and terms."""
    if shared and limit is not None:
        raise errors.OutOfRange("shared and limit cannot be given both")
    count("permits", permits, 1, PERMITS_MAX)
    count("limit", 1 if limit is None else limit, 1, PERMITS_MAX)
    count("replicas", replicas, 0, 2**16 - 1)
    access = wire.ACCESS_EXCLUSIVE if limit is None else wire.ACCESS_PERMITS
    mode = wire.mode(wire.ACCESS_SHARED if shared else access, permits, limit or 0)
    times = millis("max_hold", max_hold, ENDLESS), millis("bound", bound, ABSENT)
    return mode, wire.terms(millis("lease", lease), renew, *times, replicas, millis("margin", margin))


def documented(kind: Type[T]) -> Type[T]:
    """Copies the docstrings of the base class to the methods that override it."""
    for name, member in vars(kind).items():
        if callable(member) and not member.__doc__:
            member.__doc__ = getattr(getattr(super(kind, kind), name, None), "__doc__", None)
    return kind


class LocksBase(Generic[L]):
    """What a client and a quorum share."""

    _kind: Type[L]

    def _open(self, settings: Settings) -> None:
        self._settings = settings
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        raise NotImplementedError

    def _host(self) -> Host:
        """The host of this process and this event loop."""
        raise NotImplementedError

    def _lock(
        self,
        keys: List[bytes],
        encoded: Tuple[bytes, bytes],
        wait: Optional[float],
        activity: Optional[Activity],
        release_after: Optional[float],
        on_loss: Optional[Callable[[errors.Lost], Any]],
        on_risk: Optional[Callable[[float], Any]],
        raise_lost: bool,
        thread_local: bool,
        permits: int,
    ) -> L:
        """A lock with these encoded mode and terms."""
        millis("wait", wait, ENDLESS)
        for name, callback in (("on_loss", on_loss), ("on_risk", on_risk)):
            if callback is not None and not callable(callback):
                raise TypeError(f"{name} is {callback!r}, it must be a function")
        mode, hold = encoded
        if not isinstance(activity, (Activity, type(None))):
            raise TypeError(f"activity is {activity!r}, it must be an activity of a client")
        owner = wire.owner(wire.OWNING_ACTIVITY, activity.number, "") if activity else _NEW
        wanted = wire.wanted(owner, keys, mode)
        least = millis("release_after", release_after, ABSENT)
        terms = Terms(keys, wanted, hold, wait, least, on_loss, on_risk, raise_lost, thread_local, permits)
        return self._kind(self, terms)

    def activity(self) -> Activity:
        """An owner for sequential work: it re-enters its locks, and the server detects deadlocks."""
        return Activity()

    async def connect(self) -> None:
        """Connects now instead of at the first lock, and raises an error if that fails."""
        await self._host().call(Call(), wire.connect)

    async def _ask(self, word: str, key: Key, changes: bool = False, *options: bytes) -> Any:
        name = key_bytes(key)
        words = [word.encode(), name, *options]
        (answer,) = await self._host().call(Call(), wire.question, name, words, changes, wire.NONE)
        if isinstance(answer, Exception):
            raise errors.of("Refused", str(answer), False)
        return answer

    async def _info(self, key: Key) -> Dict[str, Any]:
        flat = await self._ask("RLOCK.INFO", key)
        pairs = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2]))
        return {str(name): value for name, value in pairs.items()}


class ClientBase(LocksBase[L], Generic[L, E]):
    _election: Callable[["ClientBase[L, E]", Key, Dict[str, Any]], E]

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        name: str = "",
        tls: Optional[ssl.SSLContext] = None,
        response_timeout: Optional[float] = None,
        retry_timeout: Optional[float] = None,
        replication_timeout: Optional[float] = None,
        listener: Optional[Listener] = None,
    ) -> None:
        timeouts = dict(response_timeout=response_timeout, retry_timeout=retry_timeout)
        timeouts["replication_timeout"] = replication_timeout
        self._open(Settings([url], wire.TOGETHER_SINGLE, name, tls, listener, **timeouts))

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
        margin: float = 0,
        release_after: Optional[float] = None,
        on_loss: Optional[Callable[[errors.Lost], Any]] = None,
        on_risk: Optional[Callable[[float], Any]] = None,
        raise_lost: bool = True,
        thread_local: bool = True,
    ) -> L:
        """A lock, which is not acquired yet. The README has a table of the options."""
        if not isinstance(keys, (str, bytes, Iterable)):
            raise TypeError(f"keys is {keys!r}, it must be a string, bytes, or several of them")
        listed = [key_bytes(it) for it in ([keys] if isinstance(keys, (str, bytes)) else keys)]
        encoded = _parts(shared, limit, permits, lease, renew, max_hold, bound, replicas, margin)
        held = 1 if limit is None else int(permits)
        return self._lock(
            listed, encoded, wait, activity, release_after, on_loss, on_risk, raise_lost, thread_local, held
        )

    def election(self, key: Key, **terms: Any) -> E:
        """The right to lead at a key, and the current leader. ``terms`` are the options of each campaign: those of
        ``lock``, without ``shared``, ``limit`` and ``permits``. Nothing is sent before its first use."""
        return type(self)._election(self, key, terms)

    async def info(self, key: Key) -> Dict[str, Any]:
        """The server's description of a lock: the fields of ``RLOCK.INFO``."""
        return await self._info(key)

    async def force(self, key: Key, fence: Optional[int] = None) -> bool:
        """Ends every hold of a lock, or only the hold with this ``fence``. True if there was one. With the fence from
        ``info`` it never ends a later hold. ``OutOfRange`` unless it is from 1 to 9007199254740991."""
        if fence is None:
            return bool(await self._ask("RLOCK.FORCE", key, True))
        count("fence", fence, 1, FENCE_MAX)
        return bool(await self._ask("RLOCK.FORCE", key, True, b"FENCE", str(int(fence)).encode()))

    async def metrics(self) -> Dict[str, int]:
        """The counters of this client in this event loop."""
        values = await self._host().call(Call(), wire.metrics)
        return dict(zip(("grants", "waits", "losses", "late_renewals", "reconnects"), values))


class QuorumBase(LocksBase[L]):
    def __init__(
        self,
        urls: Sequence[str],
        *,
        any_grace: bool = False,
        name: str = "",
        tls: Optional[ssl.SSLContext] = None,
        response_timeout: Optional[float] = None,
        retry_timeout: Optional[float] = None,
        listener: Optional[Listener] = None,
    ) -> None:
        if isinstance(urls, (str, bytes)):
            raise TypeError(f"urls is {urls!r}, it must be a list with the URL of each member")
        together = wire.TOGETHER_ANY_GRACE if any_grace else wire.TOGETHER_QUORUM
        timeouts = dict(response_timeout=response_timeout, retry_timeout=retry_timeout)
        self._open(Settings(urls, together, name, tls, listener, **timeouts, replication_timeout=None))

    def lock(
        self,
        key: Key,
        *,
        lease: float = 30,
        wait: Optional[float] = None,
        activity: Optional[Activity] = None,
        renew: bool = True,
        max_hold: Optional[float] = None,
        bound: Optional[float] = None,
        margin: float = 0,
        release_after: Optional[float] = None,
        on_loss: Optional[Callable[[errors.Lost], Any]] = None,
        on_risk: Optional[Callable[[float], Any]] = None,
        raise_lost: bool = True,
        thread_local: bool = True,
    ) -> L:
        """A lock, which is not acquired yet. The README has a table of the options. `OutOfRange` for ``locked``,
        ``downgrade`` and ``upgrade`` of it."""
        encoded = _parts(False, None, 1, lease, renew, max_hold, bound, 0, margin)
        listed = [key_bytes(key)]
        return self._lock(listed, encoded, wait, activity, release_after, on_loss, on_risk, raise_lost, thread_local, 1)


def refuse_to_decorate(function: Any, *kinds: Callable[[Any], bool]) -> None:
    """Raises an error for a function that works only after its call has returned, and so after the lock."""
    if any(kind(function) for kind in kinds):
        raise TypeError(f"{function!r} works after its call has returned: hold the lock inside it, by a block")


def _remove(holds: List[Hold], hold: Any) -> None:
    with contextlib.suppress(ValueError):  # Another thread has released it.
        holds.remove(hold)


class Block:
    """A block, from the lookup of its end until it has ended."""

    __slots__ = "by", "lock", "holds", "hold", "is_ended", "__weakref__"

    def __init__(self, by: Any, lock: Optional["LockBase"]) -> None:
        self.by = by
        """The task or thread that begins it, for asyncio."""
        self.lock = lock
        self.holds: List[Hold] = []
        """The list of the hold."""
        self.hold: Optional[Hold] = None
        self.is_ended = False


class BlockEnd:
    """``__exit__`` or ``__aexit__``. Python looks it up once for each block, just before the block begins. So each block
    has an end of its own, which knows the hold of that block in any task or thread: another one may close a
    generator that was left in its block."""

    _latest = threading.local()  # A weak reference to the block whose end was looked up last in this thread.

    def __init__(self, end: Callable[..., Any], caller: Callable[[], Any] = lambda: None) -> None:
        self._end, self._caller = end, caller

    def __get__(self, lock: Optional["LockBase"], kind: Optional[type] = None) -> Callable[..., Any]:
        by = self._caller()
        block = Block(by and weakref.ref(by), lock)
        self._latest.block = weakref.ref(block)
        of_block = functools.partial(self._end, block=block)
        return of_block if lock is None else functools.partial(of_block, lock)

    def __call__(self, lock: "LockBase", *error: Any) -> Any:
        return self.__get__(lock)(*error)

    def begin(self, lock: "LockBase") -> Optional[Block]:
        """The block that begins now. ``None`` for a call of ``__enter__`` or ``__aenter__`` by hand."""
        reference, self._latest.block = getattr(self._latest, "block", None), None
        block = reference() if reference else None
        # An `ExitStack` looks it up in the class. One that is kept for later may belong to another lock.
        if block is None or block.is_ended or block.lock not in (None, lock):
            return None
        return block if block.by is None or block.by() is self._caller() else None


class LockBase:
    """The methods take the holds of their caller before they return a coroutine, because another task may run it."""

    _here: Dict[bool, str]
    """By whom the lock is held, by ``thread_local``, for an error."""

    def __init__(self, client: LocksBase[Any], terms: Terms) -> None:
        self._client, self._terms = client, terms
        self._begin()

    def _begin(self) -> None:
        raise NotImplementedError

    @property
    def _holds(self) -> List[Hold]:
        """The holds of the caller, or of all callers that share them. A change of the list is one step, because several
        threads may change it."""
        raise NotImplementedError

    @property
    def _own(self) -> List[Hold]:
        """The list for what the caller acquires."""
        return self._holds

    def _last(self, holds: List[Hold]) -> Optional[Hold]:
        """The last of these holds that can be used here."""
        for hold in holds[-1:]:
            return hold
        return None

    def _held(self, holds: List[Hold]) -> Hold:
        hold = self._last(holds)
        if hold is None:
            raise errors.Lost(f"{named(self._terms.keys)}: the lock is not held {self._here[self._terms.thread_local]}")
        return hold

    @property
    def _hold(self) -> Hold:
        return self._held(self._holds)

    def check(self) -> None:
        """Raises `Lost` unless the lock is held here now."""
        self._hold.check()

    @property
    def remaining(self) -> float:
        """For how many seconds the lock stays held if the server sends nothing more; 0 if it is not held."""
        hold = self._last(self._holds)
        return hold.remaining() if hold else 0.0

    @property
    def lost(self) -> bool:
        """Whether the lock was acquired here and then lost."""
        hold = self._last(self._holds)
        return hold is not None and hold.remaining() == 0

    @property
    def fence(self) -> int:
        """Larger than the fence of every earlier holder. Send it with each write."""
        return max(self._hold.fences.values())

    @property
    def fences(self) -> Dict[bytes, int]:
        """The fence of each key."""
        return dict(self._hold.fences)

    @property
    def owner(self) -> str:
        """The owner of this hold."""
        return self._hold.owner

    def acquire(self, blocking: bool = True, timeout: Optional[float] = None) -> Coroutine[Any, Any, bool]:
        """Acquires the lock; False if that fails within ``timeout`` seconds (by default ``wait``). Without ``blocking``
        it tries only once."""
        return self._acquire(self._own, self._call(), blocking, timeout)

    def _call(self) -> Call:
        return Call(self._terms.keys, self._terms.on_loss, self._terms.on_risk)

    async def _acquire(
        self, holds: List[Hold], call: Call, blocking: bool = True, timeout: Optional[float] = None
    ) -> bool:
        terms, host = self._terms, self._client._host()
        # As in `threading.Lock`, -1 means no limit.
        wait = terms.wait if timeout is None else None if timeout == -1 else timeout
        fields = terms.wanted, millis("timeout", wait, ENDLESS) if blocking else 0, terms.hold
        try:
            if terms.value is None:
                hold = await host.call(call, wire.lock, *fields)
            else:
                hold = await host.call(call, wire.campaign, *fields, terms.value)
            if hold:
                hold.permits = terms.permits
                holds.append(hold)
            return bool(hold)
        except errors.Error:
            raise
        except BaseException:
            self._give_up(holds, call)
            raise

    def _give_up(self, holds: List[Hold], call: Call) -> None:
        """Releases in the background after an acquire that was cancelled or interrupted, perhaps in the moment of its
        grant."""
        hold = call.value
        if isinstance(hold, Hold):
            _remove(holds, hold)
            hold.host.post(functools.partial(hold.host.give_up, call))

    def release(self, permits: Optional[int] = None) -> Coroutine[Any, Any, None]:
        """Releases the lock, or only some of its permits, at once: it stays held here until all are released. Raises
        `Lost` if it was lost before, unless ``raise_lost`` is false. ``OutOfRange`` unless ``permits`` is from 1 to the
        number that is still held, which is 1 without ``limit``; nothing is released then."""
        return self._release(self._holds or None, permits)

    async def _release(
        self, holds: Optional[List[Hold]], permits: Optional[int] = None, block: Optional[Block] = None
    ) -> None:
        # If the caller has no hold, as the clean-up of a test that is outside its task, the task that runs this may have.
        holds = self._holds if holds is None else holds
        hold, is_last = self._taken(holds, permits, block)
        try:
            if hold.host.is_foreign:
                return
            event, field = (wire.release, self._terms.least) if is_last else (wire.release_permits, permits)
            await hold.host.call(Call(hold.keys), event, hold.number, field)
        except (errors.Lost, errors.Closed) as error:
            # A client that is closed does not ask whether the lock was lost.
            if isinstance(error, errors.Closed) and not hold.is_lost:
                raise
            # Another thread may have released the rest before this request was sent.
            if self._terms.raise_lost and (is_last or not hold.is_released):
                raise (hold.loss or error) from None
        except errors.Error:
            raise
        except BaseException:
            self._leave(holds, hold, permits)
            raise

    def _taken(self, holds: List[Hold], permits: Optional[int], block: Optional[Block]) -> Tuple[Hold, bool]:
        """The hold that permits were taken out of, and whether none is left."""
        while True:
            hold = self._held(self._at_end(block) if block else holds)
            is_last = hold.take(permits)
            if is_last is not False:
                _remove(holds, hold)
            if is_last is not None:  # Otherwise another thread has just released it.
                return hold, is_last

    def _has_hold(self, block: Block) -> bool:
        """Whether the block has begun with this lock, and not only been looked up."""
        return block.hold is not None and block.lock is self

    def _holds_of_block(self, block: Block) -> List[Hold]:
        return block.holds if self._has_hold(block) else self._holds

    def _at_end(self, block: Block) -> List[Hold]:
        """The hold of a block that ends. If it was released by hand, those that no other block has: one may have been
        acquired by hand since. The same if ``__exit__`` or ``__aexit__`` is called by hand, or else all."""
        holds = self._holds_of_block(block)[:]
        if self._has_hold(block) and block.hold in holds:
            return [block.hold]
        by_hand = [hold for hold in holds if not hold.is_of_block]
        return by_hand if by_hand or self._has_hold(block) else holds

    def _leave(self, holds: List[Hold], hold: Optional[Hold], permits: Optional[int] = None) -> None:
        """Releases in the background after a release that was interrupted at any point, perhaps before its request was
        made. A second request changes nothing."""
        if hold is None:
            return
        hold.is_released = hold.is_released or permits is None
        if hold.is_released:
            _remove(holds, hold)
            if not hold.host.is_foreign:
                again = functools.partial(hold.host.begin, Call(hold.keys), wire.release, hold.number, self._terms.least)
                hold.host.post(again)

    async def locked(self) -> bool:
        """Whether any owner holds the lock, according to the server."""
        modes = [(await self._client._info(key))["mode"] for key in self._terms.keys]
        return any(mode != "free" for mode in modes)

    def owned(self) -> Coroutine[Any, Any, bool]:
        """Whether the lock is held here now."""
        return self._owned(self._holds)

    async def _owned(self, holds: List[Hold]) -> bool:
        hold = self._last(holds)
        return hold is not None and hold.remaining() > 0

    def extend(self, lease: float) -> Coroutine[Any, Any, bool]:
        """Sets the lease to at least this many seconds from now."""
        return self._change(self._holds, wire.extend, millis("lease", lease))

    def downgrade(self) -> Coroutine[Any, Any, Any]:
        """Turns an exclusive hold into a shared one."""
        return self._change(self._holds, wire.downgrade)

    def upgrade(self, wait: Optional[float] = None) -> Coroutine[Any, Any, bool]:
        """Turns a shared hold into an exclusive one. False if that fails within ``wait`` seconds; the hold is then
        still shared. Raises `Lost` if the shared hold is lost meanwhile, and acquires nothing then."""
        return self._change(self._holds, wire.upgrade, millis("wait", wait, ENDLESS), is_granted=True)

    async def _change(
        self, holds: List[Hold], event: Callable[..., bytes], *fields: Any, is_granted: bool = False
    ) -> bool:
        hold = self._held(holds)
        hold.check()
        call = Call(hold.keys, hold=hold if is_granted else None)
        return bool(await hold.host.call(call, event, hold.number, *fields))

    async def _enter(self: K, holds: List[Hold], call: Call, block: Optional[Block]) -> K:
        if not await self._acquire(holds, call):
            raise errors.NotAcquired(f"{named(self._terms.keys)}: not acquired within {self._terms.wait} s")
        if block:
            block.lock, block.holds, block.hold, call.value.is_of_block = self, holds, call.value, True
        return self

    async def _exit(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
        *,
        block: Block,
    ) -> None:
        block.is_ended = True
        try:
            await self._release(self._holds_of_block(block), block=block)
        except errors.Error as failure:
            if error is None:
                raise
            write(logging.WARNING, "after another error: %s", failure)
