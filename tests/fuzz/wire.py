"""Both halves of the wire with a peer that answers at once; their conversations."""

from __future__ import annotations

from collections.abc import Iterable

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.auth import make_verifier
from quorum_wal.pgwire.commands import OptionCommand, parse_command
from quorum_wal.pgwire.connection import (
    NEED_DATA,
    PAUSED,
    ClientConnection,
    ServerConnection,
    State,
)
from quorum_wal.pgwire.errors import CommandSyntaxError, ConnectionRefused, ProtocolError
from quorum_wal.pgwire.framing import MESSAGE_BYTES_MAX
from quorum_wal.pgwire.handshake import ClientHandshake, ServerHandshake, ServerPolicy, greeting
from quorum_wal.pgwire.messages import (
    BackendKeyData,
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
from quorum_wal.pgwire.replication import (
    HotStandbyFeedback,
    Keepalive,
    StandbyStatus,
    XLogData,
    parse_server_message,
    parse_standby_message,
)
from quorum_wal.walproposer.qsync.answers import Admission, Confirmation
from quorum_wal.walproposer.qsync.conversation import Conversation
from quorum_wal.walproposer.qsync.limbo_events import Verdict
from quorum_wal.walproposer.qsync.verbs import Admit, AskOutcome, ShowList, ShowStatus, Verb

from .seeds import STARTUP

PARAMETERS = {"server_version": "18.1", "integer_datetimes": "on"}
POLICIES = {
    "trust": ServerPolicy(),
    "tls": ServerPolicy(tls_available=True, tls_required=True),
    "scram": ServerPolicy(verifiers={"u": make_verifier("pencil", b"salt", 2)}),
}
WIRE_ERRORS = (ProtocolError, ConnectionRefused)


class ServerShell:
    """A server; `said` is what it has sent."""

    def __init__(self, policy: str) -> None:
        self.connection = ServerConnection()
        self.said = bytearray()
        self._handshake = ServerHandshake(self.connection, POLICIES[policy], "server-nonce")

    def start(self) -> None:
        """A server waits."""

    def answer(self, message: Message) -> None:
        match message:
            case Query(text):
                self._execute(text)
            case CopyDone() | CopyFail():
                self._send(ErrorResponse("ERROR", "57014", "canceled"), ReadyForQuery())
            case Terminate():
                pass
            case CopyData():
                raise AssertionError("take_copy_data() comes first")
            case _:
                self.said += self._handshake.receive(message)
        if self.connection.state is State.GREETING:
            self._send(*greeting(PARAMETERS, BackendKeyData(1, b"1234")))
        if self.connection.state is State.TLS_HANDSHAKE:
            self.connection.tls_established()

    def take(self, payload: memoryview) -> object:
        return parse_standby_message(payload)

    def last_words(self, error: Exception) -> None:
        assert isinstance(error, WIRE_ERRORS)
        words = self.connection.farewell(error)
        assert not words or ErrorResponse.decode(words[5:]).severity == "FATAL"

    def _send(self, *messages: Message) -> None:
        self.said += self.connection.send(*messages)

    def _execute(self, text: str) -> None:
        try:
            command = parse_command(text)
        except CommandSyntaxError as error:
            self._send(ErrorResponse.of(error, "ERROR"), ReadyForQuery())
            return
        if isinstance(command, OptionCommand):
            wal = (XLogData(1, 2, 3, b"wal"), Keepalive(1, 2, True))
            self._send(CopyBothResponse(), *(CopyData(each.encode()) for each in wal))
        else:
            row = RowDescription((Column("systemid"), Column("dbname"))), DataRow((b"7", None))
            notice = NoticeResponse("NOTICE", "00000", "n", "d", "h")
            self._send(*row, notice, CommandComplete("OK"), ReadyForQuery())


class ClientShell:
    """A client; it sends the same whatever it receives."""

    def __init__(self, policy: str) -> None:
        self.connection = ClientConnection()
        self.said = bytearray()
        self._handshake = ClientHandshake(
            self.connection, STARTUP, password="pencil", nonce="client-nonce", tls=policy == "tls"
        )
        self._commands = iter(["IDENTIFY_SYSTEM", "SHOW 1", "START_WAL_PUSH (node_id '5/00')"])

    def start(self) -> None:
        self.said += self._handshake.start()

    def answer(self, message: Message) -> None:
        connection = self.connection
        if connection.state is State.TLS_HANDSHAKE:
            connection.tls_established()
            self.start()
        elif isinstance(message, ReadyForQuery):
            if (command := next(self._commands, None)) is not None:
                self.said += connection.send(Query(command))
            else:
                self.said += connection.send(Terminate())
        elif connection.state is State.COPY_SERVER_DONE:
            self.said += connection.send(CopyDone())
        elif connection.state not in (State.BUSY, State.COPY_BOTH, State.IDLE, State.CLOSED):
            self.said += self._handshake.receive(message)

    def take(self, payload: memoryview) -> object:
        message = parse_server_message(payload)
        if isinstance(message, Keepalive) and self.connection.state is State.COPY_BOTH:
            answers = (StandbyStatus(1, 2, 3, 4), HotStandbyFeedback(1, 2, 3, 4, 5))
            self.said += self.connection.send(*(CopyData(a.encode()) for a in answers), CopyDone())
        return message

    def last_words(self, error: Exception) -> None:
        """A client has no last message."""


class PortShell:
    """The port of a coordinator, for an accepted client; every verb is answered at once."""

    def __init__(self) -> None:
        self.connection = ServerConnection()
        self.said = bytearray()
        self._conversation = Conversation()
        shell = ServerShell("trust")
        self.connection = shell.connection
        converse(shell, [STARTUP.encode()])

    def start(self) -> None:
        """A server waits."""

    def answer(self, message: Message) -> None:
        if isinstance(message, Terminate):
            return
        found = self._conversation.receive(message)
        if not isinstance(found, list):
            is_refused = isinstance(found, AskOutcome | ShowStatus | ShowList)
            found = self._answered(found) if not is_refused else self._conversation.refuse("1", "2")
        self.said += self.connection.send(*found)

    def take(self, payload: memoryview) -> object:
        raise AssertionError("there is no copy here")

    def last_words(self, error: Exception) -> None:
        assert isinstance(error, WIRE_ERRORS)
        words = self.connection.farewell(error)
        assert ErrorResponse.decode(words[5:]).severity == "FATAL"

    def _answered(self, verb: Verb) -> list[Message]:
        row = Admission(7, 0)
        confirmed = Confirmation(Verdict.CONFIRMED, Lsn(16), 7)
        return self._conversation.answer(verb, [row if isinstance(verb, Admit) else confirmed])


Shell = ServerShell | ClientShell | PortShell


def converse(shell: Shell, chunks: Iterable[bytes]) -> list[str]:
    """Feed everything; returns what it understood, and the error that stopped it. Other errors are
    raised."""
    connection = shell.connection
    heard: list[str] = []
    for chunk in chunks:
        connection.feed(chunk)
        assert connection.buffered < MESSAGE_BYTES_MAX
        steps_left = connection.buffered + 2  # each step consumes at least one byte
        try:
            while True:
                steps_left -= 1
                assert steps_left >= 0, "no progress"
                if payloads := connection.take_copy_data():
                    for payload in payloads:
                        heard.append(text_of(shell.take(payload)))
                    continue
                message = connection.next()
                if message in (NEED_DATA, PAUSED):
                    break
                assert isinstance(message, Message)
                heard.append(text_of(message))
                shell.answer(message)
        except WIRE_ERRORS as error:
            shell.last_words(error)
            return [*heard, f"{type(error).__name__}: {error}"]
    return heard


def text_of(message: object) -> str:
    """With the bytes of a view instead of its address in memory."""
    if isinstance(message, XLogData):
        return f"{message.start_lsn} {message.end_lsn} {bytes(message.data)!r}"
    return repr(message)


def conversation(policy: str) -> tuple[bytes, bytes]:
    """A complete conversation: the bytes of the client, the bytes of the server."""
    server, client = ServerShell(policy), ClientShell(policy)
    client.start()
    to_server = to_client = b""
    while client.said or server.said:
        said, client.said = bytes(client.said), bytearray()
        to_server += said
        converse(server, [said])
        said, server.said = bytes(server.said), bytearray()
        to_client += said
        converse(client, [said])
    assert server.connection.state is client.connection.state is State.CLOSED
    return to_server, to_client
