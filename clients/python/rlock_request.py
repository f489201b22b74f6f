"""What ``rlock`` and ``rlock_asyncio`` share: errors, the check of arguments, the commands, the pieces of a wait."""

import importlib
import math
import os
import secrets
import socket
import time
from dataclasses import dataclass

LONGEST = 86400  # of a lease and of a wait, seconds
REPLY_LIMIT = 5.0  # seconds for a reply, beyond the wait, where the client has no socket_timeout
IDLE_MOST = 16  # connections that are kept for later
KEEP_MS = 10_000  # how long a place in the queue outlives a connection that breaks
ANSWERED_LATER = {"LOADING", "MASTERDOWN", "TRYAGAIN", "UNBLOCKED"}  # states of a server that end by themselves
CODES = {
    "BusyLoadingError": "LOADING", "ClusterDownError": "CLUSTERDOWN", "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED", "NoPermissionError": "NOPERM", "OutOfMemoryError": "OOM", "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN", "ClusterCrossSlotError": "CROSSSLOT",
}  # fmt: skip


class LockError(Exception):
    """What this module raises, beside ValueError and the Redis library's errors of connections."""


class NotAcquired(LockError):
    """The wait is over, or the request was withdrawn by somebody else. No place in the queue is left."""


class Lost(LockError):
    """The lock is no longer held: its lease is over, or it was taken away."""


class Refused(LockError):
    """The server refused. ``code`` is the first word of its error: ``DEADLOCK``, ``QUEUEFULL``, ``WRONGTYPE``,
    ``NOPERM``, ``ERR``, … or ``NOMODULE``, where the module is not loaded."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    @classmethod
    def of(cls, error):
        text, word = str(error), str(error).split(" ", 1)[0]
        if "unknown command" in text.lower() and "RLOCK." in text.upper():
            return cls("NOMODULE", f"the server has not loaded the rlock module, librlock.so ({text})")
        code = CODES.get(type(error).__name__) or (word if word.isalpha() and word.isupper() else "ERR")
        return cls(code, text if text.startswith(code) else f"{code} {text}")


def _library_errors():
    """The classes for a broken connection, for a login that fails, and for an error that the server answered."""
    broken, login, answered = [OSError], [], []
    for library in ("redis", "valkey"):
        try:
            errors = importlib.import_module(library + ".exceptions")
        except ImportError:
            continue
        broken += [errors.ConnectionError, errors.TimeoutError]
        login += [errors.AuthenticationError]
        answered += [errors.ResponseError]
    return tuple(broken), tuple(login), tuple(answered)


BROKEN, LOGIN, ANSWERED = _library_errors()

# The lease goes on while a machine is suspended, so a clock that counts this time is wanted.
if hasattr(time, "CLOCK_BOOTTIME"):

    def now():
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    now = time.monotonic


@dataclass(frozen=True)
class Request:
    """The arguments of ``lock``, checked, and the commands that they make."""

    keys: tuple
    owner: str
    lease: float
    wait: float  # inf: without limit
    options: tuple

    @classmethod
    def of(cls, key, lease, wait, shared, limit, permits, owner):
        keys = (key,) if isinstance(key, (str, bytes)) else tuple(key)
        check("key", keys, 1 <= len(keys) <= 1024, "1 to 1024 keys")
        check("key", keys, all(isinstance(each, (str, bytes)) for each in keys), "str or bytes")
        check("key", keys, len(set(keys)) == len(keys), "each key once")
        check("lease", lease, is_number(lease) and 0.001 <= lease <= LONGEST, f"0.001 to {LONGEST} seconds")
        check("wait", wait, wait is None or is_number(wait) and 0 <= wait <= LONGEST, f"None or 0 to {LONGEST} seconds")
        if limit is not None:
            check("limit", limit, is_count(limit) and 1 <= limit <= 1_000_000, "1 to 1000000")
        if permits is not None:
            check("permits", permits, limit is not None, "given together with limit")
            check("permits", permits, is_count(permits) and 1 <= permits <= limit, f"1 to limit, {limit}")
        check("shared", shared, len(keys) == 1 or not (shared or limit), "left out with several keys, as limit is")
        options = ("SHARED",) if shared or limit else ()
        options += ("LIMIT", limit, "PERMITS", permits or 1) if limit else ()
        return cls(keys, check_owner(owner), lease, math.inf if wait is None else wait, options)

    def acquire(self, wait_ms=0):
        """``wait_ms`` 0: one try."""
        tail = self.options + (("WAIT", wait_ms, "KEEP", KEEP_MS) if wait_ms else ())
        if len(self.keys) > 1:
            return ("RLOCK.MACQUIRE", self.owner, self.lease_ms, len(self.keys), *self.keys, *tail)
        return ("RLOCK.ACQUIRE", self.keys[0], self.owner, self.lease_ms, *tail)

    def renew(self):
        if len(self.keys) > 1:
            return ("RLOCK.MRENEW", self.owner, self.lease_ms, len(self.keys), *self.keys)
        return ("RLOCK.RENEW", self.keys[0], self.owner, self.lease_ms)

    def release(self):
        if len(self.keys) > 1:
            return ("RLOCK.MRELEASE", self.owner, len(self.keys), *self.keys)
        return ("RLOCK.RELEASE", self.keys[0], self.owner)

    def cancel(self):
        return ("RLOCK.CANCEL", self.keys[0], self.owner)

    def is_renewed(self, reply, fence):
        return reply == (len(self.keys) if len(self.keys) > 1 else fence)

    def is_released(self, reply):
        return reply == (len(self.keys) if len(self.keys) > 1 else 0)

    @property
    def lease_ms(self):
        return int(self.lease * 1000)

    def claims(self):
        return {(self.owner, key) for key in self.keys}


def check(name, value, is_good, must):
    if not is_good:
        raise ValueError(f"{name} is {value!r}, must be {must}")


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool)


def check_owner(owner):
    """The owner; where it is left out a new one, by which an operator finds the host and the process."""
    if owner is None:
        host = "".join(each for each in socket.gethostname() if each.isascii() and (each.isalnum() or each in ".-_"))
        return f"{host[:64]}:{os.getpid()}:{secrets.token_hex(8)}"
    check("owner", owner, isinstance(owner, (str, bytes)), "str or bytes")
    name = owner.encode() if isinstance(owner, str) else owner
    check("owner", owner, 1 <= len(name) <= 256, "1 to 256 bytes")
    check("owner", owner, not any(byte <= 0x20 or byte == 0x7F for byte in name), "without bytes 0x00 to 0x20 and 0x7f")
    check("owner", owner, not name.startswith(b"rlock:"), "a name that does not begin with 'rlock:'")
    return owner


def connection_options(client, ask_every):
    """How ``client`` makes connections: the class and its options, less what would resend by itself."""
    check("ask_every", ask_every, is_number(ask_every) and 0.1 <= ask_every <= 600, "0.1 to 600 seconds")
    if hasattr(client, "nodes_manager"):
        raise TypeError("client is a cluster client, which is not supported: give the client of the key's node, "
                        "cluster.get_redis_connection(cluster.get_node_from_key(key))")  # fmt: skip
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        raise TypeError(f"client is {client!r}, must be a client of redis-py or valkey-py")
    options = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith("retry")}
    options["socket_timeout"] = options.get("socket_timeout") or REPLY_LIMIT
    return pool.connection_class, options


class Turn:
    """When a call of ``lock`` asks next, and whether it may: its wait, cut into pieces of ``ask_every``."""

    def __init__(self, request, ask_every):
        self.request, self.ask_every = request, ask_every
        self.until, self.began = now() + request.wait, now()
        self.asked, self.is_repeated, self.pause, self.trouble = 0, False, 0.1, None

    def piece_ms(self):
        """How long the next request waits in the server; raises when the wait is over."""
        left = self.until - now()
        if self.asked and left <= 0:
            if self.asked == 1 and self.trouble and not self.is_repeated:  # A first reply that was lost: once more.
                self.is_repeated = True
                return 0
            raise NotAcquired(f"{self.request.keys} not acquired within {self.request.wait} s") from self.trouble
        return math.ceil(max(0, min(left, self.ask_every)) * 1000)

    def refused(self, waited, piece_ms):
        """Was answered by nil. Before its time this means that somebody else ended the wait."""
        self.trouble, self.pause = None, 0.1
        if piece_ms and waited * 1000 < piece_ms - 2:
            raise NotAcquired(f"{self.request.keys}: the request was withdrawn by RLOCK.CANCEL, CLIENT UNBLOCK, "
                              f"or another request of owner {self.request.owner}")  # fmt: skip

    def failed(self, error, is_first_contact):
        """Seconds until the request is sent again after ``error``; raises it where asking again is no help."""
        is_try = not self.request.wait
        if isinstance(error, ANSWERED):
            refusal = Refused.of(error)
            is_passing = refusal.code in ANSWERED_LATER or (refusal.code == "READONLY" and self.asked > 1)
            if is_try or not is_passing:
                raise refusal from error
        elif isinstance(error, LOGIN) or is_first_contact or (is_try and self.is_repeated):
            raise error
        self.trouble, pause, self.pause = error, self.pause, min(self.pause * 2, 1)
        return max(0, min(pause, self.until - now()))
