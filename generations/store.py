"""The interface of the two databases for the numbers, and a function that opens one.

Laws of a store. Transactions are serializable. `write` and `read` return only after all data that
they saw is durable. A read sees every write that returned before the read began. `work` may be run
several times, of which one is committed; an exception of `work` rolls back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from quorum_wal.generations.errors import GenerationDatabaseError

T = TypeVar("T")
Row = tuple[Any, ...]

POSTGRES_SCHEMES = ("postgresql://", "postgres://")


class Transaction(Protocol):
    def rows(self, statement: str, *parameters: object) -> list[Row]:
        """Runs one SQL statement with `?` for each parameter. Returns [] if it has no result."""


Work = Callable[[Transaction], T]


class Store(Protocol):
    """Thread-safe. All raise GenerationServiceUnavailable, GenerationDatabaseError."""

    @property
    def name(self) -> str:
        """For messages; contains no password."""

    def write(self, work: Work[T]) -> T:
        """Runs a transaction. Writes run one at a time."""

    def read(self, work: Work[T]) -> T:
        """Runs a transaction that changes nothing."""

    def close(self) -> None: ...


def is_postgres(database: str) -> bool:
    return database.startswith(POSTGRES_SCHEMES)


def open_store(database: str, *, create: bool) -> Store:
    """Opens a SQLite file or a libpq URI. `create` creates missing tables.

    Raises GenerationDatabaseError, GenerationServiceUnavailable; their texts do not contain the
    URI.
    """
    if is_postgres(database):
        from quorum_wal.generations.postgres_store import PostgresStore  # only needed for Postgres

        return PostgresStore(database, create=create)
    if "://" in database:
        raise GenerationDatabaseError(
            "expected a file path or postgresql://..., found a URI of another kind"
        )
    from quorum_wal.generations.sqlite_store import SqliteStore

    return SqliteStore(Path(database), create=create)
