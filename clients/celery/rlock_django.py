"""For Django: management commands that run on one machine at a time. The locks are rlock's."""

import contextlib
import functools
import os
import socket

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from rlock_client import Client, Error

__all__ = ["client", "exclusive"]


def client():
    """The client of this project. ``RLOCK`` in its settings has the arguments of `rlock_client.Client` in capitals."""
    return _client(os.getpid())


@functools.lru_cache(maxsize=None)
def _client(process):
    options = {name.lower(): value for name, value in getattr(settings, "RLOCK", {}).items()}
    if not options.get("url"):
        raise ImproperlyConfigured('RLOCK is not set: {"URL": the URL of the server with the locks}')
    return Client(**{"name": f"{socket.gethostname()}:{process}", **options})


def exclusive(key, *, wait=0, returncode=1, **options):
    """Decorates ``handle`` of a management command: it holds the lock ``key`` while it runs, as ``self.lock``.
    ``options`` are those of `Client.lock`. If the lock is not acquired within ``wait`` seconds, the command ends with
    ``returncode``. A loss and any other error of the lock end it with 1."""

    def decorate(handle):
        @functools.wraps(handle)
        def locked(self, *arguments, **named):
            self.lock = client().lock(key, wait=wait, **options)
            try:
                if not self.lock.acquire():
                    raise CommandError(f"{key} is held elsewhere: not acquired within {wait} s", returncode=returncode)
                with contextlib.ExitStack() as stack:
                    stack.push(self.lock)  # Its end releases the lock, and raises the loss.
                    return handle(self, *arguments, **named)
            except Error as error:
                raise CommandError(str(error)) from error

        return locked

    return decorate
