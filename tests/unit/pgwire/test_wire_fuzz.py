"""No input makes a half raise anything undeclared, loop, or hold more than a message.

Random bytes, and recordings of whole conversations with bytes changed, lost, doubled and cut off
anywhere, so that the damage also reaches the states behind the authentication.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from fake_link import PARAMETERS, FakeLink
from hypothesis import given, settings
from hypothesis import strategies as st

from pgwire.auth import make_verifier
from pgwire.commands import OptionCommand, parse_command
from pgwire.connection import NEED_DATA, PAUSED, ClientConnection, ServerConnection, State
from pgwire.errors import CommandSyntaxError, ConnectionRefused, ProtocolError, WireError
from pgwire.framing import MESSAGE_BYTES_MAX
from pgwire.handshake import ClientHandshake, ServerHandshake, ServerPolicy, greeting
from pgwire.messages import (
    Column,
    CommandComplete,
    CopyBothResponse,
    CopyData,
    CopyDone,
    CopyFail,
    DataRow,
    ErrorResponse,
    Message,
    NoticeResponse,
    Query,
    ReadyForQuery,
    RowDescription,
    Terminate,
)
from pgwire.replication import (
    HotStandbyFeedback,
    Keepalive,
    StandbyStatus,
    XLogData,
    parse_server_message,
    parse_standby_message,
)
from pgwire.startup import SSLRequest, StartupMessage

EXAMPLES = 300
POLICIES = {
    "trust": ServerPolicy(),
    "tls": ServerPolicy(tls_available=True, tls_required=True),
    "scram": ServerPolicy(verifiers={"u": make_verifier("pencil", b"salt", 2)}),
}
STARTUP = StartupMessage(
    {"user": "u", "replication": "true", "options": r"-c a=b\ c --d=e"}, 2, {"_pq_.x": "y"}
)


class RecordingLink(FakeLink):
    """Keeps the bytes of both directions."""

    def __init__(self, policy: ServerPolicy, *, password: str | None, tls: bool) -> None:
        super().__init__(policy, STARTUP, password=password, tls=tls)
        self.to_server = self.to_client = b""
        self._record()

    def _record(self) -> None:
        server_feed, client_feed = self.server.feed, self.client.feed

        def to_server(data: bytes | bytearray | memoryview) -> None:
            self.to_server += data
            server_feed(data)

        def to_client(data: bytes | bytearray | memoryview) -> None:
            self.to_client += data
            client_feed(data)

        self.server.feed, self.client.feed = to_server, to_client  # type: ignore[method-assign]


def recording(policy: str) -> tuple[bytes, bytes]:
    """A whole conversation: what the client sent, what the server sent."""
    link = RecordingLink(POLICIES[policy], password="pencil", tls=policy == "tls")
    link.shake_hands()
    link.from_client(Query("IDENTIFY_SYSTEM"))
    link.from_server(
        RowDescription((Column("systemid"), Column("dbname"))),
        DataRow((b"7", None)),
        NoticeResponse("NOTICE", "00000", "n", "d", "h"),
        CommandComplete("IDENTIFY_SYSTEM"),
        ReadyForQuery(),
    )
    link.from_client(Query("START_WAL_PUSH (node_id '5/00')"))
    link.from_server(CopyBothResponse())
    link.from_client(
        CopyData(StandbyStatus(1, 2, 3, 4).encode()),
        CopyData(HotStandbyFeedback(1, 2, 3, 4, 5).encode()),
    )
    link.from_server(CopyData(XLogData(1, 2, 3, b"wal").encode()))
    link.from_server(CopyData(Keepalive(1, 2, True).encode()), CopyDone())
    link.from_client(CopyDone())
    link.from_server(CommandComplete("START_STREAMING"), ReadyForQuery())
    link.from_client(Terminate())
    return link.to_server, link.to_client


RECORDINGS = {policy: recording(policy) for policy in POLICIES}


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with a few accidents."""
    damaged_data = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(damaged_data)))
        match draw(st.sampled_from(["change", "lose", "double", "insert", "cut"])):
            case "change":
                damaged_data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "lose":
                del damaged_data[at : at + draw(st.integers(1, 8))]
            case "double":
                damaged_data[at:at] = damaged_data[at : at + draw(st.integers(1, 40))]
            case "insert":
                damaged_data[at:at] = draw(st.binary(max_size=12))
            case _:
                del damaged_data[at:]
    return bytes(damaged_data)


def chunks_of(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """With cuts behind an SSLRequest and behind its answer: both sides wait there for TLS."""
    edges = sorted(cut % (len(data) + 1) for cut in (0, 1, len(SSLRequest().encode()), *cuts))
    for begin, end in pairwise([*edges, len(data)]):
        yield data[begin:end]


class ServerShell:
    """Answers everything as a server would, in zero time."""

    def __init__(self, policy: str) -> None:
        self.connection = ServerConnection()
        self._handshake = ServerHandshake(self.connection, POLICIES[policy], "server-nonce")

    def answer(self, message: Message) -> None:
        send = self.connection.send
        match message:
            case Query(text):
                self._execute(text)
            case CopyDone() | CopyFail():
                send(ErrorResponse("ERROR", "57014", "canceled"), ReadyForQuery())
            case Terminate():
                pass
            case CopyData():
                raise AssertionError("take_copy_data() comes first")
            case _:
                self._handshake.receive(message)
        if self.connection.state is State.GREETING:
            send(*greeting(PARAMETERS, 1, b"1234"))
        if self.connection.state is State.TLS_HANDSHAKE:
            self.connection.tls_established()

    def take(self, payload: memoryview) -> None:
        parse_standby_message(payload)

    def _execute(self, text: str) -> None:
        try:
            command = parse_command(text)
        except CommandSyntaxError as error:
            self.connection.send(ErrorResponse.of(error, "ERROR"), ReadyForQuery())
            return
        if isinstance(command, OptionCommand):
            self.connection.send(CopyBothResponse())
        else:
            self.connection.send(CommandComplete("OK"), ReadyForQuery())


class ClientShell:
    """Asks what the recording's client asked, whatever comes back."""

    def __init__(self, policy: str) -> None:
        self.connection = ClientConnection()
        self._handshake = ClientHandshake(
            self.connection, STARTUP, password="pencil", nonce="client-nonce", tls=policy == "tls"
        )
        self._commands = iter(["IDENTIFY_SYSTEM", "START_WAL_PUSH (node_id '5/00')"])
        self._handshake.start()

    def answer(self, message: Message) -> None:
        connection = self.connection
        if connection.state is State.TLS_HANDSHAKE:
            connection.tls_established()
            self._handshake.start()
        elif isinstance(message, ReadyForQuery):
            if (command := next(self._commands, None)) is not None:
                connection.send(Query(command))
        elif connection.state is State.COPY_SERVER_DONE:
            connection.send(CopyDone())
        elif connection.state not in (State.BUSY, State.COPY_BOTH, State.IDLE, State.CLOSED):
            self._handshake.receive(message)

    def take(self, payload: memoryview) -> None:
        parse_server_message(payload)


def run(shell: ServerShell | ClientShell, chunks: Iterator[bytes]) -> WireError | None:
    """Feed it all. Returns the declared error that stopped it; others fall through."""
    connection = shell.connection
    for chunk in chunks:
        connection.feed(chunk)
        assert connection.buffered < MESSAGE_BYTES_MAX
        steps_left = connection.buffered + 2  # each step eats a byte at least
        try:
            while True:
                steps_left -= 1
                assert steps_left >= 0, "no progress"
                if payloads := connection.take_copy_data():
                    for payload in payloads:
                        shell.take(payload)
                    continue
                message = connection.next()
                if message in (NEED_DATA, PAUSED):
                    break
                assert isinstance(message, Message)
                shell.answer(message)
        except (ProtocolError, ConnectionRefused) as error:
            return error
    return None


CUTS = st.lists(st.integers(0, 2000), max_size=12)


@given(policy=st.sampled_from(sorted(POLICIES)), data=st.data(), cuts=CUTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_server_survives_a_damaged_client(
    policy: str, data: st.DataObject, cuts: list[int]
) -> None:
    to_server, _ = RECORDINGS[policy]
    shell = ServerShell(policy)
    error = run(shell, chunks_of(data.draw(damaged(to_server)), cuts))
    if error is not None:
        last_words = shell.connection.farewell(error)
        assert not last_words or ErrorResponse.decode(last_words[5:]).severity == "FATAL"


@given(policy=st.sampled_from(sorted(POLICIES)), data=st.data(), cuts=CUTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_client_survives_a_damaged_server(
    policy: str, data: st.DataObject, cuts: list[int]
) -> None:
    _, to_client = RECORDINGS[policy]
    run(ClientShell(policy), chunks_of(data.draw(damaged(to_client)), cuts))


@given(data=st.binary(max_size=200), cuts=CUTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_both_survive_random_bytes(data: bytes, cuts: list[int]) -> None:
    for policy in POLICIES:
        run(ServerShell(policy), chunks_of(data, cuts))
        run(ClientShell(policy), chunks_of(data, cuts))


@given(data=st.binary(max_size=200), cuts=CUTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_stream_survives_random_bytes(data: bytes, cuts: list[int]) -> None:
    """Behind the authentication, in the middle of a copy."""
    server = ServerShell("scram")
    prefix = RECORDINGS["scram"][0]
    at = prefix.index(b"START_WAL_PUSH")
    assert run(server, iter([prefix[: prefix.index(b"\0", at) + 1]])) is None
    assert server.connection.state is State.COPY_BOTH
    run(server, chunks_of(data, cuts))


def test_the_recordings_themselves_are_without_fault() -> None:
    for policy, (to_server, to_client) in RECORDINGS.items():
        for cuts in ([], list(range(len(to_server)))):
            server, client = ServerShell(policy), ClientShell(policy)
            assert run(server, chunks_of(to_server, cuts)) is None
            assert server.connection.state is State.CLOSED
            assert run(client, chunks_of(to_client, cuts)) is None
            assert client.connection.state is State.IDLE
