"""Events and actions as bytes: docs/embedding.md."""

import struct
import time
from typing import Any, Iterable, List, Tuple

NONE = 2**64 - 1  # In place of a time: without limit, or not at all.

(CONNECT, LOCK, RELEASE, UPGRADE, EXTEND, DOWNGRADE, QUESTION, ABANDON, METRICS) = range(1, 10)
(OPENED, RECEIVED, ENDED, FLUSH, LEAVE_ALL, CLOSED, TICK, LEAVE, UNTAKEN) = range(10, 19)

u16, u32, u64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
head = struct.Struct("<BQ").pack  # An event's kind, and a number.
received = struct.Struct("<BQI").pack
number = u64.pack
_PAIR = struct.Struct("<QQ")

# On Linux a clock that goes on while the machine is suspended.
_clock = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> int:
    return time.monotonic_ns() if _clock is None else time.clock_gettime_ns(_clock)


def data(value: bytes) -> bytes:
    return u32.pack(len(value)) + value


def text(value: str) -> bytes:
    return data(value.encode())


def listed(values: Iterable[bytes]) -> bytes:
    items = [data(value) for value in values]
    return u32.pack(len(items)) + b"".join(items)


class Reader:
    """Reads an output: the deadline, and then actions."""

    def __init__(self, output: bytes) -> None:
        self.output, self.at = output, 0

    def u8(self) -> int:
        self.at += 1
        return self.output[self.at - 1]

    def u16(self) -> int:
        self.at += 2
        return int(u16.unpack_from(self.output, self.at - 2)[0])

    def u32(self) -> int:
        self.at += 4
        return int(u32.unpack_from(self.output, self.at - 4)[0])

    def u64(self) -> int:
        self.at += 8
        return int(u64.unpack_from(self.output, self.at - 8)[0])

    def bytes(self) -> bytes:
        length = self.u32()
        self.at += length
        return self.output[self.at - length : self.at]

    def text(self) -> str:
        return self.bytes().decode("utf-8", "backslashreplace")

    def value(self) -> Any:
        """What a server has answered with. An error of its is an `Exception`."""
        kind = self.u8()
        if kind == 0:
            return None
        if kind == 1:
            value = self.u64()
            return value - 2**64 if value >= 2**63 else value
        if kind == 2:
            return self.text()
        if kind == 3:
            return [self.value() for _ in range(self.u32())]
        if kind == 4:
            return {self.value(): self.value() for _ in range(self.u32())}
        return Exception(self.text())

    def action(self) -> Tuple[Any, ...]:
        kind = self.u8()
        if kind in (2, 8):
            return kind, self.u64(), self.bytes() if kind == 2 else self.value()
        if kind == 4:
            call, guard = _PAIR.unpack_from(self.output, self.at)
            self.at += 16
            return kind, call, guard, self.text(), {self.bytes(): self.u64() for _ in range(self.u32())}
        if kind in (3, 5, 6):
            return kind, self.u64()
        if kind == 7:
            return kind, self.u64(), self.text(), self.text(), self.u8() == 1
        if kind == 9:
            return kind, self.u64(), self.u8()
        if kind == 10:
            return kind, self.u8(), self.text()
        if kind == 1:
            return kind, self.u64(), self.u8(), self.text(), self.u16()
        raise RuntimeError(f"rlock: unknown action {kind}")


def read(output: bytes) -> Tuple[int, List[Tuple[Any, ...]]]:
    reader, actions = Reader(output), []
    deadline = reader.u64()
    while reader.at < len(output):
        actions.append(reader.action())
    return deadline, actions
