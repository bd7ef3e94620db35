"""The table of the protocol, read by both halves, and the rules besides."""

from __future__ import annotations

import pytest
from fake_link import (
    FakeLink,
    busy_client,
    client_in_copy,
    idle_server,
    received,
    server_in_copy,
)

from quorum_wal.pgwire.connection import (
    NEED_DATA,
    PAUSED,
    TRANSITIONS,
    ClientConnection,
    ServerConnection,
    State,
)
from quorum_wal.pgwire.errors import ConnectionRefused, LocalProtocolError, ProtocolError
from quorum_wal.pgwire.extended_query import (
    Bind,
    BindComplete,
    Close,
    CloseComplete,
    Describe,
    Execute,
    Flush,
    FunctionCall,
    NoData,
    ParameterDescription,
    Parse,
    ParseComplete,
    Sync,
)
from quorum_wal.pgwire.framing import AUTH_MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX
from quorum_wal.pgwire.messages import (
    Column,
    CommandComplete,
    CopyData,
    CopyDone,
    CopyFail,
    DataRow,
    ErrorResponse,
    Message,
    NoticeResponse,
    ParameterStatus,
    Query,
    ReadyForQuery,
    RowDescription,
    SaslInitialResponse,
    Terminate,
)
from quorum_wal.pgwire.startup import EncryptionAnswer, GSSENCRequest, SSLRequest, StartupMessage

ERROR = ErrorResponse("ERROR", "58P01", "requested WAL segment has already been removed")
STARTUP = StartupMessage({"user": "u"})


def link_in_copy() -> FakeLink:
    link = FakeLink()
    link.start_copy()
    return link


def test_every_state_can_be_reached_and_left() -> None:
    reached = {
        state
        for sides in TRANSITIONS.values()
        for moves in sides.values()
        for state in moves.values()
    }
    beside_the_table = {State.STARTUP, State.TLS_HANDSHAKE, State.FAILED}
    assert reached | beside_the_table == set(State)
    assert set(TRANSITIONS) == set(State)
    ends = {state for state, sides in TRANSITIONS.items() if not any(sides.values())}
    assert ends == {State.TLS_HANDSHAKE, State.CLOSED}


def test_a_tag_has_one_meaning_for_its_reader() -> None:
    for state, sides in TRANSITIONS.items():
        for side, moves in sides.items():
            tags = [message.tag for message in moves if message.tag]
            assert len(tags) == len(set(tags)), (state, side)


def test_a_command_and_its_result() -> None:
    link = FakeLink()
    link.shake_hands()
    assert link.from_client(Query("SHOW a")) == [Query("SHOW a")]
    assert link.server.next() is PAUSED
    result = [
        RowDescription((Column("a"),)),
        DataRow((b"1",)),
        CommandComplete("SHOW"),
        ReadyForQuery(),
    ]
    assert link.from_server(*result) == result
    assert link.states == (State.IDLE, State.IDLE)
    assert link.from_client(Terminate()) == [Terminate()]
    assert link.states == (State.CLOSED, State.CLOSED)


def test_a_server_may_send_asynchronous_messages() -> None:
    link = link_in_copy()
    for message in (NoticeResponse("WARNING", "01000", "low on disk"), ParameterStatus("a", "b")):
        assert link.from_server(message) == [message]
    assert link.states == (State.COPY_BOTH, State.COPY_BOTH)


@pytest.mark.parametrize("first", ["client", "server"])
def test_a_copy_ends_in_order_from_either_side(first: str) -> None:
    link = link_in_copy()
    turns = [link.from_client, link.from_server]
    if first == "server":
        turns.reverse()
    one, other = turns
    assert one(CopyData(b"last"), CopyDone()) == [CopyData(b"last"), CopyDone()]
    assert other(CopyData(b"later"), CopyDone()) == [CopyData(b"later"), CopyDone()]
    assert link.states == (State.BUSY, State.BUSY)
    link.from_server(CommandComplete("START_REPLICATION"), ReadyForQuery())
    assert link.states == (State.IDLE, State.IDLE)


def test_both_may_end_a_copy_at_once() -> None:
    link = link_in_copy()
    to_server = link.client.send(CopyDone())
    to_client = link.server.send(CopyData(b"x"), CopyDone())
    link.server.feed(to_server)
    link.client.feed(to_client)
    assert received(link.server) == [CopyDone()]
    assert received(link.client) == [CopyData(b"x"), CopyDone()]
    assert link.states == (State.BUSY, State.BUSY)


def test_a_failed_copy_ignores_messages_already_sent() -> None:
    link = link_in_copy()
    late = link.client.send(CopyData(b"1"), CopyData(b"2"), CopyDone())
    to_client = link.server.send(ERROR, ReadyForQuery())
    link.server.feed(late)
    assert received(link.server) == []
    assert link.server.buffered == 0
    link.client.feed(to_client)
    assert received(link.client) == [ERROR, ReadyForQuery()]
    assert link.from_client(Query("SHOW a")) == [Query("SHOW a")]


def test_a_client_that_gives_up_reads_on_until_the_error() -> None:
    link = link_in_copy()
    to_server = link.client.send(CopyFail("disk full"))
    assert link.from_server(CopyData(b"still")) == [CopyData(b"still")]
    link.server.feed(to_server)
    assert received(link.server) == [CopyFail("disk full")]
    assert link.from_server(ERROR, ReadyForQuery()) == [ERROR, ReadyForQuery()]
    assert link.states == (State.IDLE, State.IDLE)


def test_a_server_may_stop_in_the_middle_of_a_copy() -> None:
    link = link_in_copy()
    assert link.from_server(CommandComplete("COPY 0")) == [CommandComplete("COPY 0")]
    assert link.states == (State.CLOSED, State.CLOSED)


def test_copy_data_without_a_copy_of_it() -> None:
    server = server_in_copy()
    server.feed(CopyData(b"one").encode() + CopyData(b"two").encode() + CopyDone().encode())
    assert server.has_frame
    assert [bytes(p) for p in server.take_copy_data()] == [b"one", b"two"]
    assert server.take_copy_data() == []
    assert server.next() == CopyDone()
    server.feed(CopyData(b"three").encode())
    assert server.take_copy_data() == [], "the client has no more to say"
    assert server.copy_data_header(3) + b"abc" == CopyData(b"abc").encode()


def test_an_illegal_message_is_not_sent() -> None:
    for connection, message in (
        (idle_server(), CopyData(b"")),
        (idle_server(), Query("SHOW a")),
        (server_in_copy(), ReadyForQuery()),
        (client_in_copy(), Query("SHOW a")),
        (busy_client(), Terminate()),
        (ServerConnection(), ReadyForQuery()),
        (ClientConnection(), Query("SHOW a")),
    ):
        state = connection.state
        with pytest.raises(LocalProtocolError, match=f"in state {state.name}"):
            connection.send(message)
        assert connection.state is state
    with pytest.raises(LocalProtocolError):
        idle_server().copy_data_header(1)


@pytest.mark.parametrize("kind", b"dQX\0\xffpRZ")
def test_an_illegal_message_is_refused_at_its_first_byte(kind: int) -> None:
    legal = {State.COPY_BOTH: b"dX", State.IDLE: b"dQXPBEDCHSF"}
    for connect in (server_in_copy, idle_server):
        server = connect()
        expected = legal[server.state]
        server.feed(bytes([kind]))
        if kind in expected:
            assert server.next() is NEED_DATA
        else:
            with pytest.raises(ProtocolError, match=f"invalid frontend message type {kind} "):
                server.next()


@pytest.mark.parametrize("first", [Parse, Bind, Describe, Execute, Close])
def test_after_the_refusal_of_an_extended_query_all_is_ignored_up_to_sync(
    first: type[Message],
) -> None:
    """As the protocol demands: the client has sent all of it before it reads the refusal."""
    server = idle_server()
    rest = (Parse(b"x"), Bind(b"x"), Describe(), Execute(), Close(), Flush(), FunctionCall())
    stale = (Query("SHOW a"), CopyData(b"x"), CopyDone(), CopyFail("x"))
    said = (first(), *rest, *stale, Sync(), Query("SHOW b"))
    server.feed(b"".join(message.encode() for message in said))
    assert isinstance(server.next(), first)
    assert server.next() is PAUSED
    assert server.state is State.EXTENDED
    server.send(ErrorResponse("ERROR", "08P01", "not supported"))
    assert isinstance(server.next(), Sync)
    assert server.next() is PAUSED
    server.send(ReadyForQuery())
    assert server.next() == Query("SHOW b")


def test_an_extended_query_that_is_answered() -> None:
    server = idle_server()
    said = (Parse(), Describe(), Bind(), Describe(), Flush(), Execute(), Close(), Sync())
    server.feed(b"".join(message.encode() for message in (*said, Query("SHOW a"))))
    row = RowDescription((Column("a"),))
    answers: list[tuple[Message, ...]] = [
        (ParseComplete(),), (ParameterDescription((25,)), row), (BindComplete(),), (NoData(),), (),
        (DataRow((b"1",)), DataRow((b"2",)), CommandComplete("SHOW")), (CloseComplete(),),
        (ReadyForQuery(),),
    ]  # fmt: skip
    for message, answer in zip(said, answers, strict=True):
        assert server.next() == message
        if answer:
            assert server.next() is PAUSED, "one message at a time"
            assert server.send(*answer)
    assert server.next() == Query("SHOW a")


def test_within_an_extended_query_only_its_own_messages_are_legal() -> None:
    server = idle_server()
    server.feed(Parse().encode() + FunctionCall().encode())
    server.next()
    with pytest.raises(LocalProtocolError):
        server.send(ReadyForQuery())
    server.send(ParseComplete())
    with pytest.raises(ProtocolError, match="invalid frontend message type 70 in state PIPELINE"):
        server.next()


def test_flush_and_sync_alone_and_a_function_call() -> None:
    server = idle_server()
    server.feed(Flush().encode() + Sync().encode())
    assert [server.next(), server.next()] == [Flush(), Sync()]
    server.send(ReadyForQuery())
    server.feed(FunctionCall(b"x").encode())
    assert server.next() == FunctionCall(b"x")
    assert server.state is State.BUSY


def test_a_client_may_leave_before_it_syncs() -> None:
    server = idle_server()
    server.feed(Parse().encode())
    server.next()
    server.send(ErrorResponse("ERROR", "08P01", "not supported"))
    server.feed(Terminate().encode())
    assert server.next() == Terminate()
    assert server.state is State.CLOSED


@pytest.mark.parametrize("kind", b"PBEDCHSF")
def test_an_extended_query_in_a_copy_is_refused(kind: int) -> None:
    server = server_in_copy()
    server.feed(bytes([kind]))
    with pytest.raises(ProtocolError, match=f"invalid frontend message type {kind} "):
        server.next()


def test_a_half_that_raised_stops_for_good() -> None:
    server = idle_server()
    server.feed(b"\xff" + Query("SHOW a").encode())
    with pytest.raises(ProtocolError) as first:
        server.next()
    held = server.buffered
    server.feed(Query("SHOW b").encode())
    assert server.buffered == held
    with pytest.raises(ProtocolError) as second:
        server.next()
    assert second.value is first.value
    assert server.take_copy_data() == []
    with pytest.raises(LocalProtocolError):
        server.send(ReadyForQuery())
    report = ErrorResponse.decode(server.farewell(first.value)[5:])
    assert (report.severity, report.sqlstate) == ("FATAL", "08P01")
    assert server.farewell(first.value) == b"", "once"


def test_a_bad_length_in_a_copy_stops_it_for_good() -> None:
    server = server_in_copy()
    server.feed(b"d\0\0\0\3")
    with pytest.raises(ProtocolError, match="invalid message length"):
        server.take_copy_data()
    with pytest.raises(ProtocolError, match="invalid message length"):
        server.next()


def test_messages_have_limits() -> None:
    server = idle_server()
    server.feed(b"Q" + (MESSAGE_BYTES_MAX + 5).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match=f"expected 4 to {MESSAGE_BYTES_MAX + 4}"):
        server.next()
    asked = ServerConnection()
    asked.state = State.SASL_ASKED
    asked.feed(b"p" + (AUTH_MESSAGE_BYTES_MAX + 5).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match=f"expected 4 to {AUTH_MESSAGE_BYTES_MAX + 4}"):
        asked.next()


def test_a_command_sent_early_waits_for_its_turn() -> None:
    server = idle_server()
    server.feed(Query("SHOW a").encode() + Query("SHOW b").encode())
    assert received(server) == [Query("SHOW a")]
    server.send(CommandComplete("SHOW"), ReadyForQuery())
    assert received(server) == [Query("SHOW b")]


@pytest.mark.parametrize("request_", [SSLRequest(), GSSENCRequest()])
def test_encryption_is_asked_for_once(request_: SSLRequest | GSSENCRequest) -> None:
    server = ServerConnection()
    server.feed(2 * request_.encode())
    assert server.next() == request_
    assert server.send(EncryptionAnswer(False)) == b"N"
    with pytest.raises(ProtocolError, match=f"{type(request_).__name__} is not legal now"):
        server.next()


def test_both_kinds_of_encryption_may_be_declined() -> None:
    server = ServerConnection()
    for request in (GSSENCRequest(), SSLRequest()):
        server.feed(request.encode())
        assert server.next() == request
        server.send(EncryptionAnswer(False))
    server.feed(STARTUP.encode())
    assert server.next() == STARTUP


def test_no_encryption_within_encryption() -> None:
    server = ServerConnection()
    server.tls_established()
    server.feed(SSLRequest().encode())
    with pytest.raises(ProtocolError, match="SSLRequest is not legal now"):
        server.next()


def test_plain_bytes_behind_an_ssl_request_are_not_taken_for_encrypted_ones() -> None:
    """CVE-2021-23214: an attacker may add a command before the encryption begins."""
    server = ServerConnection()
    server.feed(SSLRequest().encode() + STARTUP.encode())
    assert server.next() == SSLRequest()
    with pytest.raises(ProtocolError, match="received unencrypted data after SSL request") as e:
        server.send(EncryptionAnswer(True))
    assert server.farewell(e.value) == b""
    with pytest.raises(ProtocolError, match="received unencrypted data"):
        server.next()


def test_plain_bytes_behind_the_answer_are_not_taken_for_encrypted_ones() -> None:
    """CVE-2021-23222, the same for the client."""
    client = ClientConnection()
    client.send(SSLRequest())
    client.feed(b"S" + ReadyForQuery().encode())
    with pytest.raises(ProtocolError, match="received unencrypted data after SSL request"):
        client.next()
    with pytest.raises(ProtocolError, match="received unencrypted data"):
        client.next()


def test_a_client_does_not_read_errors_before_the_encryption() -> None:
    client = ClientConnection()
    client.send(SSLRequest())
    client.feed(ErrorResponse("FATAL", "08P01", "send your password in plain text").encode())
    with pytest.raises(ProtocolError, match="expected S or N, got 0x45"):
        client.next()


def test_another_major_version_gets_an_error() -> None:
    server = ServerConnection()
    server.feed(b"\0\0\0\x08\0\2\0\0")
    with pytest.raises(ConnectionRefused) as caught:
        server.next()
    assert b"0A000" in server.farewell(caught.value)


def test_an_unknown_way_to_authenticate_is_refused() -> None:
    client = ClientConnection()
    client.send(STARTUP)
    client.feed(b"R\0\0\0\x08\0\0\0\5")
    with pytest.raises(ProtocolError, match="unsupported authentication request"):
        client.next()


def test_a_client_does_not_answer_before_it_is_asked() -> None:
    client = ClientConnection()
    client.send(STARTUP)
    with pytest.raises(LocalProtocolError):
        client.send(SaslInitialResponse("SCRAM-SHA-256", b""))


def test_the_client_half_takes_bytes_in_the_same_ways() -> None:
    link = link_in_copy()
    link.client.feed(link.server.send(CopyData(b"one"), CopyData(b"two")))
    assert [bytes(p) for p in link.client.take_copy_data()] == [b"one", b"two"]
