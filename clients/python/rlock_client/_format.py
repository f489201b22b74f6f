# Generated from crates/rlock-embed/src/messages.rs by `RLOCK_GENERATE=1 cargo test --package rlock-embed --test generated`.
"""Encodes events, and names the kinds of actions; docs/embedding.md describes them."""

import struct
from typing import Sequence

VERSION = 3
NONE = 2**64 - 1  # Instead of a time: no limit, or no time at all.

# The first field of an action.
CONNECT = 1
WRITE = 2
CLOSE = 3
GRANTED = 4
REFUSED = 5
DONE = 6
FAILED = 7
ANSWERED = 8
OVER = 9
NOTE = 10
LEADER = 11
OCCURRED = 12

OWNING_NEW = 0
OWNING_ACTIVITY = 1
OWNING_NAMED = 2

ACCESS_EXCLUSIVE = 0
ACCESS_SHARED = 1
ACCESS_PERMITS = 2

FAULT_IO = 0
FAULT_TIME = 1
FAULT_SETUP = 2
FAULT_CERTIFICATE = 3

TRANSPORT_TCP = 0
TRANSPORT_TLS = 1
TRANSPORT_INSECURE = 2
TRANSPORT_UNIX = 3

ENDING_LEASE_ENDED = 0
ENDING_ENDED_BY_SERVER = 1
ENDING_RELEASED = 2

LEVEL_DEBUG = 0
LEVEL_INFORMATION = 1
LEVEL_WARNING = 2

TOGETHER_SINGLE = 0
TOGETHER_QUORUM = 1
TOGETHER_ANY_GRACE = 2

_B = struct.Struct("<B").pack
_BI = struct.Struct("<BI").pack
_BII = struct.Struct("<BII").pack
_BQ = struct.Struct("<BQ").pack
_BQBI = struct.Struct("<BQBI").pack
_BQI = struct.Struct("<BQI").pack
_BQQ = struct.Struct("<BQQ").pack
_BQQI = struct.Struct("<BQQI").pack
_BQQQ = struct.Struct("<BQQQ").pack
_I = struct.Struct("<I").pack
_Q = struct.Struct("<Q").pack
_QBQQHQ = struct.Struct("<QBQQHQ").pack
_QQQB = struct.Struct("<QQQB").pack


def _list(values: Sequence[bytes]) -> bytes:
    return _I(len(values)) + b"".join([_I(len(value)) + value for value in values])


def owner(owner: int, activity: int, name: str) -> bytes:
    name_ = name.encode()
    return _BQI(owner, activity, len(name_)) + name_


def mode(mode: int, permits: int, limit: int) -> bytes:
    return _BII(mode, permits, limit)


def wanted(owner: bytes, keys: Sequence[bytes], mode: bytes) -> bytes:
    return owner + _list(keys) + mode


def terms(lease: int, renewed: bool, max_hold: int, bound: int, replicas: int, margin: int) -> bytes:
    return _QBQQHQ(lease, renewed, max_hold, bound, replicas, margin)


def configuration(version: int, urls: Sequence[bytes], together: int, name: str, library: str, library_version: str, response: int, retry: int, replication: int, listens: bool, seed: bytes) -> bytes:
    name_ = name.encode()
    library_ = library.encode()
    library_version_ = library_version.encode()
    return _I(version) + _list(urls) + _BI(together, len(name_)) + name_ + _I(len(library_)) + library_ + _I(len(library_version_)) + library_version_ + _QQQB(response, retry, replication, listens) + seed


def connect(call: int) -> bytes:
    return _BQ(1, call)


def lock(call: int, wanted: bytes, wait: int, terms: bytes) -> bytes:
    return _BQ(2, call) + wanted + _Q(wait) + terms


def release(call: int, guard: int, least: int) -> bytes:
    return _BQQQ(3, call, guard, least)


def upgrade(call: int, guard: int, wait: int) -> bytes:
    return _BQQQ(4, call, guard, wait)


def extend(call: int, guard: int, lease: int) -> bytes:
    return _BQQQ(5, call, guard, lease)


def downgrade(call: int, guard: int) -> bytes:
    return _BQQ(6, call, guard)


def question(call: int, key: bytes, words: Sequence[bytes], changes: bool, limit: int) -> bytes:
    return _BQI(7, call, len(key)) + key + _list(words) + _BQ(changes, limit)


def abandon(call: int) -> bytes:
    return _BQ(8, call)


def metrics(call: int) -> bytes:
    return _BQ(9, call)


def opened(connection: int) -> bytes:
    return _BQ(10, connection)


def received(connection: int, bytes: bytes) -> bytes:
    return _BQI(11, connection, len(bytes)) + bytes


def ended(connection: int, failure: int, text: str) -> bytes:
    text_ = text.encode()
    return _BQBI(12, connection, failure, len(text_)) + text_


def flush(call: int) -> bytes:
    return _BQ(13, call)


def leave_all() -> bytes:
    return _B(14)


def closed() -> bytes:
    return _B(15)


def tick() -> bytes:
    return _B(16)


def leave(guard: int) -> bytes:
    return _BQ(17, guard)


def untaken(guard: int) -> bytes:
    return _BQ(18, guard)


def campaign(call: int, wanted: bytes, wait: int, terms: bytes, value: bytes) -> bytes:
    return _BQ(19, call) + wanted + _Q(wait) + terms + _I(len(value)) + value


def proclaim(call: int, guard: int, value: bytes) -> bytes:
    return _BQQI(20, call, guard, len(value)) + value


def observe(call: int, key: bytes) -> bytes:
    return _BQI(21, call, len(key)) + key


def leader(call: int, key: bytes) -> bytes:
    return _BQI(22, call, len(key)) + key


def release_permits(call: int, guard: int, permits: int) -> bytes:
    return _BQQI(23, call, guard, permits)
