"""Locks of a Redis or Valkey server that has loaded the rlock module, for redis.asyncio.

    locks = Locks(redis.asyncio.Redis())
    async with locks.lock("invoice:7", lease=30, wait=10) as held:
        await write(..., fence=held.fence)

All times are seconds. ``rlock`` has the same without asyncio. Clients of valkey.asyncio work too.
"""

import asyncio
from collections import deque

from rlock_request import ANSWERED, BROKEN, IDLE_MOST, REPLY_LIMIT, LockError, Lost, NotAcquired, Refused, Request, Turn
from rlock_request import check, connection_options, now

__all__ = ["Held", "LockError", "Locks", "Lost", "NotAcquired", "Refused"]


class Locks:
    """Takes locks through connections of its own, made as those of ``client``: TLS, password and database are the same.

    ``ask_every``: seconds, 0.1 to 600, default 10. How often a waiter asks again, in its place in the queue. It is
    the time within which a waiter sees that a connection hangs. A reply may take the client's ``socket_timeout``
    longer than the wait (5 s if there is none). To be used in one event loop. Raises TypeError for a cluster client.
    """

    def __init__(self, client, *, ask_every=10.0):
        self._make, self._options = connection_options(client, ask_every)
        self._client, self._ask_every = client, ask_every  # The client of a Sentinel must live on.
        self._idle, self._claims, self._tasks = deque(), set(), set()

    def lock(self, key, lease=30.0, wait=None, *, shared=False, limit=None, permits=None, owner=None, on_loss=None):
        """``await`` it for a ``Held``, or use it with ``async with``. The README has the options.

        Raises NotAcquired when the wait is over, Refused when the server refuses, ValueError for a bad argument, and
        the library's ConnectionError or TimeoutError when the server cannot be reached to begin with. Whatever is
        raised, CancelledError too, the request is withdrawn first, and a grant that came meanwhile is released.
        """
        request = Request.of(key, lease, wait, shared, limit, permits, owner)
        return _Asked(self, request, on_loss)

    async def aclose(self):
        """Closes the idle connections. Locks that are held are renewed and released all the same."""
        while self._idle:
            await self._idle.pop().disconnect()

    async def _lock(self, request, on_loss):
        taken = self._claims & request.claims()
        check("owner", request.owner, not taken, f"one activity's: it holds or awaits {taken} already")
        self._claims |= request.claims()
        try:
            return Held(self, request, *await self._acquire(request), on_loss)
        except BaseException:
            self._claims -= request.claims()
            raise

    async def _acquire(self, request):
        """The fence, and the time from which the lease counts: before the request was sent."""
        turn, call, is_left = Turn(request, self._ask_every), None, False
        try:
            while True:
                piece_ms = turn.piece_ms()
                try:
                    connection = await self._connect()
                    turn.asked, is_left, sent = turn.asked + 1, True, now()
                    call = self._background(self._ask(connection, request.acquire(piece_ms), piece_ms / 1000))
                    await asyncio.wait({call})  # A cancelled task leaves the call alone, so that it can be withdrawn.
                    fence, waited = call.result(), now() - sent
                    if fence is not None and waited > request.lease / 3:  # Granted when? A holder's lease starts anew.
                        sent = now()
                        call = self._background(self._ask(await self._connect(), request.acquire()))
                        await asyncio.wait({call})
                        fence = call.result()
                except (*ANSWERED, *BROKEN) as error:
                    is_left = is_left and (turn.asked > 1 or not isinstance(error, ANSWERED))
                    await asyncio.sleep(turn.failed(error, not turn.asked))
                    continue
                if fence is not None:
                    return fence, sent
                is_left = request.wait > 0  # Its place is kept, for the next piece of the wait.
                turn.refused(waited, piece_ms)
        except BaseException:
            if is_left:
                await asyncio.shield(self._background(self._withdraw(request, call)))
            raise

    async def _withdraw(self, request, unanswered):
        """Ends a request. A CANCEL may overtake it, so it is repeated until the request's call is answered."""
        try:
            give_up = now() + REPLY_LIMIT
            while await self._call(request.cancel()) is not None and now() < give_up:
                if (await asyncio.wait({unanswered}, timeout=0.1))[0]:
                    break
            await self._call(request.release())
        except (*ANSWERED, *BROKEN):
            pass  # The server cannot be reached: its lease ends a grant.
        finally:
            unanswered.cancel()
            await asyncio.gather(unanswered, return_exceptions=True)

    async def _call(self, command, limit=None, tries=3):
        """The reply to a command that may be repeated; raises the library's error when the last try fails."""
        for left in reversed(range(tries)):
            try:
                return await self._ask(await self._connect(), command, 0, limit)
            except BROKEN:
                if not left:
                    raise

    async def _ask(self, connection, command, wait=0, limit=None):
        """Gives ``connection`` back, or closes it where it is not known what comes on it next."""
        limit = wait + (limit or self._options["socket_timeout"])
        try:
            async with asyncio.timeout(limit):
                await connection.send_command(*command)
                reply = await connection.read_response(timeout=limit + 1)
        except ANSWERED:
            self._keep(connection)
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._keep(connection)
        return reply

    async def _connect(self):
        while self._idle:
            connection = self._idle.pop()
            try:
                has_input = getattr(connection, "can_read", None) or connection.can_read_destructive
                if not await has_input():
                    return connection
            except BROKEN:
                pass
            await connection.disconnect(nowait=True)
        connection = self._make(**self._options)
        await connection.connect()
        return connection

    def _keep(self, connection):
        if len(self._idle) < IDLE_MOST:
            self._idle.append(connection)
        else:
            self._background(connection.disconnect(nowait=True))

    def _background(self, work):
        task = asyncio.create_task(work)
        self._tasks.add(task)  # The loop itself holds tasks weakly.
        task.add_done_callback(self._tasks.discard)
        return task


class _Asked:
    """A lock that was asked for: ``held = await …`` or ``async with … as held``."""

    def __init__(self, *arguments):
        self._arguments, self._held = arguments, None

    def __await__(self):
        locks, request, on_loss = self._arguments
        return locks._lock(request, on_loss).__await__()

    async def __aenter__(self):
        self._held = await self
        return self._held

    async def __aexit__(self, kind, error, trace):
        return await self._held.__aexit__(kind, error, trace)


class Held:
    """A lock that is held and renewed every third of its lease. Leaving its ``async with`` releases it.

    ``fence``: the fencing token, an integer. ``key``, ``keys``, ``owner``: what was asked for, and by whom.
    """

    def __init__(self, locks, request, fence, sent, on_loss):
        self.fence, self.keys, self.key, self.owner = fence, request.keys, request.keys[0], request.owner
        self._locks, self._request, self._on_loss = locks, request, on_loss
        self._until = sent + request.lease
        self._why, self._over, self._releasing = None, asyncio.Event(), None
        self._renewer = locks._background(self._renew(sent))

    @property
    def lost(self):
        """True from the moment at which the server may have granted the lock to somebody else, or earlier."""
        if self._why is None and not self._over.is_set() and now() >= self._until:
            self._lose("its lease is over, and could not be renewed")
        return self._why is not None

    def check(self):
        """Raises Lost if the lock is lost."""
        if self.lost:
            raise Lost(f"{self.keys}, fence {self.fence}: {self._why}")

    async def release(self):
        """Gives the lock to the next waiter. Harmless when it is lost, or a second time.

        Returns True if the server confirms that the lock was held until now; False if not, or if that is not known
        as a reply was lost. Raises the library's ConnectionError or TimeoutError if the server cannot be reached
        with three tries: the lock is then free when its lease ends. A caller that is cancelled does not end it.
        """
        if self._releasing is not None:
            return False
        self._over.set()
        self._releasing = self._locks._background(self._release())
        return await asyncio.shield(self._releasing)

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, trace):
        try:
            await self.release()
        except (*ANSWERED, *BROKEN):
            if error is None:
                raise

    async def _release(self):
        try:
            return self._request.is_released(await self._locks._call(self._request.release()))
        finally:
            if not self._renewer.done():  # So that no late renewal meets another lock of the same owner.
                await asyncio.wait({self._renewer}, timeout=REPLY_LIMIT)
            self._locks._claims -= self._request.claims()

    async def _renew(self, sent):
        """Sends a renewal every third of the lease, and sooner after one that failed."""
        pace = self._request.lease / 3
        due = sent + pace
        while not await self._is_over(min(due, self._until)) and not self.lost:
            sent = now()
            try:
                async with asyncio.timeout(max(self._until - sent, 0)):
                    reply = await self._locks._call(self._request.renew(), tries=1)
            except (*ANSWERED, *BROKEN):
                due = now() + min(pace / 3, 1)
                continue
            if self.lost or self._over.is_set():
                return
            if not self._request.is_renewed(reply, self.fence):
                return self._lose("the server says that it is no longer held")
            self._until, due = sent + self._request.lease, sent + pace

    async def _is_over(self, moment):
        try:
            async with asyncio.timeout(max(0, moment - now())):
                return await self._over.wait()
        except TimeoutError:
            return False

    def _lose(self, why):
        self._why = why
        self._over.set()
        if self._on_loss:
            self._on_loss(self)
