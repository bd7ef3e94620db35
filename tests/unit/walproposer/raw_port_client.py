"""A client of the coordinator's port that can send anything at any time."""

from __future__ import annotations

import socket

from verdict_port import DEADLINE_SECONDS, Port

from quorum_wal.pgwire.connection import ClientConnection
from quorum_wal.pgwire.messages import BackendKeyData, Message, ReadyForQuery
from quorum_wal.pgwire.startup import StartupMessage

READY = ReadyForQuery().encode()


class RawClient:
    """Can send anything."""

    def __init__(self, port: Port, buffer_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.socket.connect(port.address)
        self.connection = ClientConnection()
        self._tail = b""

    def start(self) -> BackendKeyData:
        self.send(StartupMessage({"user": "app"}))
        greeting = self.receive_until(ReadyForQuery)
        return next(message for message in greeting if isinstance(message, BackendKeyData))

    def send(self, *messages: Message) -> None:
        self.socket.sendall(self.connection.send(*messages))

    def send_ahead(self, *messages: Message) -> None:
        """Send without waiting for a turn."""
        self.socket.sendall(b"".join(message.encode() for message in messages))

    def receive_until(self, kind: type[Message]) -> list[Message]:
        found: list[Message] = []
        while not found or not isinstance(found[-1], kind):
            message = self.connection.next()
            if isinstance(message, Message):
                found.append(message)
            elif data := self.socket.recv(1 << 16):
                self.connection.feed(data)
            else:
                raise AssertionError(f"closed after {found}")
        return found

    def reads_answers(self, count: int, bytes_max: int = 1 << 20) -> None:
        """So many are told from their ends, which is cheaper than to decode them."""
        while self._tail.count(READY) < count:
            data = self.socket.recv(bytes_max)
            assert data, "closed"
            self._tail += data
        for _ in range(count):
            self._tail = self._tail.partition(READY)[2]

    def reads_the_end(self) -> bytes:
        """All there is until the server closes."""
        found = b""
        try:
            while data := self.socket.recv(1 << 16):
                found += data
        except ConnectionResetError:
            pass  # it had not read all that was sent
        return found

    def close(self) -> None:
        self.socket.close()
