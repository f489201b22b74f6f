"""The lock libraries of Python, each as its documentation shows it: one object for each caller's lock.

A peer is made with the number of callers, the address and the lease in milliseconds; `take(key)` returns a function
that releases the lock.
"""

from importlib.metadata import version

import psycopg
import redis
import redis_lock

import rlock_client

# The pool of redis-py ends at 100 connections by default.
POOL = {"max_connections": 12_000}


class RedisPy:
    name, title, version = "redis-py", "redis-py Lock", version("redis")
    waits = "polls, every 100 ms"
    settings = (
        "a client for all callers, max_connections 12,000 (100);"
        " timeout from the workload (none: a dead holder would keep the lock for ever)"
    )

    def __init__(self, url, lease_ms):
        self.client, self.lease_s = redis.Redis.from_url(url, **POOL), lease_ms / 1000

    def take(self, key):
        lock = self.client.lock(key, timeout=self.lease_s)
        lock.acquire()
        return lock.release


class PythonRedisLock:
    name, title, version = "python-redis-lock", "python-redis-lock", version("python-redis-lock")
    waits = "BLPOP of a signal, then SET NX"
    settings = (
        "a client for all callers, max_connections 12,000 (100), socket_timeout None (5 s, which ends its BLPOP);"
        " expire from the workload (none)"
    )

    def __init__(self, url, lease_ms):
        self.client = redis.StrictRedis.from_url(url, socket_timeout=None, **POOL)
        self.lease_s = max(1, lease_ms // 1000)

    def take(self, key):
        lock = redis_lock.Lock(self.client, key, expire=self.lease_s)
        lock.acquire()
        return lock.release


class SetNx:
    name, title, version = "set-nx-px", "SET NX PX, DEL", version("redis")
    waits = "does not wait"
    settings = "a yardstick: the two plain commands by redis-py; a lock that is held is an error"

    def __init__(self, url, lease_ms):
        self.client, self.lease_ms = redis.Redis.from_url(url, **POOL), lease_ms

    def take(self, key):
        if not self.client.set(key, "holder", nx=True, px=self.lease_ms):
            raise RuntimeError(f"{key} is held")
        return lambda: self.client.delete(key)


class Blpop:
    name, title, version = "blpop", "BLPOP, RPUSH of a token", version("redis")
    waits = "server queue"
    settings = "redis-py, max_connections 12,000 (100), socket_timeout None (5 s); a dead holder's token is gone"

    def __init__(self, url, _lease_ms):
        self.client = redis.Redis.from_url(url, socket_timeout=None, **POOL)
        self.make_token = self.client.register_script(
            "if redis.call('SET', KEYS[2], 1, 'NX') then redis.call('RPUSH', KEYS[1], 1) end"
        )
        self.known = set()

    def take(self, key):
        if key not in self.known:  # The first of all callers makes the token.
            self.make_token(keys=[key, f"{key}:made"])
            self.known.add(key)
        self.client.blpop(key)
        return lambda: self.client.rpush(key, 1)


class PostgresAdvisory:
    name, title, version = "postgres-advisory", "PostgreSQL advisory lock", version("psycopg")
    waits = "server queue"
    settings = "psycopg, a connection for each caller, autocommit; no lease: a lock ends with its connection"

    def __init__(self, url, _lease_ms):
        self.url, self.connection = url, None

    def take(self, key):
        if self.connection is None:
            self.connection = psycopg.connect(self.url, autocommit=True)
        self.connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (key,))
        return lambda: self.connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", (key,))


class Rlock:
    name, title = "rlock-python", "rlock, clients/python"
    waits = "server queue"
    settings = "one Client for all callers"
    version = rlock_client.__version__

    def __init__(self, url, lease_ms):
        self.client, self.lease_s = rlock_client.Client(url), lease_ms / 1000

    def take(self, key):
        lock = self.client.lock(key, lease=self.lease_s)
        lock.acquire()
        return lock.release


PEERS = [RedisPy, PythonRedisLock, SetNx, Blpop, PostgresAdvisory, Rlock]
# Each of its callers has a connection of its own, not one of a pool.
OF_ONE_CALLER = (PostgresAdvisory,)


def callers(peer, url, lease_ms, count):
    """What each of `count` callers takes locks with."""
    if peer in OF_ONE_CALLER:
        return [peer(url, lease_ms) for _ in range(count)]
    return [peer(url, lease_ms)] * count
