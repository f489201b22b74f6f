"""Locks of a Redis or Valkey server with the rlock module: queued, leased, fenced."""

from ._engine import __version__
from ._errors import Cancelled, Closed, Deadlock, Error, Lost, ModuleMissing, NotAcquired, NotConnected
from ._errors import OutOfRange, QueueFull, Unavailable
from ._host import Activity
from ._threads import Client, Lock

__all__ = ["Activity", "Cancelled", "Client", "Closed", "Deadlock", "Error", "Lock", "Lost", "ModuleMissing"]
__all__ += ["NotAcquired", "NotConnected", "OutOfRange", "QueueFull", "Unavailable", "__version__"]
