"""A database for the numbers: what the two that there are have in common, and how one is opened.

Laws of a store. A transaction is serializable, and `write` and `read` return after what they saw is
durable: what was returned does not unhappen. A read sees every write that had returned before it
began. `work` may be run several times, of which one counts; what it raises undoes it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from generations.errors import GenerationDatabaseError

T = TypeVar("T")
Row = tuple[Any, ...]

POSTGRES_SCHEMES = ("postgresql://", "postgres://")


class Transaction(Protocol):
    def rows(self, statement: str, *parameters: object) -> list[Row]:
        """Of one statement of SQL with `?` for each parameter; [] when it returns none."""


Work = Callable[[Transaction], T]


class Store(Protocol):
    """Any thread may use it. All raise GenerationServiceUnavailable, GenerationDatabaseError."""

    @property
    def name(self) -> str:
        """For people, without a secret."""

    def write(self, work: Work[T]) -> T:
        """One after the other: nothing else writes meanwhile."""

    def read(self, work: Work[T]) -> T:
        """A transaction that changes nothing."""

    def close(self) -> None: ...


def is_postgres(database: str) -> bool:
    return database.startswith(POSTGRES_SCHEMES)


def open_store(database: str, *, create: bool) -> Store:
    """A file of SQLite, or a URI of libpq. `create`: make its tables where there is nothing yet.

    Raises GenerationDatabaseError, GenerationServiceUnavailable; their texts repeat no URI.
    """
    if is_postgres(database):
        from generations.postgres_store import PostgresStore  # not for who has a file

        return PostgresStore(database, create=create)
    if "://" in database:
        raise GenerationDatabaseError(
            "expected the path of a file or postgresql://..., found another kind of URI"
        )
    from generations.sqlite_store import SqliteStore

    return SqliteStore(Path(database), create=create)
