"""The fields in the messages of an extended query, for a server that answers them.

    Parse      statement \\0 text \\0 | n (u16) | OID of a type (u32) x n
    Bind       portal \\0 statement \\0 | n (u16) | format (u16) x n
               | n (u16) | length (i32, -1: NULL) value x n | n (u16) | format of a column (u16) x n
    Describe   S or P | name \\0          of a statement or a portal; Close has the same
    Execute    portal \\0 | rows at most (u32), 0: all


A format is 0, text, or 1, binary. One format applies to all; none means text. All functions raise
ProtocolError. Source: Postgres documentation, "Message Formats".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quorum_wal.pgwire.framing import PayloadReader

TEXT_FORMAT, BINARY_FORMAT = 0, 1


class Target(Enum):
    """The object of Describe and Close."""

    STATEMENT = ord("S")
    PORTAL = ord("P")


@dataclass(frozen=True, slots=True)
class StatementFields:
    """Of Parse. `type_oids`: as the client gives them; for 0 the server chooses the type."""

    name: str
    text: str
    type_oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PortalFields:
    """Of Bind. `binary`: by value. `wants_text`: for all columns."""

    name: str
    statement: str
    values: tuple[bytes | None, ...]
    binary: tuple[bool, ...]
    wants_text: bool


def decode_parse(data: bytes) -> StatementFields:
    """Raises ProtocolError."""
    fields = PayloadReader(data, "Parse")
    name, text = fields.string(), fields.string()
    found = StatementFields(name, text, tuple(fields.uint32() for _ in range(fields.uint16())))
    fields.finish()
    return found


def decode_bind(data: bytes) -> PortalFields:
    """Raises ProtocolError."""
    fields = PayloadReader(data, "Bind")
    name, statement = fields.string(), fields.string()
    formats = _formats(fields)
    values = tuple(_value(fields) for _ in range(fields.uint16()))
    if len(formats) not in (0, 1, len(values)):
        raise fields.error(f"expected formats of {len(values)} parameters, got {len(formats)}")
    binary = tuple(each == BINARY_FORMAT for each in formats)
    if len(binary) != len(values):
        binary = (binary or (False,)) * len(values)
    wants_text = all(each == TEXT_FORMAT for each in _formats(fields))
    fields.finish()
    return PortalFields(name, statement, values, binary, wants_text)


def decode_target(data: bytes) -> tuple[Target, str]:
    """Of Describe and Close. Raises ProtocolError."""
    fields = PayloadReader(data, "Describe or Close")
    kind = fields.uint8()
    try:
        target = Target(kind)
    except ValueError:
        raise fields.error(f"expected S or P, got byte {kind}") from None
    name = fields.string()
    fields.finish()
    return target, name


def decode_execute(data: bytes) -> tuple[str, int]:
    """Returns the portal and the maximum number of rows. Raises ProtocolError."""
    fields = PayloadReader(data, "Execute")
    portal, rows_max = fields.string(), fields.uint32()
    fields.finish()
    return portal, rows_max


def _formats(fields: PayloadReader) -> list[int]:
    formats = [fields.uint16() for _ in range(fields.uint16())]
    if not set(formats) <= {TEXT_FORMAT, BINARY_FORMAT}:
        raise fields.error(f"expected format 0 or 1, got {max(formats)}")
    return formats


def _value(fields: PayloadReader) -> bytes | None:
    size = fields.int32()
    if size < -1:
        raise fields.error(f"expected the length of a value, got {size}")
    return None if size == -1 else fields.take(size)
