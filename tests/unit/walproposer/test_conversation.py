"""The messages of a client of the coordinator's port, and their answers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.errors import ProtocolError
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
    CommandComplete,
    DataRow,
    EmptyQueryResponse,
    ErrorResponse,
    Message,
    Query,
    ReadyForQuery,
    RowDescription,
)
from quorum_wal.walproposer.qsync.answers import (
    Admission,
    Confirmation,
    FoundOutcome,
    LimboRow,
    Outcome,
    StatusPage,
    columns_of,
    data_row,
)
from quorum_wal.walproposer.qsync.conversation import NAMES_MAX, Conversation
from quorum_wal.walproposer.qsync.limbo_events import Verdict
from quorum_wal.walproposer.qsync.verbs import Admit, WaitLsn

ADMIT = RowDescription(tuple(columns_of(Admit)))
WAIT = RowDescription(tuple(columns_of(WaitLsn)))
TEXT = 25


def parse(text: str, name: str = "") -> Parse:
    return Parse(f"{name}\0{text}\0".encode() + b"\0\0")


def bind(
    *values: bytes | None, statement: str = "", portal: str = "", end: bytes = b"\0\0"
) -> Bind:
    encoded = b"".join(
        b"\xff\xff\xff\xff" if v is None else len(v).to_bytes(4, "big") + v for v in values
    )
    names = f"{portal}\0{statement}\0".encode()
    return Bind(names + b"\0\0" + len(values).to_bytes(2, "big") + encoded + end)


def execute(portal: str = "", rows_max: int = 0) -> Execute:
    return Execute(portal.encode() + b"\0" + rows_max.to_bytes(4, "big"))


@pytest.fixture
def talk() -> Conversation:
    return Conversation()


def failed(found: object) -> tuple[str, str]:
    assert isinstance(found, list)
    assert isinstance(found[0], ErrorResponse)
    return found[0].sqlstate, found[0].message


def test_a_simple_query(talk: Conversation) -> None:
    assert talk.receive(Query("ADMIT")) == Admit()
    assert talk.answer(Admit(), [Admission(7, 0)]) == [
        ADMIT,
        DataRow((b"7", b"0")),
        CommandComplete("ADMIT 1"),
        ReadyForQuery(),
    ]
    talk.receive(Query("ADMIT"))
    assert talk.refuse("53400", "full", "Wait.") == [
        ErrorResponse("ERROR", "53400", "full", hint="Wait."),
        ReadyForQuery(),
    ]
    assert talk.receive(Query(" ; ")) == [EmptyQueryResponse(), ReadyForQuery()]
    found = talk.receive(Query("SELECT 1"))
    assert failed(found)[0] == "42601"
    assert isinstance(found, list)
    assert found[1:] == [ReadyForQuery()]


def test_an_extended_query(talk: Conversation) -> None:
    assert talk.receive(parse("WAIT_LSN $1 TIMEOUT $2", "s")) == [ParseComplete()]
    described = [ParameterDescription((TEXT, TEXT)), WAIT]
    assert talk.receive(Describe(b"Ss\0")) == described
    assert talk.receive(bind(b"0/2", b"5", statement="s")) == [BindComplete()]
    assert talk.receive(Describe(b"P\0")) == [WAIT]
    verb = talk.receive(execute(rows_max=1))
    assert verb == WaitLsn(2, 5)
    assert isinstance(verb, WaitLsn)
    row = Confirmation(Verdict.CONFIRMED, Lsn(2), 7)
    assert talk.answer(verb, [row]) == [
        DataRow((b"confirmed", b"0/2", b"7")),
        CommandComplete("WAIT_LSN 1"),
    ]
    assert talk.receive(Sync()) == [ReadyForQuery()]
    assert talk.receive(Close(b"Ss\0")) == [CloseComplete()]
    assert failed(talk.receive(bind(statement="s"))) == (
        "26000",
        'prepared statement "s" does not exist',
    )
    talk.receive(parse("ADMIT"))
    talk.receive(bind())
    talk.receive(execute())
    assert talk.refuse("57P03", "no") == [ErrorResponse("ERROR", "57P03", "no")]


def test_portals_live_until_sync(talk: Conversation) -> None:
    talk.receive(parse("ADMIT"))
    talk.receive(bind(portal="p"))
    assert talk.receive(execute("p")) == Admit()
    talk.receive(Sync())
    assert failed(talk.receive(execute("p"))) == ("34000", 'portal "p" does not exist')


def test_the_empty_statement(talk: Conversation) -> None:
    assert talk.receive(parse("")) == [ParseComplete()]
    assert talk.receive(Describe(b"S\0")) == [ParameterDescription(()), NoData()]
    assert talk.receive(bind()) == [BindComplete()]
    assert talk.receive(Describe(b"P\0")) == [NoData()]
    assert talk.receive(execute()) == [EmptyQueryResponse()]
    assert talk.receive(Flush()) == []


@pytest.mark.parametrize(
    ("message", "sqlstate", "sentence"),
    [
        (parse("SELECT 1"), "42601", "expected a verb"),
        (bind(statement="none"), "26000", "does not exist"),
        (bind(b"1"), "08P01", "supplies 1 parameters, but prepared statement"),
        (bind(end=b"\0\1\0\1"), "0A000", "results in binary are not supported"),
        (Describe(b"Snone\0"), "26000", "does not exist"),
        (Describe(b"Pnone\0"), "34000", "does not exist"),
        (execute("none"), "34000", "does not exist"),
        (FunctionCall(b"x"), "0A000", "fastpath"),
    ],
)
def test_what_cannot_be_is_an_error_and_not_the_end(
    talk: Conversation, message: Message, sqlstate: str, sentence: str
) -> None:
    talk.receive(parse("ADMIT"))
    found = failed(talk.receive(message))
    assert found[0] == sqlstate
    assert sentence in found[1]
    assert talk.receive(bind()) == [BindComplete()]


def test_a_bad_value_is_refused_as_it_is_bound(talk: Conversation) -> None:
    talk.receive(parse("WAIT_LSN $1 TIMEOUT 5"))
    for value in (b"x", b"\xff\xfe", None):
        assert failed(talk.receive(bind(value)))[0] == "22023"


@pytest.mark.parametrize(
    "message",
    [
        Parse(b"x"),
        Bind(b"\0\0\0\5"),
        Describe(b"X\0"),
        Close(b""),
        Execute(b"\0"),
        Bind(b"\0\0\xff"),
        Bind(b"\0\0\0\1\0\2\0\0\0\0"),  # a third format
        Bind(b"\0\0\0\2\0\0\0\0\0\1\0\0\0\0\0\0"),  # two formats, one value
    ],
)
def test_a_message_that_is_cut_ends_the_connection(talk: Conversation, message: Message) -> None:
    with pytest.raises(ProtocolError):
        talk.receive(message)


def test_numbers_in_binary(talk: Conversation) -> None:
    """As psycopg sends them; other binary values are refused."""

    def bind_binary(lsn: bytes, timeout: bytes) -> Bind:
        values = b"".join(len(value).to_bytes(4, "big") + value for value in (lsn, timeout))
        return Bind(b"\0\0" + b"\0\2\0\0\0\1" + b"\0\2" + values + b"\0\0")

    for type_oid, size in ((21, 2), (23, 4), (20, 8)):
        types = b"\0\2" + bytes(4) + type_oid.to_bytes(4, "big")
        talk.receive(Parse(b"\0WAIT_LSN $1 TIMEOUT $2\0" + types))
        described = [ParameterDescription((TEXT, type_oid)), WAIT]
        assert talk.receive(Describe(b"S\0")) == described
        assert talk.receive(bind_binary(b"0/2", (300).to_bytes(size, "big"))) == [BindComplete()]
        assert talk.receive(execute()) == WaitLsn(2, 300)
        for wrong in (b"\xff" * size, b"", b"1"):
            assert failed(talk.receive(bind_binary(b"0/2", wrong)))[0] in ("22023", "22P03")
    talk.receive(Parse(b"\0WAIT_LSN $1 TIMEOUT $2\0\0\2" + bytes(4) + (701).to_bytes(4, "big")))
    assert failed(talk.receive(bind_binary(b"0/2", bytes(8))))[0] == "0A000"


def test_names_are_bounded(talk: Conversation) -> None:
    for number in range(NAMES_MAX):
        assert talk.receive(parse("ADMIT", f"s{number}")) == [ParseComplete()]
        assert talk.receive(bind(statement="s0", portal=f"p{number}")) == [BindComplete()]
    assert failed(talk.receive(parse("ADMIT", "more")))[0] == "53400"
    assert failed(talk.receive(bind(statement="s0", portal="more")))[0] == "53400"
    assert talk.receive(parse("QSYNC_LIST", "s0")) == [ParseComplete()]
    talk.receive(Close(b"Ss1\0"))
    assert talk.receive(parse("ADMIT", "more")) == [ParseComplete()]


def test_rows_as_they_travel() -> None:
    at = datetime(2026, 11, 24, 10, 0, 0, 250_000, tzinfo=UTC)
    row = LimboRow("g", "d", "o", at, 1.5, Lsn(16), True, False, "detach", at, "prepared")
    time = b"2026-11-24 10:00:00.250000+00:00"
    assert data_row(row).values == (
        *(b"g", b"d", b"o", time, b"1.5", b"0/10", b"t", b"f", b"detach", time, b"prepared"),
    )
    assert data_row(FoundOutcome(Outcome.PENDING, None)).values == (b"pending", None)
    assert data_row(StatusPage({"a": ["é"]})).values == ('{"a":["é"]}'.encode(),)
