"""The messages of the extended query protocol and of function calls.

    Parse Bind Describe Execute Sync     sent by a driver for one query with parameters, at once
    1     2    t T      D.. C   Z        the answers

A walsender refuses them, so their fields stay encoded here; only the types are told apart. A server
that answers them decodes the fields with `extended_fields.py`.

Source: Postgres `libpq/protocol.h`; `postgres.c`, `forbidden_in_wal_sender`.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Self

from quorum_wal.pgwire.framing import PayloadReader
from quorum_wal.pgwire.messages import Message, Opaque

# ---- the client's


class Parse(Opaque, frozen=True):
    """Client: prepare a statement. The first message of an extended query."""

    tag: ClassVar[bytes] = b"P"


class Bind(Opaque, frozen=True):
    """Client: create a portal of a prepared statement."""

    tag: ClassVar[bytes] = b"B"


class Describe(Opaque, frozen=True):
    """Client: describe the columns of a statement or portal."""

    tag: ClassVar[bytes] = b"D"


class Execute(Opaque, frozen=True):
    """Client: run a portal."""

    tag: ClassVar[bytes] = b"E"


class Close(Opaque, frozen=True):
    """Client: forget a statement or portal."""

    tag: ClassVar[bytes] = b"C"


class Flush(Opaque, frozen=True):
    """Client: send all pending answers now."""

    tag: ClassVar[bytes] = b"H"


class Sync(Opaque, frozen=True):
    """Client: the extended query ends here; be ready for another command."""

    tag: ClassVar[bytes] = b"S"


class FunctionCall(Opaque, frozen=True):
    """Client: call a function by its OID."""

    tag: ClassVar[bytes] = b"F"


# ---- the server's


class ParseComplete(Message, frozen=True):
    """Server: the statement is prepared."""

    tag: ClassVar[bytes] = b"1"


class BindComplete(Message, frozen=True):
    """Server: the portal is created."""

    tag: ClassVar[bytes] = b"2"


class CloseComplete(Message, frozen=True):
    """Server: it is closed, or did not exist."""

    tag: ClassVar[bytes] = b"3"


class NoData(Message, frozen=True):
    """Server: the described object returns no rows."""

    tag: ClassVar[bytes] = b"n"


class ParameterDescription(Message, frozen=True):
    """Server: the types of a statement's parameters; RowDescription or NoData follows."""

    tag: ClassVar[bytes] = b"t"
    type_oids: tuple[int, ...]

    def payload(self) -> bytes:
        count = len(self.type_oids)
        return struct.pack(f">H{count}I", count, *self.type_oids)

    @classmethod
    def parse(cls, fields: PayloadReader) -> Self:
        return cls(tuple(fields.uint32() for _ in range(fields.uint16())))
