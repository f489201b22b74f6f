#!/usr/bin/env python3
"""Draws the pictures of `rlock top` for the documents: what a real terminal shows, as SVG for light and dark pages.

    tests/with-server docs/pictures/draw.py [--size COLUMNSxLINES] [DIRECTORY]

RLOCK names the program (default: rlock). It needs tmux. `make pictures` has all of that.
"""

import argparse
import contextlib
import html
import os
import pathlib
import re
import shlex
import socket
import subprocess
import time
import uuid

RLOCK = os.environ.get("RLOCK", "rlock")
LETTER, LINE, EDGE = 8.4, 18, 14
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
 font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14" xml:space="preserve">
<title>{title}</title>
<style>
.screen {{ fill: #fff; stroke: #d5d9de }} text {{ fill: #1f2328 }} .dim {{ fill: #59636e }} .bold {{ font-weight: 700 }}
.red {{ fill: #b91c1c }} .yellow {{ fill: #8a5a00 }} rect.bar {{ fill: #1f2328 }} text.reversed {{ fill: #fff }}
@media (prefers-color-scheme: dark) {{
.screen {{ fill: #16191d; stroke: #343a41 }} text {{ fill: #e6e9ed }} .dim {{ fill: #9aa4af }}
.red {{ fill: #ff7b72 }} .yellow {{ fill: #e3b341 }} rect.bar {{ fill: #e6e9ed }} text.reversed {{ fill: #16191d }}
}}
</style>
<rect class="screen" x=".5" y=".5" width="{inner_width}" height="{inner_height}" rx="8"/>
"""
# What each code of the terminal adds to the style. All others are left out.
CODES = {"1": "bold", "2": "dim", "7": "reversed", "31": "red", "38;5;1": "red", "33": "yellow", "38;5;3": "yellow"}


class Server:
    """Holders and waiters, on connections that stay open."""

    def __init__(self):
        self.connections = []

    def run(self, *words):
        connection = socket.create_connection(("127.0.0.1", int(os.environ["RLOCK_PORT"])))
        self.connections.append(connection)
        request = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in map(str.encode, words))
        connection.sendall(b"*%d\r\n%s" % (len(words), request))
        if "WAIT" in words:
            return
        reply = connection.recv(1000)
        if reply.startswith(b"-"):
            raise SystemExit(f"{' '.join(words)}: {reply.decode()}")

    def ask(self, key, host, *options):
        """For an owner with a name such as the clients have."""
        number = len(self.connections)
        owner = f"{host}:{2000 + number * 37 % 9000}:{uuid.uuid5(uuid.NAMESPACE_DNS, str(number))}:0"
        self.run("RLOCK.ACQUIRE", key, owner, "600000", *options)

    def wait(self, key, count):
        for number in range(count):
            self.ask(key, f"web-{number % 7 + 1}", "WAIT", "0")


def contend(server):
    """Has waits of all lengths; the longest is 14 s old when this returns."""
    server.ask("invoice:2024:000017", "batch-2")
    server.wait("invoice:2024:000017", 12)
    server.ask("export:customers:eu-central-1", "batch-1")
    server.wait("export:customers:eu-central-1", 25)
    time.sleep(10)
    server.ask("election:orders", "orders-1", "VALUE", "10.0.0.7:8080")
    server.wait("election:orders", 2)
    for _ in range(3):
        server.ask("report:nightly", "report-1", "SHARED")
    server.wait("report:nightly", 4)
    time.sleep(4)
    for number in range(34):
        key = f"invoice:2024:{number * 7919 % 1000000:06}"
        server.ask(key, f"web-{number % 7 + 1}")
        server.wait(key, 1 + number % 3)


class Terminal:
    """`rlock top` in a terminal."""

    def __init__(self, columns, lines):
        self.columns, self.lines = columns, lines
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

    def draw(self, path, title):
        width, height = round(self.columns * LETTER + 2 * EDGE), self.lines * LINE + 2 * EDGE
        out = HEAD.format(title=title, width=width, height=height, inner_width=width - 1, inner_height=height - 1)
        style = set()
        for number, line in enumerate(self.shows("-e").splitlines()):
            out += drawn(line, style, EDGE + number * LINE)
        path.write_text(out + "</svg>\n")

    def close(self):
        with contextlib.suppress(subprocess.CalledProcessError):
            self.tmux("kill-server")


def drawn(line, style, top):
    """A line of the terminal. Afterwards the style is the one at its end."""
    out, column = "", 0
    for codes, words in re.findall(r"\x1b\[([\d;]*)m|([^\x1b]+)", line):
        if not words:
            change(style, codes)
            continue
        x = EDGE + column * LETTER
        column += len(words)
        if "reversed" in style:
            width = len(words) * LETTER
            out += f'<rect class="bar" x="{x:.1f}" y="{top}" width="{width:.1f}" height="{LINE}"/>\n'
        kind = " ".join(sorted(style))
        # Each column begins where it should, and has its width, whatever font the reader has.
        for part in re.finditer(r"\S+(?: \S+)*", words):
            at, wide = round(x + part.start() * LETTER, 1), round(len(part[0]) * LETTER, 1)
            out += f'<text x="{at}" y="{top + 13}" textLength="{wide}" class="{kind}">{html.escape(part[0])}</text>\n'
    return out


def change(style, codes):
    if codes in CODES:
        style.add(CODES[codes])
        return
    for code in codes.split(";"):
        if code in ("", "0"):
            style.clear()
        elif code == "39":
            style -= {"red", "yellow"}
        elif code in CODES:
            style.add(CODES[code])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path, nargs="?", default=pathlib.Path(__file__).parent)
    parser.add_argument("--size", default="100x26")
    arguments = parser.parse_args()
    columns, lines = map(int, arguments.size.split("x"))
    server = Server()
    # So that there are rates and percentiles.
    load = subprocess.Popen([RLOCK, "bench", "--clients", "6", "--locks", "2", "--seconds", "60"], stdout=subprocess.DEVNULL)
    terminal = Terminal(columns, lines)
    try:
        contend(server)
        terminal.press("o", "g", shows="by oldest wait")
        terminal.press(shows="web-1")
        terminal.draw(arguments.directory / "top.svg", "rlock top: the contended locks, by the oldest wait")
        terminal.press("Enter", shows="PLACE")
        terminal.draw(arguments.directory / "top-queue.svg", "rlock top: holder and queue of one lock")
        terminal.press("F", shows="End every hold")
        terminal.draw(arguments.directory / "top-force.svg", "rlock top: the question before it ends a hold")
    finally:
        terminal.close()
        load.terminate()
        load.wait()


if __name__ == "__main__":
    main()
