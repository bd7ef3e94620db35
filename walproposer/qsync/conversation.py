"""One client of the coordinator's port: messages in, messages or a verb out. Pure.

A verb comes in a simple query, or in an extended one, because drivers prepare frequent statements:

    Query               ->  verb  ->  RowDescription DataRow.. CommandComplete ReadyForQuery
    Parse Bind Describe ->  1 2 T
    Execute             ->  verb  ->  DataRow.. CommandComplete        Sync -> ReadyForQuery

Laws: one verb at a time. A client's message raises only ProtocolError, which ends its connection.
The memory for a client is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from quorum_wal.pgwire.errors import (
    FEATURE_NOT_SUPPORTED,
    PROTOCOL_VIOLATION,
    CommandSyntaxError,
    ProtocolError,
)
from quorum_wal.pgwire.extended_fields import (
    Target,
    decode_bind,
    decode_execute,
    decode_parse,
    decode_target,
)
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
    INT2_OID,
    INT4_OID,
    INT8_OID,
    TEXT_OID,
    CommandComplete,
    EmptyQueryResponse,
    ErrorResponse,
    Message,
    Query,
    ReadyForQuery,
    RowDescription,
)
from quorum_wal.walproposer.qsync.answers import Row, columns_of, data_row
from quorum_wal.walproposer.qsync.verbs import WORDS, Verb, parse_statement, parse_verb

NAMES_MAX = 64  # of prepared statements, and of portals

#: The types that drivers send in binary by default.
INTEGER_BYTES = {INT2_OID: 2, INT4_OID: 4, INT8_OID: 8}

INVALID_BINARY = "22P03"
INVALID_STATEMENT_NAME = "26000"
INVALID_CURSOR_NAME = "34000"
CONFIGURATION_LIMIT_EXCEEDED = "53400"


@dataclass(frozen=True, slots=True)
class _Statement:
    """`verb`: with a placeholder value for each parameter; None: the empty statement."""

    text: str
    verb: Verb | None
    type_oids: tuple[int, ...]  # of the parameters


class _Refused(Exception):
    """The report is the answer."""

    def __init__(self, report: ErrorResponse) -> None:
        super().__init__(report.message)
        self.report = report


class Conversation:
    """Every `receive` returns messages to send, or a verb, which `answer` or `refuse` must
    follow."""

    def __init__(self) -> None:
        self._is_extended = False
        self._statements: dict[str, _Statement] = {}
        self._portals: dict[str, Verb | None] = {}

    def receive(self, message: Message) -> list[Message] | Verb:
        """A message of an authenticated client, except Terminate. Raises ProtocolError."""
        self._is_extended = not isinstance(message, Query | FunctionCall)
        try:
            return self._receive(message)
        except CommandSyntaxError as error:
            return self._failed(ErrorResponse.of(error, "ERROR"))
        except _Refused as refused:
            return self._failed(refused.report)

    def answer(self, verb: Verb, rows: Iterable[Row]) -> list[Message]:
        """The messages that answer the last verb received."""
        found: list[Message] = [data_row(row) for row in rows]
        found.append(CommandComplete(_tag(verb, len(found))))
        if not self._is_extended:
            found = [RowDescription(tuple(columns_of(type(verb)))), *found, ReadyForQuery()]
        return found

    def refuse(self, sqlstate: str, text: str, hint: str = "") -> list[Message]:
        """The last verb received has failed."""
        return self._failed(ErrorResponse("ERROR", sqlstate, text, hint=hint or None))

    def _failed(self, report: ErrorResponse) -> list[Message]:
        return [report] if self._is_extended else [report, ReadyForQuery()]

    def _receive(self, message: Message) -> list[Message] | Verb:
        match message:
            case Query(text):
                return parse_verb(text) if _has_text(text) else _empty_query()
            case Sync():
                self._portals.clear()  # portals end with their transaction
                return [ReadyForQuery()]
            case Flush():
                return []
            case FunctionCall():
                raise _refused(FEATURE_NOT_SUPPORTED, "fastpath function calls are not supported")
            case _:
                return self._extended(message)

    def _extended(self, message: Message) -> list[Message] | Verb:
        match message:
            case Parse(data):
                return self._parse(data)
            case Bind(data):
                return self._bind(data)
            case Describe(data):
                return self._describe(data)
            case Close(data):
                target, name = decode_target(data)
                named: dict[str, Any] = (
                    self._statements if target is Target.STATEMENT else self._portals
                )
                named.pop(name, None)
                return [CloseComplete()]
            case Execute(data):
                name, _ = decode_execute(data)  # sends all rows and ignores the row limit
                verb = self._portal(name)
                return [EmptyQueryResponse()] if verb is None else verb
            case _:
                raise ProtocolError(f"{type(message).__name__} is not legal here")

    def _parse(self, data: bytes) -> list[Message]:
        fields = decode_parse(data)
        self._check_room(self._statements, fields.name)
        verb, parameters = None, 0
        if _has_text(fields.text):
            verb, parameters = parse_statement(fields.text)
        given = (*fields.type_oids, *[0] * parameters)[:parameters]
        type_oids = tuple(type_oid or TEXT_OID for type_oid in given)
        self._statements[fields.name] = _Statement(fields.text, verb, type_oids)
        return [ParseComplete()]

    def _bind(self, data: bytes) -> list[Message]:
        fields = decode_bind(data)
        self._check_room(self._portals, fields.name)
        statement = self._statement(fields.statement)
        if not fields.wants_text:
            raise _refused(
                FEATURE_NOT_SUPPORTED, "results in binary are not supported",
                hint="Ask for them as text.",
            )  # fmt: skip
        if len(fields.values) != len(statement.type_oids):
            raise _refused(
                PROTOCOL_VIOLATION,
                f"bind message supplies {len(fields.values)} parameters, but prepared statement "
                f'"{fields.statement}" requires {len(statement.type_oids)}',
            )
        verb = None
        if statement.verb is not None:
            sent = zip(fields.values, fields.binary, statement.type_oids, strict=True)
            verb = parse_verb(statement.text, [_decoded(*each) for each in sent])
        self._portals[fields.name] = verb
        return [BindComplete()]

    def _describe(self, data: bytes) -> list[Message]:
        target, name = decode_target(data)
        found: list[Message] = []
        if target is Target.STATEMENT:
            statement = self._statement(name)
            verb = statement.verb
            found.append(ParameterDescription(statement.type_oids))
        else:
            verb = self._portal(name)
        if verb is None:
            return [*found, NoData()]
        return [*found, RowDescription(tuple(columns_of(type(verb))))]

    def _statement(self, name: str) -> _Statement:
        if name not in self._statements:
            raise _refused(INVALID_STATEMENT_NAME, f'prepared statement "{name}" does not exist')
        return self._statements[name]

    def _portal(self, name: str) -> Verb | None:
        if name not in self._portals:
            raise _refused(INVALID_CURSOR_NAME, f'portal "{name}" does not exist')
        return self._portals[name]

    def _check_room(self, named: dict[str, Any], name: str) -> None:
        if name not in named and len(named) >= NAMES_MAX:
            raise _refused(
                CONFIGURATION_LIMIT_EXCEEDED,
                f"a connection has {NAMES_MAX} prepared statements or portals at most",
            )


def _has_text(text: str) -> bool:
    return bool(text.strip(" \t\r\n;"))


def _empty_query() -> list[Message]:
    return [EmptyQueryResponse(), ReadyForQuery()]


def _tag(verb: Verb, rows: int) -> str:
    """Drivers take the number at the end as a row count."""
    return f"{WORDS[type(verb)]} {rows}"


def _decoded(value: bytes | None, is_binary: bool, type_oid: int) -> str | None:
    """An undecodable text is not a valid LSN, number or gid either. Raises _Refused."""
    if value is None:
        return None
    if is_binary and type_oid in INTEGER_BYTES:
        if len(value) != INTEGER_BYTES[type_oid]:
            raise _refused(INVALID_BINARY, "incorrect binary data format in a parameter")
        return str(int.from_bytes(value, "big", signed=True))
    if is_binary and type_oid != TEXT_OID:
        raise _refused(
            FEATURE_NOT_SUPPORTED, f"parameters of type {type_oid} in binary are not supported",
            hint="Send them as text.",
        )  # fmt: skip
    return value.decode("utf-8", "replace")


def _refused(sqlstate: str, text: str, hint: str | None = None) -> _Refused:
    return _Refused(ErrorResponse("ERROR", sqlstate, text, hint=hint))
