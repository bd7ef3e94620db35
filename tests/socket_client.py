"""A client on one end of a socket pair, in the same thread as the server on the other end.

All messages fit into the socket buffers, so the client may send first and receive later.
"""

from __future__ import annotations

import socket

from quorum_wal.pgwire.blocking import CopyStream, ServerConfig, Session, accept_connection
from quorum_wal.pgwire.connection import ClientConnection, State
from quorum_wal.pgwire.messages import Message, Query
from quorum_wal.pgwire.startup import StartupMessage

CONFIG = ServerConfig(server_version="18.1", handshake_timeout_s=5)
STARTUP = StartupMessage({"user": "u", "application_name": "standby1"})
TIMEOUT_S = 5.0


class SocketClient:
    """The client's half of the protocol on a real socket."""

    def __init__(self) -> None:
        self.socket, self.server_socket = socket.socketpair()
        self.socket.settimeout(TIMEOUT_S)
        self.connection = ClientConnection()

    def send(self, *messages: Message) -> None:
        self.socket.sendall(self.connection.send(*messages))

    def receive(self) -> Message | None:
        """The server's next message; None if it has closed the connection."""
        while not isinstance(message := self.connection.next(), Message):
            data = self.socket.recv(65536)
            if not data:
                return None
            self.connection.feed(data)
        return message

    def receive_until(self, state: State) -> list[Message]:
        messages: list[Message] = []
        while self.connection.state is not state:
            message = self.receive()
            assert message is not None, f"server closed after {messages}"
            messages.append(message)
        return messages

    def receive_all(self) -> list[Message]:
        """All messages until the server closes the connection."""
        return list(iter(self.receive, None))

    def start(self, config: ServerConfig = CONFIG) -> Session:
        """Let the server accept; idle afterwards."""
        self.send(STARTUP)
        session = accept_connection(self.server_socket, config)
        assert session is not None
        self.receive_until(State.IDLE)
        return session

    def start_copy(self, config: ServerConfig = CONFIG) -> tuple[Session, CopyStream]:
        session = self.start(config)
        self.send(Query("START_WAL_PUSH"))
        assert session.read_command() == "START_WAL_PUSH"
        stream = session.start_copy_both()
        self.receive_until(State.COPY_BOTH)
        return session, stream

    def close(self) -> None:
        self.socket.close()
        self.server_socket.close()
