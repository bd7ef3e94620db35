"""An S3 server whose answers a test controls: errors, silence, half an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from quorum_wal.pg_fixtures.ports import free_port

Answer = Callable[[BaseHTTPRequestHandler], None]


class HostileS3:
    """`answer` may be changed at any time; `requests` are those received."""

    def __init__(self) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.answer: Answer = error_answer(500, "InternalError")
        self.requests: list[str] = []

    def options(self, **extra: str) -> dict[str, str]:
        return {"endpoint": self.endpoint, "region": "us-east-1", **extra}


@contextmanager
def hostile_s3() -> Iterator[HostileS3]:
    hostile = HostileS3()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            hostile.requests.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hostile.answer(self)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any

        def log_message(self, *_: object) -> None:
            """Not on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", hostile.port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hostile
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def error_answer(status: int, code: str) -> Answer:
    """An error in the XML of S3."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        error = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n{error}'
        _send(request, status, body.encode())

    return answer


def object_answer(body: bytes, *, cut: int | None = None) -> Answer:
    """An object. Only `cut` bytes of it are sent before the connection is closed."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        _send(request, 200, body, cut)

    return answer


def silence(released: threading.Event) -> Answer:
    """No answer until the test has ended."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        released.wait(60)
        request.close_connection = True

    return answer


def _send(
    request: BaseHTTPRequestHandler, status: int, body: bytes, cut: int | None = None
) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.send_header("Last-Modified", "Sat, 21 Nov 2026 10:15:00 GMT")
    request.send_header("ETag", '"e"')
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body if cut is None else body[:cut])
    if cut is not None:
        request.close_connection = True
        request.connection.close()
