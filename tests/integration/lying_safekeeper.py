"""A program at a safekeeper's address: it answers as that safekeeper does, but for some lies.

with LyingSafekeeper(victim) as liar:       # the victim is killed
    liar.status["replicas"] = 7
"""

from __future__ import annotations

import json
import socket
from contextlib import closing
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pgwire.blocking import ServerConfig, Session, accept_connection
from quorum_wal.pgwire.errors import WireError
from quorum_wal.pgwire.messages import Column

IDENTITY = ("safekeeper_id", "version", "http", "instance", "site")
UNDEFINED_OBJECT = "42704"


class LyingSafekeeper:
    """A context manager. `identity`, `status` and `page` are what it reports about itself, of its
    timeline, and as the body of /status. `is_silent`: it accepts connections and commands, and
    never answers LIST_TIMELINES."""

    def __init__(self, victim: SafekeeperProcess) -> None:
        page = victim.status()
        self.victim = victim
        self.identity: dict[str, str] = {name: str(page[name]) for name in IDENTITY}
        self.status: dict[str, Any] = page["timelines"][0]
        self.page: bytes | None = None
        self.is_silent = False
        self._stopping = Event()

    def __enter__(self) -> Self:
        self.victim.kill()
        self._wal = _listen(self.victim.address)
        self._http = _listen(self.victim.http_address)
        for listener, serve in ((self._wal, self._serve), (self._http, self._serve_http)):
            Thread(target=_accept, args=(listener, serve), daemon=True).start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        for listener in (self._wal, self._http):
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _serve(self, sock: socket.socket) -> None:
        try:
            session = accept_connection(sock, ServerConfig(server_version="18.0"))
            if session is None:
                return
            with session:
                while (command := session.read_command()) is not None:
                    self._answer(session, command)
        except (OSError, WireError):
            return  # it has disconnected

    def _answer(self, session: Session, command: str) -> None:
        if command.startswith("IDENTIFY_SAFEKEEPER"):
            _send_row(session, self.identity)
        elif command.startswith("LIST_TIMELINES"):
            if self.is_silent:
                self._stopping.wait()
            _send_row(session, {"status": json.dumps(self.status)})
        else:
            session.send_error(UNDEFINED_OBJECT, "there is no timeline here")

    def _serve_http(self, sock: socket.socket) -> None:
        with closing(sock):
            sock.recv(65536)
            body = json.dumps({"disk": None}).encode() if self.page is None else self.page
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            try:
                sock.sendall(head.encode() + body)
            except OSError:
                return  # it has read enough


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_server((host, int(port)))


def _accept(listener: socket.socket, serve: Any) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        Thread(target=serve, args=(sock,), daemon=True).start()


def _send_row(session: Session, row: dict[str, str]) -> None:
    session.send_rows([Column(name) for name in row], [list(row.values())], "SELECT 1")
