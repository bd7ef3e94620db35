"""A server that pretends to be a safekeeper: it asks for secrets, and keeps what clients send.

with RogueSafekeeper("cleartext") as rogue:
    sk("status", "--safekeepers", rogue.address)
rogue.passwords == []
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import closing
from types import TracebackType
from typing import Self

from quorum_wal.pgwire.connection import NEED_DATA, ServerConnection, State
from quorum_wal.pgwire.messages import (
    AuthenticationOk,
    CommandComplete,
    ParameterStatus,
    ReadyForQuery,
)
from quorum_wal.pgwire.startup import EncryptionAnswer, StartupMessage

TIMEOUT = 120.0
#: AuthenticationCleartextPassword, AuthenticationMD5Password.
DEMANDS = {
    "cleartext": struct.pack(">cII", b"R", 8, 3),
    "md5": struct.pack(">cII", b"R", 12, 5) + b"salt",
}


class RogueSafekeeper:
    """A context manager. `demand`: one of DEMANDS, or "nothing": it accepts every client, and
    answers every command."""

    def __init__(self, demand: str) -> None:
        self.startups = 0
        self.passwords: list[bytes] = []  # the content of PasswordMessages
        self.commands: list[str] = []
        self._demand = demand
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT)
        self._listener.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        """One client after the other."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(TIMEOUT)
            with closing(sock):
                try:
                    self._serve(sock)
                except OSError:
                    continue  # the client has disconnected

    def _serve(self, sock: socket.socket) -> None:
        connection = ServerConnection()
        while connection.state is not State.AUTHENTICATION:
            message = connection.next()
            if message is NEED_DATA:
                data = sock.recv(4096)
                if not data:
                    return
                connection.feed(data)
            elif not isinstance(message, StartupMessage):
                sock.sendall(connection.send(EncryptionAnswer(False)))
        self.startups += 1
        if self._demand == "nothing":
            self._welcome(sock, connection)
            return
        sock.sendall(DEMANDS[self._demand])
        answer = sock.recv(4096)
        if answer:
            self.passwords.append(answer)

    def _welcome(self, sock: socket.socket, connection: ServerConnection) -> None:
        version = ParameterStatus("server_version", "18.0")
        sock.sendall(connection.send(AuthenticationOk(), version, ReadyForQuery()))
        while data := sock.recv(4096):
            self.commands.append(data[5:-1].decode(errors="replace"))
            sock.sendall(CommandComplete("SELECT 0").encode() + ReadyForQuery().encode())
