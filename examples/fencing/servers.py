"""What the story needs besides the lock server: PostgreSQL and the store, each its own and ended with it."""

import contextlib
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator

import psycopg

from store import Store

PATIENCE_S = 30


def postgres_programs() -> pathlib.Path | None:
    """Where initdb and postgres are: on the PATH, or where Debian puts the newest version."""
    on_path = shutil.which("initdb")
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    candidates = [path for path in [on_path and pathlib.Path(on_path), *reversed(found)] if path]
    return candidates[0].parent if candidates else None


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """A cluster of its own, by a Unix socket in its directory; gives what a client connects with."""
    programs = postgres_programs()
    if programs is None:
        raise FileNotFoundError("PostgreSQL is missing: apt install postgresql")
    # PostgreSQL refuses to run as root.
    nobody = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    as_other = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []} if nobody else {}
    directory = pathlib.Path(tempfile.mkdtemp(prefix="fencing-"))
    if nobody:
        os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    try:
        options = ["--auth=trust", "--username=example", "--no-locale", "--encoding=UTF8", "--no-sync"]
        initialise = [programs / "initdb", *options, f"--pgdata={directory}/data"]
        subprocess.run(initialise, cwd=directory, check=True, stdout=subprocess.DEVNULL, **as_other)
        settings = {"listen_addresses": "", "unix_socket_directories": str(directory), "fsync": "off"}
        serve = [programs / "postgres", "-D", directory / "data"]
        serve += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(directory / "log", "w") as log:
            server = subprocess.Popen(serve, cwd=directory, stdout=log, stderr=log, **as_other)
        try:
            address = f"host={directory} user=example dbname=postgres"
            await_postgres(server, address, directory / "log")
            yield address
        finally:
            server.send_signal(signal.SIGINT)  # Does not wait for clients, as SIGTERM does.
            server.wait(PATIENCE_S)
    finally:
        shutil.rmtree(directory)


def await_postgres(server: subprocess.Popen, address: str, log: pathlib.Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return psycopg.connect(address).close()
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL did not start: {error}\n{log.read_text()}") from None
            time.sleep(0.02)


@contextlib.contextmanager
def store(checks: bool = True) -> Iterator[Store]:
    with Store(checks) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
