"""Every message is parsed back from its own bytes, and the bytes are Postgres's."""

from __future__ import annotations

import pytest
from fake_link import (
    busy_client,
    client_in_copy,
    idle_server,
    kinds,
    read_three_ways,
    server_in_copy,
)

from quorum_wal.pgwire.connection import TRANSITIONS
from quorum_wal.pgwire.errors import CommandSyntaxError, ProtocolError
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
from quorum_wal.pgwire.messages import (
    INT8_OID,
    AuthenticationOk,
    AuthenticationSasl,
    AuthenticationSaslContinue,
    AuthenticationSaslFinal,
    BackendKeyData,
    Column,
    CommandComplete,
    CopyBothResponse,
    CopyData,
    CopyDone,
    CopyFail,
    DataRow,
    EmptyQueryResponse,
    ErrorResponse,
    Message,
    NegotiateProtocolVersion,
    NoticeResponse,
    ParameterStatus,
    Query,
    ReadyForQuery,
    RowDescription,
    SaslInitialResponse,
    SaslResponse,
    Terminate,
)
from quorum_wal.pgwire.startup import (
    CancelRequest,
    EncryptionAnswer,
    GSSENCRequest,
    SSLRequest,
    StartupMessage,
)

# The bytes were written by hand from the documentation's chapter "Message Formats".
FRAMES: list[tuple[Message, bytes]] = [
    (NegotiateProtocolVersion(0, ("_pq_.x",)), b"v\0\0\0\x13\0\3\0\0\0\0\0\1_pq_.x\0"),
    (AuthenticationOk(), b"R\0\0\0\x08\0\0\0\0"),
    (AuthenticationSasl(("A", "BC")), b"R\0\0\0\x0e\0\0\0\x0aA\0BC\0\0"),
    (AuthenticationSaslContinue(b"r=1"), b"R\0\0\0\x0b\0\0\0\x0br=1"),
    (AuthenticationSaslFinal(b"v=1"), b"R\0\0\0\x0b\0\0\0\x0cv=1"),
    (SaslInitialResponse("A", b"n,,"), b"p\0\0\0\x0dA\0\0\0\0\3n,,"),
    (SaslResponse(b"c=1"), b"p\0\0\0\x07c=1"),
    (ParameterStatus("a", "b"), b"S\0\0\0\x08a\0b\0"),
    (BackendKeyData(258, b"4321"), b"K\0\0\0\x0c\0\0\1\x024321"),
    (ReadyForQuery(), b"Z\0\0\0\5I"),
    (Query("é"), b"Q\0\0\0\7\xc3\xa9\0"),
    (Terminate(), b"X\0\0\0\4"),
    (
        RowDescription((Column("a"), Column("b", INT8_OID))),
        b"T\0\0\0\x2e\0\2"
        b"a\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0"
        b"b\0\0\0\0\0\0\0\0\0\0\x14\0\x08\xff\xff\xff\xff\0\0",
    ),
    (DataRow((b"ab", None, b"")), b"D\0\0\0\x14\0\3\0\0\0\2ab\xff\xff\xff\xff\0\0\0\0"),
    (Parse(b"\0SHOW a\0\0\0"), b"P\0\0\0\x0e\0SHOW a\0\0\0"),
    (Bind(bytes(8)), b"B\0\0\0\x0c\0\0\0\0\0\0\0\0"),
    (Describe(b"P\0"), b"D\0\0\0\6P\0"),
    (Execute(bytes(5)), b"E\0\0\0\x09\0\0\0\0\0"),
    (Close(b"S\0"), b"C\0\0\0\6S\0"),
    (Flush(), b"H\0\0\0\4"),
    (Sync(), b"S\0\0\0\4"),
    (FunctionCall(b"\0"), b"F\0\0\0\5\0"),
    (ParseComplete(), b"1\0\0\0\4"),
    (BindComplete(), b"2\0\0\0\4"),
    (CloseComplete(), b"3\0\0\0\4"),
    (NoData(), b"n\0\0\0\4"),
    (ParameterDescription((25, 23)), b"t\0\0\0\x0e\0\2\0\0\0\x19\0\0\0\x17"),
    (CommandComplete("SHOW"), b"C\0\0\0\x09SHOW\0"),
    (EmptyQueryResponse(), b"I\0\0\0\4"),
    (
        ErrorResponse("ERROR", "42601", "m", "d", "h", 12),
        b"E\0\0\0\x27SERROR\0VERROR\0C42601\0Mm\0Dd\0Hh\0P12\0\0",
    ),
    (NoticeResponse("WARNING", "01000", "m"), b"N\0\0\0\x21SWARNING\0VWARNING\0C01000\0Mm\0\0"),
    (CopyBothResponse(), b"W\0\0\0\x07\0\0\0"),
    (CopyData(b"\0\1"), b"d\0\0\0\6\0\1"),
    (CopyDone(), b"c\0\0\0\4"),
    (CopyFail("no"), b"f\0\0\0\7no\0"),
]
STARTUP_PACKETS = {SSLRequest, GSSENCRequest, CancelRequest, StartupMessage, EncryptionAnswer}


@pytest.mark.parametrize(("message", "data"), FRAMES, ids=lambda v: type(v).__name__)
def test_encoding_and_decoding(message: Message, data: bytes) -> None:
    assert message.encode() == data
    assert type(message).decode(data[4 + len(message.tag) :]) == message


def test_every_message_of_the_table_is_tested_here() -> None:
    in_table = {m for sides in TRANSITIONS.values() for moves in sides.values() for m in moves}
    assert in_table == set(kinds([message for message, _ in FRAMES])) | STARTUP_PACKETS


@pytest.mark.parametrize(("message", "data"), FRAMES, ids=lambda v: type(v).__name__)
def test_a_payload_that_is_cut_or_too_long_is_refused(message: Message, data: bytes) -> None:
    payload = data[4 + len(message.tag) :]
    takes_all = isinstance(
        message,
        CopyData
        | SaslResponse
        | AuthenticationSaslContinue
        | AuthenticationSaslFinal
        | BackendKeyData
        | Parse
        | Bind
        | Describe
        | Execute
        | Close
        | Flush
        | Sync
        | FunctionCall,
    )
    if takes_all:
        return
    with pytest.raises(ProtocolError, match=type(message).__name__):
        type(message).decode(payload + b"\0")
    if payload:
        with pytest.raises(ProtocolError, match=type(message).__name__):
            type(message).decode(payload[:-1])


def test_a_server_reads_three_ways() -> None:
    sent = [CopyData(b"one"), CopyData(b""), CopyData(bytes(40_000))]
    data = b"".join(message.encode() for message in sent)
    assert read_three_ways(server_in_copy, data, CopyDone().encode()[:-1]) == sent
    query = Query("IDENTIFY_SYSTEM")
    assert read_three_ways(idle_server, query.encode(), b"X") == [query]


def test_a_client_reads_three_ways() -> None:
    answer = [
        RowDescription((Column("a"),)),
        DataRow((b"x",)),
        NoticeResponse("NOTICE", "00000", "well"),
        CommandComplete("SELECT"),
        ReadyForQuery(),
    ]
    data = b"".join(message.encode() for message in answer)
    assert read_three_ways(busy_client, data, b"N\0\0") == answer
    stream = [CopyData(b"w" * 100), ParameterStatus("a", "b"), CopyDone()]
    data = b"".join(message.encode() for message in stream)
    assert read_three_ways(client_in_copy, data, b"E\0") == stream


def test_an_error_report_survives_any_text() -> None:
    report = ErrorResponse("ERROR", "XX000", "zero \0 byte, lone \udcff surrogate")
    decoded = ErrorResponse.decode(report.encode()[5:])
    assert decoded.message == "zero \\0 byte, lone \\udcff surrogate"


def test_an_error_report_of_a_server_in_another_encoding_is_read() -> None:
    decoded = ErrorResponse.decode(b"SFEHLER\0C28000\0Mpr\xfcfen\0P9\xb2\0F\xff.c\0\0")
    assert (decoded.severity, decoded.message, decoded.position) == ("FEHLER", "pr\ufffdfen", None)


def test_an_exception_becomes_a_report() -> None:
    error = CommandSyntaxError("no", position=3, hint="yes")
    assert ErrorResponse.of(error, "ERROR") == ErrorResponse(
        "ERROR", "42601", "no", hint="yes", position=3
    )


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ProtocolError, match="expected at most 0 options"):
        NegotiateProtocolVersion.decode(b"\0\3\0\0\xff\xff\xff\xff")
    with pytest.raises(ProtocolError, match="expected the length of a value, got -2"):
        DataRow.decode(b"\0\1\xff\xff\xff\xfe")
    with pytest.raises(ProtocolError, match="expected 2147483647 more bytes"):
        SaslInitialResponse.decode(b"A\0\x7f\xff\xff\xff")
    with pytest.raises(ProtocolError, match="expected status I, T or E"):
        ReadyForQuery.decode(b"Q")
