"""What the protocol asks its driver to do. Pure: the protocol itself does no I/O.

A protocol is a generator of requests: it yields one, and is sent what came of it, or gets the
exception that was raised. The blocking driver and the one for asyncio do the same with them, so
all decisions stand once. An interruption (Ctrl-C, a cancelled task) ends the generator.

    Connect    -> a connection               Ask        -> a list of Result
    Pause      -> None                       Commit, Rollback -> None
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")

AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True)
class Connect:
    """To a coordinator."""

    conninfo: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """One round trip: a simple query, or a pipeline of several, each in a transaction of its own.

    Raises Silent after `deadline`, of time.monotonic(); the connection is closed then.
    """

    connection: AnyConnection
    statements: tuple[bytes, ...]
    deadline: float


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Commit:
    """psycopg's own commit(), which keeps its notes about prepared statements right."""

    connection: AnyConnection


@dataclass(frozen=True, slots=True)
class Rollback:
    """psycopg's own rollback()."""

    connection: AnyConnection


Request = Connect | Ask | Pause | Commit | Rollback
Steps = Generator[Request, Any, T]


class Silent(psycopg.OperationalError):
    """No answer came in time."""
