"""The errors. Their ``code`` is the same in every language."""

from typing import Dict, Type


class Error(Exception):
    """The base of all errors of this package. ``transient`` says whether a retry may help."""

    def __init__(self, text: str, code: str = "", transient: bool = False) -> None:
        super().__init__(text, code or type(self).__name__, transient)
        self.code, self.transient = code or type(self).__name__, transient

    def __str__(self) -> str:
        return str(self.args[0])


class NotAcquired(Error):
    """The wait is over, and another owner still has the lock."""


class Lost(Error):
    """The lock was no longer held. Work under it may have overlapped with another holder's work."""


class OutOfRange(Error, ValueError):
    """An argument is outside its range. Nothing was sent."""


class Unavailable(Error):
    """No usable answer arrived in time. The client withdraws the request in the background."""


class NotConnected(Error):
    """The first connection failed. The ``code`` is ``Connect``."""


class ModuleMissing(Error):
    """The server does not know the lock commands."""


class Deadlock(Error):
    """Waiting would close a cycle of owners that wait for each other."""


class QueueFull(Error):
    """The server's queues are full."""


class Cancelled(Error):
    """An operator ended the wait."""


class Closed(Error):
    """The client has been closed."""


kinds: Dict[str, Type[Error]] = {
    it.__name__: it
    for it in (NotAcquired, Lost, OutOfRange, Unavailable, ModuleMissing, Deadlock, QueueFull, Cancelled, Closed)
}
kinds["Connect"] = NotConnected


def of(code: str, text: str, transient: bool) -> Error:
    """The exception for an error of the engine."""
    return kinds.get(code, Error)(text, code, transient)
