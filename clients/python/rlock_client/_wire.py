"""Encodes events and decodes outputs; docs/embedding.md describes the format."""

import struct
import time
from typing import Iterable

from ._engine import read as read  # Returns the deadline and the actions.

NONE = 2**64 - 1  # Instead of a time: no limit, or no time at all.

(CONNECT, LOCK, RELEASE, UPGRADE, EXTEND, DOWNGRADE, QUESTION, ABANDON, METRICS) = range(1, 10)
(OPENED, RECEIVED, ENDED, FLUSH, LEAVE_ALL, CLOSED, TICK, LEAVE, UNTAKEN) = range(10, 19)
(CAMPAIGN, PROCLAIM, OBSERVE, LEADER) = range(19, 23)

u16, u32, number = struct.Struct("<H").pack, struct.Struct("<I").pack, struct.Struct("<Q").pack
head = struct.Struct("<BQ").pack  # An event's kind and a number.
received = struct.Struct("<BQI").pack

# On Linux this clock also runs while the machine is suspended.
_clock = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> int:
    return time.monotonic_ns() if _clock is None else time.clock_gettime_ns(_clock)


def data(value: bytes) -> bytes:
    return u32(len(value)) + value


def text(value: str) -> bytes:
    return data(value.encode())


def listed(values: Iterable[bytes]) -> bytes:
    items = [data(value) for value in values]
    return u32(len(items)) + b"".join(items)
