"""Draws the pictures of `rlock top` for the documents: what a real terminal shows, as SVG.

    tests/with-server python3 docs/pictures/draw.py [--into DIRECTORY] [--size COLUMNSxLINES]

RLOCK names the program (default: rlock). It needs tmux, and rich of PyPI. `make pictures` has all of that.
"""

import argparse
import contextlib
import io
import os
import pathlib
import re
import shlex
import socket
import subprocess
import time
import uuid

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

RLOCK = os.environ.get("RLOCK", "rlock")
# Without the fonts that rich would have fetched: the reader's own one will do.
SVG = re.sub(r"@font-face {{.*?}}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, ", "")
# Some programs that draw SVG would leave out spaces at the ends otherwise.
SVG = SVG.replace("<svg ", '<svg xml:space="preserve" ', 1)


class Server:
    """Who holds and who waits, on connections that stay open."""

    def __init__(self):
        self.connections = []
        self.numbers = iter(range(1, 10_000))

    def run(self, *words):
        connection = socket.create_connection(("127.0.0.1", int(os.environ["RLOCK_PORT"])))
        self.connections.append(connection)
        request = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in map(str.encode, words))
        connection.sendall(b"*%d\r\n%s" % (len(words), request))
        reply = connection.recv(1000)
        if reply.startswith(b"-"):
            raise SystemExit(f"{' '.join(words)}: {reply.decode()}")

    def owner(self, host):
        """As the clients name themselves."""
        number = next(self.numbers)
        return f"{host}:{2000 + number * 37 % 9000}:{uuid.uuid5(uuid.NAMESPACE_DNS, str(number))}:0"

    def hold(self, key, host, *options, lease="600000"):
        self.run("RLOCK.ACQUIRE", key, self.owner(host), lease, *options)

    def wait(self, key, count, *options):
        for number in range(count):
            self.hold(key, f"web-{number % 7 + 1}", *options, "WAIT", "600000", "NOTIFY", "pictures")


def contend(server):
    """Waits of all lengths; the longest, of 14 s, is over when this returns."""
    server.hold("invoice:2024:000017", "batch-2")
    server.wait("invoice:2024:000017", 12)
    server.hold("export:customers:eu-central-1", "batch-1")
    server.wait("export:customers:eu-central-1", 5)
    time.sleep(10)
    server.hold("election:orders", "orders-1", "VALUE", "10.0.0.7:8080")
    server.wait("election:orders", 2)
    for _ in range(3):
        server.hold("report:nightly", "report-1", "SHARED")
    server.wait("report:nightly", 4)
    time.sleep(4)
    for number in range(34):
        key = f"invoice:2024:{number * 7919 % 1000000:06}"
        server.hold(key, f"web-{number % 7 + 1}")
        server.wait(key, 1 + number % 3)


class Terminal:
    """`rlock top` in a terminal."""

    def __init__(self, columns, lines):
        self.columns = columns
        self.socket = f"rlock-pictures-{os.getpid()}"
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        command = f"exec {shlex.quote(RLOCK)} top"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), command, env=environment)

    def tmux(self, *arguments, env=None):
        command = ["tmux", "-L", self.socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout

    def press(self, *keys, shows):
        """Presses keys, and waits for what they bring."""
        for key in keys:
            self.tmux("send-keys", key)
        end = time.monotonic() + 20
        while shows not in self.shows():
            if time.monotonic() > end:
                raise SystemExit(f"`{shows}` is not on\n{self.shows()}")
            time.sleep(0.05)

    def shows(self, *options):
        return self.tmux("capture-pane", "-p", "-N", *options)

    def draw(self, path):
        console = Console(record=True, width=self.columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        for line in self.shows("-e").split("\n")[:-1]:
            console.print(Text.from_ansi(line), no_wrap=True, crop=True, overflow="crop")
        path.write_text(console.export_svg(title="rlock top", code_format=SVG, unique_id=path.stem))

    def close(self):
        with contextlib.suppress(subprocess.CalledProcessError):
            self.tmux("kill-server")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("--size", default="100x28")
    arguments = parser.parse_args()
    columns, lines = map(int, arguments.size.split("x"))
    server = Server()
    contend(server)
    # So that there is something to count.
    load = subprocess.Popen([RLOCK, "bench", "--clients", "6", "--locks", "2", "--seconds", "60"], stdout=subprocess.DEVNULL)
    terminal = Terminal(columns, lines)
    try:
        terminal.press(shows="hand-offs")
        terminal.press("o", "j", shows="by oldest wait")
        time.sleep(12)
        terminal.draw(arguments.into / "top.svg")
        terminal.press("Enter", shows="PLACE")
        terminal.draw(arguments.into / "top-queue.svg")
        terminal.press("F", shows="End every hold")
        terminal.draw(arguments.into / "top-force.svg")
        terminal.press("x", "Escape", "?", shows="Keys")
        terminal.draw(arguments.into / "top-help.svg")
    finally:
        terminal.close()
        load.terminate()
        load.wait()


if __name__ == "__main__":
    main()
