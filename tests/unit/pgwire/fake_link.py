"""Both halves of a connection without I/O: each receives what the other one sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorum_wal.pgwire.connection import (
    NEED_DATA,
    PAUSED,
    ClientConnection,
    ServerConnection,
    State,
)
from quorum_wal.pgwire.handshake import ClientHandshake, ServerHandshake, ServerPolicy, greeting
from quorum_wal.pgwire.messages import BackendKeyData, CopyBothResponse, Message, Query
from quorum_wal.pgwire.startup import StartupMessage

STARTUP = StartupMessage({"user": "walproposer", "database": "tenant", "replication": "true"})
PARAMETERS = {"server_version": "18.1", "integer_datetimes": "on"}


def received(connection: ServerConnection | ClientConnection) -> list[Message]:
    """All messages that have arrived."""
    messages = []
    while isinstance(message := connection.next(), Message):
        messages.append(message)
    assert message in (NEED_DATA, PAUSED)
    return messages


def read_three_ways(
    connect: Callable[[], ServerConnection | ClientConnection], data: bytes, trailing: bytes
) -> list[Message]:
    """Read `data` whole, byte by byte and with the beginning of more; all must agree."""
    whole = connect()
    whole.feed(data)
    messages = received(whole)
    assert whole.buffered == 0

    by_bytes = connect()
    one_by_one = []
    for i in range(len(data)):
        by_bytes.feed(data[i : i + 1])
        one_by_one += received(by_bytes)
    assert one_by_one == messages
    assert by_bytes.buffered == 0

    longer = connect()
    longer.feed(data + trailing)
    assert received(longer) == messages
    assert longer.buffered == len(trailing)
    return messages


class FakeLink:
    """A client and a server, from the first byte on."""

    def __init__(
        self,
        policy: ServerPolicy | None = None,
        startup: StartupMessage = STARTUP,
        *,
        password: str | None = None,
        tls: bool = False,
    ) -> None:
        self.client = ClientConnection()
        self.server = ServerConnection()
        self.client_handshake = ClientHandshake(
            self.client, startup, password=password, nonce="client-nonce", tls=tls
        )
        self.server_handshake = ServerHandshake(
            self.server, policy or ServerPolicy(), "server-nonce"
        )
        self.client_got: list[Message] = []
        self.server_got: list[Message] = []

    def shake_hands(self) -> None:
        """Until both are idle. Raises what either half raises."""
        to_server = self.client_handshake.start()
        while self.client.state is not State.IDLE:
            to_server = self._to_client(self._to_server(to_server))
            if self.client.state is State.TLS_HANDSHAKE:
                self.client.tls_established()
                self.server.tls_established()
                to_server = self.client_handshake.start()
        assert self.server.state is State.IDLE

    @property
    def states(self) -> tuple[State, State]:
        return self.client.state, self.server.state

    def from_client(self, *messages: Message) -> list[Message]:
        self.server.feed(self.client.send(*messages))
        return received(self.server)

    def from_server(self, *messages: Message) -> list[Message]:
        self.client.feed(self.server.send(*messages))
        return received(self.client)

    def start_copy(self) -> None:
        self.shake_hands()
        assert self.from_client(Query("START_WAL_PUSH")) == [Query("START_WAL_PUSH")]
        assert self.from_server(CopyBothResponse()) == [CopyBothResponse()]
        assert self.states == (State.COPY_BOTH, State.COPY_BOTH)

    def _to_server(self, data: bytes) -> bytes:
        assert data, "the client waits for a server that has nothing to say"
        self.server.feed(data)
        answer = b""
        for message in received(self.server):
            self.server_got.append(message)
            answer += self.server_handshake.receive(message)
        if self.server_handshake.is_over:
            answer += self.server.send(*greeting(PARAMETERS, BackendKeyData(7, b"key!")))
        return answer

    def _to_client(self, data: bytes) -> bytes:
        self.client.feed(data)
        answer = b""
        for message in received(self.client):
            self.client_got.append(message)
            answer += self.client_handshake.receive(message)
        return answer


def server_in_copy() -> ServerConnection:
    link = FakeLink()
    link.start_copy()
    return link.server


def client_in_copy() -> ClientConnection:
    link = FakeLink()
    link.start_copy()
    return link.client


def idle_server() -> ServerConnection:
    link = FakeLink()
    link.shake_hands()
    return link.server


def busy_client() -> ClientConnection:
    link = FakeLink()
    link.shake_hands()
    link.from_client(Query("IDENTIFY_SYSTEM"))
    return link.client


def kinds(messages: Sequence[Message]) -> list[type[Message]]:
    return [type(message) for message in messages]
