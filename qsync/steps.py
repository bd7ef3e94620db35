"""The requests of a protocol to its driver. Pure: the protocol itself does no I/O.

A protocol is a generator. It yields a request, and the driver sends it the result, or throws the
exception into it. Both drivers perform the same requests, so each decision is coded once. An
interruption (Ctrl-C, a cancelled task) closes the generator.

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
    """Connect to a coordinator."""

    conninfo: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """One round trip: a simple query, or a pipeline of several, each in its own transaction.

    Raises Silent after `deadline`, a time of time.monotonic(), and closes the connection.
    """

    connection: AnyConnection
    statements: tuple[bytes, ...]
    deadline: float


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Commit:
    """psycopg's own commit(), which keeps its list of prepared statements correct."""

    connection: AnyConnection


@dataclass(frozen=True, slots=True)
class Rollback:
    """psycopg's own rollback()."""

    connection: AnyConnection


Request = Connect | Ask | Pause | Commit | Rollback
Steps = Generator[Request, Any, T]


class Silent(psycopg.OperationalError):
    """No answer came in time."""
