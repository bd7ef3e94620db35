"""Stores the numbers in a SQLite file: for a service without Postgres, or within a pageserver.

Law: a returned commit survives a power loss. With a rollback journal `synchronous=FULL` is not
sufficient. The commit is the unlink of the journal, and the folder is not synced after it, so the
journal may reappear and undo the commit. EXTRA adds that sync. A write-ahead log would be faster,
but a copy of the file would lack its contents and be outdated unnoticed. Numbers are assigned at
starts and moves only, so some milliseconds for each do not matter.

A file that replaced the open one (a restore) is refused, because other processes would read the new
one. Source: sqlite.org/pragma.html#pragma_synchronous, sqlite.org/lockingv3.html.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar

from quorum_wal.generations.errors import GenerationDatabaseError, GenerationServiceUnavailable
from quorum_wal.generations.schema import check_format, create_tables
from quorum_wal.generations.store import Row, Transaction, Work

T = TypeVar("T")

#: Limit and interval of attempts to lock the file; other processes hold it for milliseconds. SQLite
#: itself tries every 0.1 s, and may never succeed while other processes write all the time.
BUSY_SECONDS = 10.0
BUSY_PAUSE_SECONDS = 0.002
SETTINGS = (
    "PRAGMA journal_mode = DELETE",
    "PRAGMA synchronous = EXTRA",
    "PRAGMA foreign_keys = ON",
    "PRAGMA trusted_schema = OFF",
)
_FILE_MODE = 0o600
_TAKE_SHARED_LOCK = "SELECT count(*) FROM sqlite_master"
_PRIMARY_CODE = 0xFF


class SqliteStore:
    """One connection, used by one thread at a time."""

    def __init__(self, path: Path, *, create: bool) -> None:
        """Raises GenerationDatabaseError, GenerationServiceUnavailable."""
        self.name = str(path)
        self._path = path
        self._lock = Lock()
        self._open_file(create=create)
        with self._errors():
            self._connection = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
        try:
            self._file = self._file_now()
            self._prepare(create=create)
        except BaseException:
            self._connection.close()
            raise

    def _open_file(self, *, create: bool) -> None:
        """Creates a missing file with mode 0600."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            os.close(os.open(self._path, flags, _FILE_MODE))
        except OSError as error:
            raise GenerationDatabaseError(
                f'could not open database "{self.name}": {error.strerror}',
                hint="" if create else "Create the database with sk generations serve.",
            ) from error

    def _prepare(self, *, create: bool) -> None:
        with self._errors():
            for setting in SETTINGS:
                self._execute_with_retry(setting)
        self.write(lambda transaction: self._prepare_tables(transaction, create=create))

    def _prepare_tables(self, transaction: Transaction, *, create: bool) -> None:
        tables = {row[0] for row in transaction.rows("SELECT name FROM sqlite_master")}
        if not tables and create:
            create_tables(transaction)
        elif "format" not in tables or "tenants" not in tables:
            raise GenerationDatabaseError(f'database "{self.name}" does not contain generations')
        check_format(transaction, self.name)

    def write(self, work: Work[T]) -> T:
        return self._run("BEGIN IMMEDIATE", work)

    def read(self, work: Work[T]) -> T:
        return self._run("BEGIN", work)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _run(self, begin: str, work: Work[T]) -> T:
        with self._lock, self._errors():
            self._check_file()
            self._execute_with_retry(begin)
            try:
                self._execute_with_retry(_TAKE_SHARED_LOCK)  # with this lock, reads do not wait
                result = work(SqliteTransaction(self._connection))
                self._execute_with_retry("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            return result

    def _execute_with_retry(self, statement: str) -> None:
        """Runs a statement that may have to wait for a lock. Raises sqlite3.Error."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute(statement).fetchall()
                return
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & _PRIMARY_CODE == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
            time.sleep(BUSY_PAUSE_SECONDS)

    def _check_file(self) -> None:
        if self._file_now() != self._file:
            raise GenerationDatabaseError(
                f'database "{self.name}" was replaced while it was open',
                hint="Restart the service. If the file is an old copy, run sk generations advance "
                "for each tenant.",
            )

    def _file_now(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # a lock timeout, a full disk, an I/O error
            raise GenerationServiceUnavailable(
                f'database "{self.name}" is unavailable: {error}',
                hint="Check whether its disk is full or does not respond.",
            ) from error
        except sqlite3.Error as error:
            raise GenerationDatabaseError(
                f'could not use database "{self.name}": {error}'
            ) from error


class SqliteTransaction(Transaction):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, *parameters: object) -> list[Row]:
        return self._connection.execute(statement, parameters).fetchall()
