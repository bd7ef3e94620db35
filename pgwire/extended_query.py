"""The messages of the extended query protocol and of function calls. A walsender refuses them, so
what is in them is never looked at; they are named so that they can be refused in order.

    Parse Bind Describe Execute Sync     what a driver sends for one query with parameters, at once

Source: Postgres `libpq/protocol.h`; `postgres.c`, `forbidden_in_wal_sender`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pgwire.messages import Opaque


@dataclass(frozen=True, slots=True)
class Parse(Opaque):
    """Client: prepare a statement. The first message of an extended query."""

    tag: ClassVar[bytes] = b"P"


@dataclass(frozen=True, slots=True)
class Bind(Opaque):
    """Client: make a portal of a prepared statement."""

    tag: ClassVar[bytes] = b"B"


@dataclass(frozen=True, slots=True)
class Describe(Opaque):
    """Client: what are the columns of a statement or portal?"""

    tag: ClassVar[bytes] = b"D"


@dataclass(frozen=True, slots=True)
class Execute(Opaque):
    """Client: run a portal."""

    tag: ClassVar[bytes] = b"E"


@dataclass(frozen=True, slots=True)
class Close(Opaque):
    """Client: forget a statement or portal."""

    tag: ClassVar[bytes] = b"C"


@dataclass(frozen=True, slots=True)
class Flush(Opaque):
    """Client: send now what there is to send."""

    tag: ClassVar[bytes] = b"H"


@dataclass(frozen=True, slots=True)
class Sync(Opaque):
    """Client: the extended query ends here; be ready for another command."""

    tag: ClassVar[bytes] = b"S"


@dataclass(frozen=True, slots=True)
class FunctionCall(Opaque):
    """Client: call a function by its OID."""

    tag: ClassVar[bytes] = b"F"
