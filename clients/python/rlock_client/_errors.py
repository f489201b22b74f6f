"""What can go wrong. ``code`` says it in the same words in every language."""

from typing import Dict, Type


class Error(Exception):
    """What a call of this package fails with. ``transient``: to try again may help."""

    def __init__(self, text: str, code: str = "", transient: bool = False) -> None:
        super().__init__(text, code or type(self).__name__, transient)
        self.code, self.transient = code or type(self).__name__, transient

    def __str__(self) -> str:
        return str(self.args[0])


class NotAcquired(Error):
    """The wait is over, and somebody else still has the lock."""


class Lost(Error):
    """The lock was no longer held. What was done under it may have overlapped with another holder's work."""


class OutOfRange(Error, ValueError):
    """An argument is outside its range. Nothing was sent."""


class Unavailable(Error):
    """No usable answer came in time. What was asked for is withdrawn in the background."""


class NotConnected(Error):
    """The first connection could not be made (``Connect``)."""


class ModuleMissing(Error):
    """The server does not know the lock commands."""


class Deadlock(Error):
    """Waiting would close a cycle of owners that wait for each other."""


class QueueFull(Error):
    """The server's queues have no place left."""


class Cancelled(Error):
    """An operator ended the wait."""


class Closed(Error):
    """The client was closed."""


kinds: Dict[str, Type[Error]] = {
    it.__name__: it
    for it in (NotAcquired, Lost, OutOfRange, Unavailable, ModuleMissing, Deadlock, QueueFull, Cancelled, Closed)
}
kinds["Connect"] = NotConnected


def of(code: str, text: str, transient: bool) -> Error:
    """An error as the engine tells it."""
    return kinds.get(code, Error)(text, code, transient)
