"""A small HTTP store with objects that can be fenced, for the example.

    GET  /name                       the object, with its ETag and x-fence
    PUT  /name                       overwrites it for any client
    PUT  /name   x-fence: 7          412 if the object has seen a larger fence
    POST /name   x-fence: 7          the same check without a write: raises the fence, answers the object
    PUT  /name   If-Match: "etag"    412 unless the object is still that one
    PUT  /name   If-None-Match: *    412 if there is an object

S3 has the last two, and not `x-fence`. As there, the ETag is the MD5 sum of the
content: an object that is written again as it was keeps its ETag.
An object that has seen a fence is written with a fence only (428 without), so
that nobody gets around the check by leaving the header out.

Usage: store.py, which prints its port and runs until it is ended.
"""

import hashlib
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT_MAX = 1 << 20  # bytes
FENCE_MAX = (1 << 53) - 1


@dataclass
class Stored:
    content: bytes
    fence: int = 0

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content, usedforsecurity=False).hexdigest()}"'


class Refusal(Exception):
    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


class Store(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1; `checks=False` makes one that accepts whatever it is sent."""

    daemon_threads = True

    def __init__(self, checks: bool = True):
        super().__init__(("127.0.0.1", 0), Requests)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.checks = checks
        self._objects: dict[str, Stored] = {}
        # The check and the write are one step. Without this a smaller fence
        # could be checked before a larger one is written, and be written after it.
        self._turn = threading.Lock()

    def get(self, name: str) -> Stored:
        with self._turn:
            return self._existing(name)

    def put(self, name: str, content: bytes, fence: int | None, match: str | None, none_match: str | None) -> Stored:
        with self._turn:
            before = self._objects.get(name)
            if self.checks:
                check_fence(before, fence)
                check_etag(before, match, none_match)
            seen = max(before.fence if before else 0, fence or 0)
            self._objects[name] = Stored(content, seen)
            return self._objects[name]

    def announce(self, name: str, fence: int) -> Stored:
        with self._turn:
            stored = self._existing(name)
            if self.checks:
                check_fence(stored, fence)
            stored.fence = max(stored.fence, fence)
            return stored

    def _existing(self, name: str) -> Stored:
        if name not in self._objects:
            raise Refusal(404, f"there is no object {name}")
        return self._objects[name]


def check_fence(before: Stored | None, fence: int | None) -> None:
    seen = before.fence if before else 0
    if fence is None and seen > 0:
        raise Refusal(428, "this object is fenced: x-fence is missing")
    # Not <=: a holder may write as often as it likes under its one fence.
    if fence is not None and fence < seen:
        raise Refusal(412, f"x-fence {fence} is smaller than {seen}, which this object has seen")


def check_etag(before: Stored | None, match: str | None, none_match: str | None) -> None:
    if match is not None and (before is None or match != before.etag):
        raise Refusal(412, f"If-Match {match}: the object is another one now")
    if none_match is not None and none_match != "*":
        raise Refusal(400, f"If-None-Match {none_match}: only * can be asked for")
    if none_match == "*" and before is not None:
        raise Refusal(412, "If-None-Match *: there is an object")


class Requests(BaseHTTPRequestHandler):
    server: Store
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(lambda: self.server.get(self.path))

    def do_PUT(self) -> None:
        etags = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        self._answer(lambda: self.server.put(self.path, self._content(), self._fence(), *etags))

    def do_POST(self) -> None:
        self._answer(lambda: self.server.announce(self.path, self._fence(required=True)))

    def _content(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > CONTENT_MAX:
            self.close_connection = True  # What follows is not read, so it must not be taken for a request.
            raise Refusal(413, f"Content-Length {length} is not a number from 0 to {CONTENT_MAX}")
        return self.rfile.read(int(length))

    def _fence(self, required: bool = False) -> int | None:
        text = self.headers.get("x-fence")
        if text is None and not required:
            return None
        if text is None or not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= FENCE_MAX:
            raise Refusal(400, f"x-fence {text!r} is not a number from 1 to {FENCE_MAX}")
        return int(text)

    def _answer(self, act) -> None:
        try:
            stored = act()
            status, headers, body = 200, {"ETag": stored.etag, "x-fence": str(stored.fence)}, stored.content
        except Refusal as refusal:
            status, headers, body = refusal.status, {}, f"{refusal}\n".encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args) -> None:
        """Not logged: the story shows what was answered."""


if __name__ == "__main__":
    store = Store()
    print(store.server_port, flush=True)
    store.serve_forever()
