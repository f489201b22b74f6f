"""Locks while networks, servers and processes fail."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest
import redis
from conftest import SOON, AsyncApi, Proxy, in_child, until

import rlock_client
import rlock_client.asyncio
from rlock_client import Client, Lost, NotAcquired

HERE = pathlib.Path(__file__).parent


def test_a_loss_is_reported_at_once_and_at_the_end(client, server, key):
    losses, lock = [], client.lock(key, on_loss=lambda error: losses.append((error, time.monotonic())))
    with pytest.raises(Lost, match="the server ended it"), lock:
        server.ask("RLOCK.FORCE", key)
        began = time.monotonic()
        until(lambda: losses, "a loss")
        assert losses[0][1] - began < 1 and lock.lost and not lock.owned()
        with pytest.raises(Lost):
            lock.check()
        with client.lock(key, wait=1):
            pass
    with pytest.raises(Lost):
        lock.check()
    with pytest.raises(ZeroDivisionError), lock:
        server.ask("RLOCK.FORCE", key)
        1 / 0
    with client.lock(key, raise_lost=False):
        server.ask("RLOCK.FORCE", key)
    assert len(losses) <= 2


def test_fork(server, key):
    """A child has its own locks, and none of its parent's."""
    losses = []
    with Client(server.url) as client, client.lock(key, lease=1, on_loss=losses.append) as lock:

        def child():
            with pytest.raises(Lost, match="belongs to the process"):
                lock.check()
            seen = [lock.owned(), client.lock(key).acquire(False)]
            with client.lock(key + "2", lease=0.6) as mine:
                time.sleep(0.8)
                seen += [mine.owned(), mine.owner != lock.owner]
            lock.release()
            return [*seen, server.info(key)["mode"], losses]

        server.client.connection_pool.disconnect()
        assert in_child(child) == [False, False, True, True, "exclusive", []]
        assert lock.owned() and not losses
        for _ in range(8):  # While threads lock.
            threads = [threading.Thread(target=lambda n=n: client.lock(f"{key}{n}", wait=5).acquire()) for n in range(4)]
            [it.start() for it in threads]
            assert in_child(lambda: client.lock(key + "9", wait=5).__enter__().release()) is None
            [it.join() for it in threads]
        assert lock.owned() and not losses
    assert server.is_free(key)


def test_a_client_that_cannot_begin_harms_no_other(server, key, monkeypatch):
    with Client(server.url) as client, client.lock(key, lease=1) as lock:

        def refuse(*_):
            raise OSError(errno.EMFILE, "too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", refuse)
            failed = []
            for _ in range(8):
                with pytest.raises(OSError) as error:
                    Client(server.url).connect()
                failed.append(error)
        server.client.connection_pool.disconnect()
        seen = in_child(lambda: (lock.owned(), lock.remaining, client.lock(key + "2").acquire(timeout=5)))
        assert seen == (False, 0, True) and lock.owned()
    program = f"""if True:
        import socket, rlock_client
        lock = rlock_client.Client({server.url!r}).lock({key!r})
        lock.acquire()
        del socket.socketpair
        other, failed = rlock_client.Client({server.url!r}), []
        for _ in range(8):
            try: other.connect()
            except AttributeError as error: failed.append(error)"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SOON)
    assert (done.returncode, done.stderr) == (0, "") and server.is_free(key)


def test_a_child_keeps_nothing_of_a_dead_parent(server, key):
    program = f"""if True:
        import os, time, rlock_client
        lock = rlock_client.Client({server.url!r}).lock({key!r}, lease=0.6)
        lock.acquire()
        if os.fork() == 0:
            with rlock_client.Client({server.url!r}).lock({key + "2"!r}): time.sleep(60)
        print("held", flush=True)
        time.sleep(60)"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert parent.stdout.readline() == b"held\n"
        until(lambda: not server.is_free(key + "2"), "the child's lock")
        parent.kill()
        until(lambda: server.is_free(key), "the end of its lease", 3)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def test_fork_of_an_event_loop(server, key):
    client = rlock_client.asyncio.Client(server.url)

    async def main():
        async with client.lock(key, lease=1) as lock:
            server.client.connection_pool.disconnect()
            child = await asyncio.to_thread(in_child, lambda: asyncio.run(work()))
            assert child == (False, True)
            await asyncio.sleep(1)
            lock.check()
        await client.aclose()

    async def work():
        async with client.lock(key + "2") as mine:
            return await client.lock(key).acquire(False), await mine.owned()

    asyncio.run(main())


def test_a_cancelled_task_ends_at_once(server, key):
    """At every step, even while the connection opens, and nothing is left."""

    async def main():
        for turn in range(300):
            client = rlock_client.asyncio.Client(server.url, name=key)
            task = asyncio.ensure_future(client.lock(key).acquire())
            for _ in range(turn % 12):
                await asyncio.sleep(0)
            task.cancel()
            began = time.monotonic()
            await asyncio.wait({task}, timeout=SOON)
            assert task.done() and time.monotonic() - began < 1
            if turn % 12 == 11:
                await client.aclose()
            else:
                asyncio.ensure_future(client.aclose())
        await asyncio.sleep(0.2)

    asyncio.run(main())
    until(lambda: server.is_free(key) and not server.connections(key), "nothing left")


def test_a_coroutine_is_called_after_a_loss(server, key):
    """It can cancel the task that works under the lock."""

    async def main():
        task = asyncio.current_task()

        async def on_loss(error):
            await asyncio.sleep(0)
            task.cancel()

        async with rlock_client.asyncio.Client(server.url) as client:
            with pytest.raises(asyncio.CancelledError):
                async with client.lock(key, on_loss=on_loss):
                    await client.force(key)
                    await asyncio.sleep(SOON)

    asyncio.run(main())


def test_a_cancel_in_the_moment_of_a_grant(server, key):
    async def main():
        async with rlock_client.asyncio.Client(server.url) as client:
            for turn in range(200):
                lock = client.lock(key)
                await lock.acquire()
                task = asyncio.ensure_future(client.lock(key).acquire())
                await asyncio.sleep(0.001)
                await lock.release()
                for _ in range(turn % 6):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task}, timeout=SOON)
                if not task.cancelled():
                    client.force(key).close()
                assert await asyncio.wait_for(client.lock(key).acquire(timeout=5), SOON)
            assert (await client.metrics())["grants"] >= 200

    asyncio.run(main())
    until(lambda: server.is_free(key), "free")


def test_many(api, server, key):
    """They share one connection and need no threads, and cancelled waits leave nothing."""
    client, threads = api(server.url, name=key), threading.active_count()
    with client.lock(key):
        run = client.run if isinstance(client, AsyncApi) else None
        if run:

            async def cancelled():
                for _ in range(10):
                    waits = [asyncio.ensure_future(client.client.lock(key).acquire()) for _ in range(1000)]
                    await asyncio.sleep(0.02)
                    [it.cancel() for it in waits]
                    await asyncio.wait(waits)

            async def held():
                locks = [client.client.lock(f"{key}:{number}", lease=2) for number in range(1000)]
                assert all(await asyncio.gather(*(it.acquire() for it in locks)))
                waits = [asyncio.ensure_future(client.client.lock(key).acquire(timeout=3)) for _ in range(1000)]
                await asyncio.sleep(2.5)
                assert all([await it.owned() for it in locks]) and len(server.connections(key)) == 1
                assert server.info(key)["queued"] == 1000
                await asyncio.gather(*(it.release() for it in locks))
                assert not any(await asyncio.gather(*waits))

            run(cancelled())
        else:
            locks = [client.lock(f"{key}:{number}", lease=2) for number in range(1000)]
            assert all(lock.acquire() for lock in locks)
            time.sleep(2.5)
            assert all(lock.owned() for lock in locks)
            assert threading.active_count() <= threads + 2 and len(server.connections(key)) == 1
            [lock.release() for lock in locks]
        until(lambda: server.info(key)["queued"] == 0, "an empty queue")
        if run:
            run(held())
        assert len(server.connections(key)) == 1
    assert server.is_free(key)


@pytest.mark.parametrize("word", ["HELLO", "RLOCK.ACQUIRE", "RLOCK.RENEW", "RLOCK.RELEASE"])
def test_lost_replies(api, proxy, server, key, word):
    client = api(proxy.url)
    with client.lock(key + "0"):
        pass
    if word == "HELLO":
        proxy.lose = word
        proxy.cut()
    proxy.lose = word
    with client.lock(key, lease=1) as lock:
        time.sleep(0.6 if word == "RLOCK.RENEW" else 0)
        lock.check()
    assert proxy.lost == 1
    until(lambda: server.is_free(key), "free")


def test_cuts_while_threads_lock(api, proxy, server, key):
    client, done, inside = api(proxy.url), [], []

    def work():
        lock = client.lock(key)
        for _ in range(5):
            with lock:
                inside.append(1)
                assert len(inside) == 1
                time.sleep(0.003)
                inside.pop()
        done.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [it.start() for it in threads]
    for _ in range(6):
        time.sleep(0.05)
        proxy.cut()
    [it.join(20) for it in threads]
    assert len(done) == 8 and server.is_free(key)


def test_a_paused_server(api, begin, key):
    """A short limit holds, and afterwards nothing is left."""
    server = begin("one")
    client = api(server.url, response_timeout=0.5, retry_timeout=1)
    lock = client.lock(key, lease=1)
    lock.acquire()
    os.kill(server.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises((rlock_client.Unavailable, NotAcquired)):
        client.lock(key + "2", wait=0.5).__enter__()
    assert time.monotonic() - began < 3
    until(lambda: lock.lost, "a loss")
    os.kill(server.pid, signal.SIGCONT)
    with pytest.raises(Lost):
        lock.release()
    until(lambda: server.is_free(key) and server.is_free(key + "2"), "free")


def test_a_paused_process(server, key):
    program = f"""if True:
        import sys, rlock_client
        with rlock_client.Client({server.url!r}) as client, client.lock({key!r}, lease=0.5, raise_lost=False) as lock:
            print("held", flush=True)
            sys.stdin.readline()
            print(lock.owned(), lock.lost, flush=True)"""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe)
    assert process.stdout.readline() == b"held\n"
    process.send_signal(signal.SIGSTOP)
    until(lambda: server.is_free(key), "the end of its lease")
    process.send_signal(signal.SIGCONT)
    assert process.communicate(b"\n", timeout=SOON)[0] == b"False True\n" and process.returncode == 0


def test_a_release_in_the_second_of_a_restart(api, begin, key, tmp_path):
    options = [f"--set={it}" for it in ("appendonly yes", "appendfsync always", f"dir {tmp_path}")]
    server = begin("one", *options)
    proxy = Proxy(server.port)
    held, dead = threading.Event(), threading.Event()

    def work():
        with api(proxy.url).lock(key):
            held.set()
            dead.wait()

    thread = threading.Thread(target=work)
    thread.start()
    held.wait()
    os.kill(server.pid, signal.SIGKILL)
    dead.set()
    again = begin("one", *options)
    assert thread.is_alive() and not again.is_free(key)
    proxy.target = again.port
    thread.join(SOON)
    assert again.is_free(key)


def test_a_fail_over_behind_one_address(api, begin, key):
    """The old master answers READONLY, and the client closes that connection."""
    pair = begin("replica")
    old, new = (rlock_client.Client(it["url"]) for it in pair.servers)
    master, replica = (redis.Redis(port=it["port"]) for it in pair.servers)
    proxy = Proxy(pair.port)
    with api(proxy.url).lock(key, lease=2) as lock:
        until(lambda: replica.exists(key), "a copy")
        proxy.target = pair.servers[1]["port"]
        replica.replicaof("NO", "ONE")
        master.replicaof("127.0.0.1", proxy.target)
        time.sleep(2.5)
        lock.check()
        assert new.info(key)["holders"][0]["owner"] == lock.owner
    assert new.info(key)["mode"] == "free"
    old.close(), new.close()


def test_a_cluster(api, begin, key):
    client = api(begin("cluster", "--nodes", "3").url)
    with client.lock([f"{key}{number}" for number in range(9)], wait=SOON) as lock:
        assert len(lock.fences) == 9
        assert not client.lock(key + "4").acquire(False)
    with client.lock(key + "4", wait=0):
        pass


def fails_over(port):
    try:
        return redis.Redis(port=port).execute_command("SENTINEL", "FAILOVER", "locks")
    except redis.ResponseError:  # It may not know the replica yet.
        return False


def test_sentinels(api, begin, key):
    servers = begin("sentinel", "--sentinels", "3")
    client = api(servers.url)
    with client.lock(key, wait=SOON, lease=20) as lock:
        successor = redis.Redis(port=servers.servers[1]["port"])
        until(lambda: successor.exists(key), "a copy")
        until(lambda: fails_over(servers.about["sentinels"][0]["port"]), "a fail-over begins")
        until(lambda: b"master" in successor.execute_command("ROLE"), "a fail-over")
        until(lambda: lock.extend(60) and successor.pttl(key) > 50_000, "it is renewed there")
        lock.check()
    with client.lock(key, wait=SOON):
        assert successor.exists(key)


def test_tls(api, begin, key):
    tls = begin("one", "--tls").about["tls"]
    context = ssl.create_default_context(cafile=tls["authority"])
    client = api(tls["url"], tls=context)
    client.connect()
    with client.lock(key) as lock:
        assert lock.owned()
    with pytest.raises(rlock_client.NotConnected, match="(?i)certificate"):
        api(tls["url"]).connect()


# A recorded warning would keep its coroutine, and so the lock.
@pytest.mark.filterwarnings("ignore:coroutine", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal(server, key):
    """An exception from a signal handler leaves nothing, whenever it occurs."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Client(server.url) as client:
            for turn in range(500):
                lock, in_release = client.lock(key, lease=60), turn >= 200
                try:
                    if not in_release:
                        signal.setitimer(signal.ITIMER_REAL, 0.00005 + turn % 50 * 0.00002)
                    with lock:
                        if in_release:
                            signal.setitimer(signal.ITIMER_REAL, 0.000002 + turn % 100 * 0.000002)
                        else:
                            time.sleep(1)
                    time.sleep(1)
                except KeyboardInterrupt:
                    pass
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                del lock
                other = client.lock(key)
                assert other.acquire(timeout=2)
                other.release()
    finally:
        signal.signal(signal.SIGALRM, before)


def interrupt():
    raise KeyboardInterrupt


def interrupted(call, at, handler=interrupt, files=("rlock_client", threading.__file__)):
    """Runs a handler at this line of these files, as a signal may. False if the call ends before."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if not any(it in frame.f_code.co_filename for it in files):
            return None
        lines += event == "line"
        if lines == at:
            sys.settrace(None)
            handler()
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return lines >= at


@pytest.mark.filterwarnings("ignore:coroutine", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["acquire", "__enter__", "release", "__exit__"])
def test_an_interrupt_at_each_line(server, key, name):
    """Nothing stays held, although the lock object lives. Only what comes before the `try` of a release is not safe."""
    with Client(server.url) as client:
        client.connect()
        lock, at = client.lock(key, lease=60), 3
        arguments, is_end = (None,) * 3 if name == "__exit__" else (), name in ("release", "__exit__")
        while not is_end or lock.acquire():
            method = getattr(lock, name)
            if not interrupted(lambda: method(*arguments), at):
                break
            until(lambda: server.is_free(key), f"free after an interrupt at line {at}")
            assert not lock.owned()
            at += 1
        assert at > 10 and lock.owned() != is_end


def test_an_interrupt_of_a_wait_for_a_change(server, key):
    """Wherever it comes, the client's thread goes on, and no change is lost."""
    with Client(server.url) as client, Client(server.url).election(key).campaign("0") as leadership:
        changes, at = client.election(key).observe(), 1
        assert changes.get(timeout=SOON).leader.value == b"0"
        while interrupted(lambda: changes.get(timeout=0.001), at):
            leadership.proclaim(str(at))
            works = threading.Thread(target=client.metrics, daemon=True)
            works.start(), works.join(SOON)
            assert not works.is_alive(), f"interrupted at line {at}"
            change = changes.get(timeout=SOON)
            assert (change.leader.value, change.missed) == (str(at).encode(), False)
            at += 1
        assert at > 10


def test_a_signal_handler_uses_the_client_while_it_begins(server, key):
    def work():
        for name in ("connect", "close"):
            at, is_over = 1, False
            while not is_over:
                client = Client(server.url, name=key)

                def call():
                    with contextlib.suppress(rlock_client.Closed):
                        client.connect()

                is_over = not interrupted(call, at, getattr(client, name), ["rlock_client"])
                assert len(server.connections(key)) <= 1
                client.close()
                at += 1
            assert at > 10
        ended.append(True)

    ended, thread = [], threading.Thread(target=work, daemon=True)
    thread.start(), thread.join(2 * SOON)
    assert ended
    until(lambda: not server.connections(key), "no connection")


def test_a_logger_that_raises_ends_no_client(api, server, key, monkeypatch):
    def refuse(*_):
        raise ValueError("a mistake")

    monkeypatch.setattr(logging.getLogger("rlock_client"), "handle", refuse)
    def listener(occurrence):
        raise ValueError("a mistake")

    losses = []
    client = api(server.url, listener=listener)
    with client.lock(key):
        pass
    collected = client.lock(key)
    collected.acquire()
    del collected
    gc.collect()
    until(lambda: server.is_free(key), "it is released")
    for on_loss in (listener, losses.append):
        with client.lock(key, on_loss=on_loss, raise_lost=False):
            server.ask("RLOCK.FORCE", key)
            until(lambda: losses or on_loss is listener, "a loss")
    with pytest.raises(ZeroDivisionError), client.lock(key):
        server.ask("RLOCK.FORCE", key)
        1 / 0
    client.close()


def test_no_thread_can_be_started(server, key, monkeypatch, caplog):
    """The client cannot call on_loss then, but it continues."""
    with Client(server.url) as client, client.lock(key, on_loss=print, raise_lost=False) as lock:

        def refuse(self):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        server.ask("RLOCK.FORCE", key)
        until(lambda: lock.lost, "a loss")
        until(lambda: "no thread" in caplog.text, "a line in the log")
        with client.lock(key, wait=1):
            pass


def test_gevent(server, key):
    program = f"""if True:
        from gevent import monkey; monkey.patch_all()
        import gevent, rlock_client
        client, inside, most = rlock_client.Client({server.url!r}), [], []
        def work():
            for _ in range(3):
                with client.lock({key!r}):
                    inside.append(1); most.append(len(inside)); gevent.sleep(0.001); inside.pop()
        gevent.joinall([gevent.spawn(work) for _ in range(20)], raise_error=True)
        with client.lock({key!r}, lease=0.6) as lock:
            waits = gevent.spawn(client.lock({key!r}).acquire)
            gevent.sleep(0.8)
            waits.kill()
            gevent.sleep(0.1)
            print(len(most), max(most), lock.owned(), client.info({key!r})["queued"], waits.dead)
        client.close()"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("60 1 True 0 True\n", "")


def test_a_program_that_ends_releases(server, key):
    for program in (
        f"import rlock_client; lock = rlock_client.Client({server.url!r}).lock({key!r}); lock.acquire()",
        f"import rlock_client\nwith rlock_client.Client({server.url!r}).lock({key!r}): raise SystemExit",
    ):
        subprocess.run([sys.executable, "-c", program], check=True, timeout=SOON)
        assert server.is_free(key)


def stderr_of_a_wait(url, lines):
    """The standard error of a program that waits for a lock and does not configure logging."""
    program = f"import rlock_client; rlock_client.Client({url!r}).lock('invoice:7').acquire()"
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    timer = threading.Timer(SOON, process.kill)
    timer.start()
    printed = [process.stderr.readline() for _ in range(lines)]
    timer.cancel()
    time.sleep(1)  # Several attempts.
    process.kill()
    return printed + process.communicate()[1].splitlines()


def test_an_unreachable_server_is_reported_once():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    [line] = stderr_of_a_wait(f"redis://127.0.0.1:{port}", 1)
    assert re.fullmatch(rf"cannot reach 127\.0\.0\.1:{port} \(.*refused.*\), trying again\n", line), line


def test_attempts_that_are_given_up_end(key):
    """An address that answers nothing: its queue of connections is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(listener.getsockname())
        client = Client(f"redis://127.0.0.1:{listener.getsockname()[1]}", response_timeout=0.05)
        with pytest.raises(rlock_client.Error):
            client.lock(key).acquire(timeout=1)
        assert sum(it.name == "rlock-connect" for it in threading.enumerate()) <= 2
        client.close(0)


def test_a_wrong_password_is_reported_once(begin):
    server = begin("one")
    server.ask("CONFIG", "SET", "requirepass", "secret")
    for login, reason in ("", "NOAUTH"), (":wrong@", "WRONGPASS"):
        [line] = stderr_of_a_wait(f"redis://{login}127.0.0.1:{server.port}", 1)
        assert re.fullmatch(rf"127\.0\.0\.1:{server.port} refuses the connection \({reason} .*\), trying again\n", line), line


def test_the_error_of_connect_names_the_server(api, begin):
    server = begin("one")
    server.ask("CONFIG", "SET", "requirepass", "secret")
    client = api(server.url)
    with pytest.raises(rlock_client.NotConnected, match=rf"127\.0\.0\.1:{server.port}: NOAUTH"):
        client.connect()
    client.close()


def test_a_lack_of_rights_names_the_key_and_the_rule(api, begin):
    server = begin("one")
    server.ask("ACL", "SETUSER", "few", "on", ">p", "~other:*", "&rlock:client:*", "+@all")
    client = api(f"redis://few:p@127.0.0.1:{server.port}")
    for key, rule in ("invoice:7", "~invoice:*"), ("other:7", r"\+rlock.acquire"):
        with pytest.raises(rlock_client.Error, match=f"{key}: not permitted: .*{rule}.*docs/operating.md") as denied:
            client.lock(key).acquire()
        assert denied.value.code == "Denied"
        server.ask("ACL", "SETUSER", "few", "-rlock.acquire")


def test_it_is_typed():
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=HERE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
