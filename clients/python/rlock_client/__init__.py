"""Locks on a Redis or Valkey server with the rlock module: queued, leased, fenced."""

from ._elections import Change, Leader, Proclaimed
from ._engine import __version__
from ._errors import Cancelled, Closed, Deadlock, Error, Lost, ModuleMissing, NotAcquired, NotConnected
from ._errors import OutOfRange, QueueFull, Unavailable
from ._host import Activity, Occurrence
from ._threads import Changes, Client, Election, Leadership, Lock, Quorum

__all__ = ["Activity", "Cancelled", "Change", "Changes", "Client", "Closed", "Deadlock", "Election", "Error", "Leader"]
__all__ += ["Leadership", "Lock", "Lost", "ModuleMissing", "NotAcquired", "NotConnected", "Occurrence", "OutOfRange"]
__all__ += ["Proclaimed", "QueueFull", "Quorum", "Unavailable", "__version__"]
