"""The messages of protocol v3 that we use, in both directions; each encodes and decodes itself.

The table in `connection.py` defines which side may send which message, and when. The packets before
the first message are in `startup.py`, the messages inside CopyData in `replication.py`. Source:
Postgres `libpq/protocol.h` and the chapter "Message Formats" of its documentation.
"""

from __future__ import annotations

import re
import struct
from typing import ClassVar, Self

from msgspec import Struct

from quorum_wal.pgwire.errors import WireError
from quorum_wal.pgwire.framing import PayloadReader, cstring, pack_header

# pg_type.dat
TEXT_OID, BYTEA_OID, INT2_OID, INT4_OID, INT8_OID, BOOL_OID = 25, 17, 21, 23, 20, 16
FLOAT8_OID, JSON_OID, TIMESTAMPTZ_OID = 701, 114, 1184
_POSITION = re.compile("[0-9]{1,9}")
# The other types have no fixed size: -1.
_TYPE_BYTES = {INT4_OID: 4, INT8_OID: 8, BOOL_OID: 1, FLOAT8_OID: 8, TIMESTAMPTZ_OID: 8}


class Message(Struct, frozen=True):
    """A message without fields; subclasses with fields define payload() and parse()."""

    # The type byte; for the family 'R' also the four bytes of the authentication code.
    tag: ClassVar[bytes] = b""

    def payload(self) -> bytes:
        """The fields, encoded."""
        return b""

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        """Builds the message from its fields. Raises ProtocolError."""
        return cls()

    def encode(self) -> bytes:
        """The whole frame."""
        body = self.tag[1:] + self.payload()
        return pack_header(self.tag[0], len(body)) + body

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """The message from the bytes after its tag. Raises ProtocolError."""
        fields = PayloadReader(payload, cls.__name__)
        message = cls.parse(fields)
        fields.finish()
        return message


# --- authentication ------------------------------------------------------------------------------


class NegotiateProtocolVersion(Message, frozen=True):
    """Server: supports up to this minor version, and none of these `_pq_.` options."""

    tag: ClassVar[bytes] = b"v"
    minor: int
    unsupported: tuple[str, ...]

    def payload(self) -> bytes:
        # The documentation says "minor version"; but servers send, and libpq expects, both halves.
        return struct.pack(">HHI", 3, self.minor, len(self.unsupported)) + b"".join(
            map(cstring, self.unsupported)
        )

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        major, minor, count = fields.uint16(), fields.uint16(), fields.uint32()
        if major != 3:
            raise fields.error(f"expected protocol version 3, got {major}.{minor}")
        if count > fields.left:
            raise fields.error(f"expected at most {fields.left} options, got {count}")
        return cls(minor, tuple(fields.string() for _ in range(count)))


class AuthenticationOk(Message, frozen=True):
    """Server: the client is authenticated."""

    tag: ClassVar[bytes] = b"R\0\0\0\0"


class AuthenticationSasl(Message, frozen=True):
    """Server: authenticate with one of these mechanisms, best first."""

    tag: ClassVar[bytes] = b"R\0\0\0\x0a"
    mechanisms: tuple[str, ...]

    def payload(self) -> bytes:
        return b"".join(map(cstring, self.mechanisms)) + b"\0"

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(tuple(iter(fields.string, "")))


class Opaque(Message, frozen=True):
    """A message whose fields stay encoded: those of SCRAM, and messages that are refused."""

    data: bytes = b""

    def payload(self) -> bytes:
        return self.data

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(fields.rest())


class AuthenticationSaslContinue(Opaque, frozen=True):
    """Server: the challenge (server-first-message)."""

    tag: ClassVar[bytes] = b"R\0\0\0\x0b"


class AuthenticationSaslFinal(Opaque, frozen=True):
    """Server: the outcome (server-final-message)."""

    tag: ClassVar[bytes] = b"R\0\0\0\x0c"


class SaslInitialResponse(Message, frozen=True):
    """Client: the chosen mechanism, and its client-first-message."""

    tag: ClassVar[bytes] = b"p"
    mechanism: str
    data: bytes

    def payload(self) -> bytes:
        return cstring(self.mechanism) + struct.pack(">i", len(self.data)) + self.data

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        mechanism, size = fields.string(), fields.int32()
        return cls(mechanism, fields.take(size) if size >= 0 else b"")


class SaslResponse(Opaque, frozen=True):
    """Client: the answer to the challenge (client-final-message)."""

    tag: ClassVar[bytes] = b"p"


# --- the session ---------------------------------------------------------------------------------


class ParameterStatus(Message, frozen=True):
    """Server: the value of a parameter that clients depend on."""

    tag: ClassVar[bytes] = b"S"
    name: str
    value: str

    def payload(self) -> bytes:
        return cstring(self.name) + cstring(self.value)

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(fields.string(), fields.string())


class BackendKeyData(Message, frozen=True):
    """Server: a CancelRequest must repeat this. The key has 4 bytes, up to 256 since 3.2."""

    tag: ClassVar[bytes] = b"K"
    process_id: int
    secret_key: bytes

    def payload(self) -> bytes:
        return struct.pack(">I", self.process_id) + self.secret_key

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(fields.uint32(), fields.rest())


class ReadyForQuery(Message, frozen=True):
    """Server: send the next command. `status` is I (idle), T or E; we have no transactions."""

    tag: ClassVar[bytes] = b"Z"
    status: str = "I"

    def payload(self) -> bytes:
        return self.status.encode()

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        status = chr(fields.uint8())
        if status not in "ITE":
            raise fields.error(f"expected status I, T or E, got {status!r}")
        return cls(status)


class Query(Message, frozen=True):
    """Client: one command."""

    tag: ClassVar[bytes] = b"Q"
    text: str

    def payload(self) -> bytes:
        return cstring(self.text)

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(fields.string())


class Terminate(Message, frozen=True):
    """Client: disconnects."""

    tag: ClassVar[bytes] = b"X"


# --- results -------------------------------------------------------------------------------------


class Column(Struct, frozen=True):
    """A column of a result; all values are sent as text."""

    name: str
    type_oid: int = TEXT_OID


class RowDescription(Message, frozen=True):
    """Server: the columns of the rows to come."""

    tag: ClassVar[bytes] = b"T"
    columns: tuple[Column, ...]

    def payload(self) -> bytes:
        # Table and attribute 0: no table. Type modifier -1: none. Format 0: text.
        return struct.pack(">H", len(self.columns)) + b"".join(
            cstring(column.name)
            + struct.pack(
                ">IHIhih", 0, 0, column.type_oid, _TYPE_BYTES.get(column.type_oid, -1), -1, 0
            )
            for column in self.columns
        )

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(tuple(_parse_column(fields) for _ in range(fields.uint16())))


def _parse_column(fields: PayloadReader) -> Column:
    name = fields.string()
    _table, _attribute, type_oid, _size, _modifier, _format = struct.unpack(
        ">IHIhih", fields.take(18)
    )
    return Column(name, type_oid)


class DataRow(Message, frozen=True):
    """Server: one row. None is NULL."""

    tag: ClassVar[bytes] = b"D"
    values: tuple[bytes | None, ...]

    def payload(self) -> bytes:
        return struct.pack(">H", len(self.values)) + b"".join(
            b"\xff\xff\xff\xff" if value is None else struct.pack(">I", len(value)) + value
            for value in self.values
        )

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(tuple(_parse_value(fields) for _ in range(fields.uint16())))


def _parse_value(fields: PayloadReader) -> bytes | None:
    size = fields.int32()
    if size < -1:
        raise fields.error(f"expected the length of a value, got {size}")
    return None if size == -1 else fields.take(size)


class CommandComplete(Message, frozen=True):
    """Server: the command succeeded; the tag names it."""

    tag: ClassVar[bytes] = b"C"
    command_tag: str

    def payload(self) -> bytes:
        return cstring(self.command_tag)

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(fields.string())


class EmptyQueryResponse(Message, frozen=True):
    """Server: sent instead of CommandComplete if the command was empty."""

    tag: ClassVar[bytes] = b"I"


class _Report(Message, frozen=True):
    """The fields of ErrorResponse and NoticeResponse. Unknown fields are ignored."""

    severity: str
    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None
    position: int | None = None

    def payload(self) -> bytes:
        texts = (
            # Other servers may translate S, but never V; ours are equal.
            (b"S", self.severity),
            (b"V", self.severity),
            (b"C", self.sqlstate),
            (b"M", self.message),
            (b"D", self.detail),
            (b"H", self.hint),
            (b"P", None if self.position is None else str(self.position)),
        )
        return b"".join(code + _cleaned(text) for code, text in texts if text is not None) + b"\0"

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        # Not strict: before authentication a server may write in any encoding.
        texts: dict[str, str] = {}
        while (code := fields.uint8()) != 0:
            texts[chr(code)] = fields.string(strict=False)
        position = texts.get("P", "")
        return cls(
            severity=texts.get("V", texts.get("S", "")),
            sqlstate=texts.get("C", ""),
            message=texts.get("M", ""),
            detail=texts.get("D"),
            hint=texts.get("H"),
            position=int(position) if _POSITION.fullmatch(position) else None,
        )


def _cleaned(text: str) -> bytes:
    # A report must always be sendable: its text may quote bytes from a user or a disk.
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace") + b"\0"


class ErrorResponse(_Report, frozen=True):
    """Server: the command failed (ERROR), or the connection ends (FATAL)."""

    tag: ClassVar[bytes] = b"E"

    @classmethod
    def of(cls, error: WireError, severity: str) -> Self:
        """The report of one of our own exceptions."""
        return cls(severity, error.sqlstate, str(error), hint=error.hint, position=error.position)


class NoticeResponse(_Report, frozen=True):
    """Server: information for the user, at any time."""

    tag: ClassVar[bytes] = b"N"


# --- copying in both directions ------------------------------------------------------------------


class CopyBothResponse(Message, frozen=True):
    """Server: from now on both sides send CopyData. No columns, as in every replication stream."""

    tag: ClassVar[bytes] = b"W"

    def payload(self) -> bytes:
        return b"\0\0\0"

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        fields.uint8()
        fields.take(2 * fields.uint16())
        return cls()


class CopyData(Message, frozen=True):
    """Either side: one message of the replication sub-protocol, see `replication.py`."""

    tag: ClassVar[bytes] = b"d"
    data: bytes

    def payload(self) -> bytes:
        return self.data

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(fields.rest())


class CopyDone(Message, frozen=True):
    """Either side: no more CopyData follows."""

    tag: ClassVar[bytes] = b"c"


class CopyFail(Message, frozen=True):
    """Client: the copy failed, with the reason."""

    tag: ClassVar[bytes] = b"f"
    reason: str

    def payload(self) -> bytes:
        return cstring(self.reason)

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(fields.string(strict=False))
