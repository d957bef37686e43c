"""An object store between us and a directory: it drops, delays, truncates and damages answers.

It speaks as much of S3 as reading takes, so that obstore's own client and its retries are tested.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

# What befalls a request: by its number from 0 on, and the object's name.
Plan = Callable[[int, str], str]


@dataclass
class FaultyStore:
    """A running server, and what it was asked for."""

    directory: Path  # of buckets
    endpoint: str = ""
    # "" for a right answer; "drop", "delay", "trickle", "short", "cut", "flip"; or a status, "503".
    plan: Plan = lambda _number, _name: ""
    delay_seconds: float = 0.0
    ignores_ranges: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)  # name, and range
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serve_faults(directory: Path) -> Iterator[FaultyStore]:
    """Serve the directories in a directory as buckets."""
    found = FaultyStore(directory)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            name = unquote(self.path.partition("?")[0]).lstrip("/")
            wanted = "" if found.ignores_ranges else self.headers.get("Range") or ""
            with found.lock:
                number = len(found.requests)
                found.requests.append((name, wanted))
            with suppress(BrokenPipeError, ConnectionResetError):  # who asked has given up
                self.answer(name, wanted, found.plan(number, name))

        def answer(self, name: str, wanted: str, fault: str) -> None:
            path = found.directory / name
            if fault == "drop":
                return
            if fault == "delay":
                time.sleep(found.delay_seconds)
            if fault.isdigit() or not path.is_file():
                code = {"403": "AccessDenied", "503": "SlowDown"}.get(fault, "Other")
                body = f"<Error><Code>{code}</Code></Error>".encode()
                self.send_response(int(fault) if fault.isdigit() else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            data = bytearray(path.read_bytes())
            size, span = len(data), re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
            first = int(span[1]) if span else 0
            end = min(int(span[2]) + 1, size) if span and span[2] else size
            data = data[first:end]
            if fault == "flip":
                data[len(data) // 2] ^= 16
            if fault == "short":  # and says so
                data = data[: len(data) // 2]
            self.send_response(206 if span else 200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Last-Modified", "Sun, 29 Nov 2026 00:00:00 GMT")
            self.send_header("ETag", '"1"')
            if span:
                self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{size}")
            self.end_headers()
            if fault == "trickle":
                for part in range(12):
                    time.sleep(found.delay_seconds / 12)
                    self.wfile.write(data[len(data) * part // 12 : len(data) * (part + 1) // 12])
            elif self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)

    class Server(ThreadingHTTPServer):
        request_queue_size = 64  # as many as ask at a time, and more

    with Server(("127.0.0.1", 0), Handler) as server:
        found.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
