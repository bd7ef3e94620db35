"""Stores the numbers in a Postgres database, which may have standbys.

    write   BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; LOCK TABLE format    one at a time
    read    the same without the lock; pg_logical_emit_message(true, ...)       its COMMIT has WAL

Laws. A standby is never used: it rejects READ WRITE. A former primary that waits for its
synchronous standbys does not answer reads either: the message makes their COMMIT wait like that of
a write. A COMMIT that ends with a warning was not confirmed by the standbys, and counts as failed.
The lock precedes the first query, so each transaction sees all earlier ones (LOCK TABLE takes no
snapshot). Serialization failures are retried.

All settings are SET LOCAL, so a pooler may change sessions between transactions. Do not use the
protected database itself: it is unavailable when the numbers are needed most.
Source: Postgres `lockcmds.c`, `syncrep.c` (SyncRepWaitForLSN), `message.c`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import (
    DeadlockDetected,
    FeatureNotSupported,
    LockNotAvailable,
    ReadOnlySqlTransaction,
    SerializationFailure,
)
from psycopg_pool import ConnectionPool, PoolTimeout

from quorum_wal.generations.errors import (
    GenerationDatabaseError,
    GenerationServiceUnavailable,
)
from quorum_wal.generations.schema import check_format, create_tables
from quorum_wal.generations.store import Row, Transaction, Work

T = TypeVar("T")

SCHEMA = "sk_generations"
CONNECTIONS_MAX = 8
CONNECT_SECONDS = 5
#: Limit for one statement, and for an idle transaction, for example of a stopped service.
STATEMENT_SECONDS = 10
#: How long serialization failures are retried, and the pause between two tries.
RETRY_SECONDS = 10.0
RETRY_PAUSE_SECONDS = 0.01
#: Advisory lock for the creation of the tables: "skgenera".
CREATION_LOCK = 0x736B67656E657261

_BEGIN = f"""BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE;
SET LOCAL synchronous_commit = on;
SET LOCAL search_path = {SCHEMA}, pg_catalog;
SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s';
SET LOCAL idle_in_transaction_session_timeout = '{STATEMENT_SECONDS}s';"""
_WRITE = f"{_BEGIN} LOCK TABLE format IN EXCLUSIVE MODE"
_READ = f"{_BEGIN} SELECT pg_logical_emit_message(true, '{SCHEMA}', '')"
_RETRYABLE = (SerializationFailure, DeadlockDetected, LockNotAvailable)


class PostgresStore:
    def __init__(self, conninfo: str, *, create: bool) -> None:
        """Raises GenerationDatabaseError, GenerationServiceUnavailable."""
        self.name = _name_of(conninfo)
        settings: dict[str, Any] = {
            "autocommit": True,  # _BEGIN begins transactions
            "prepare_threshold": None,  # a pooler may change the session
            "connect_timeout": CONNECT_SECONDS,
            "tcp_user_timeout": STATEMENT_SECONDS * 1000,
            "application_name": "sk generations",
        }
        with self._errors():
            # First without the pool, whose errors omit the reason of a failed connection.
            with psycopg.connect(conninfo, **settings) as connection:
                self._prepare(connection, create=create)
            self._pool = ConnectionPool(
                conninfo,
                kwargs=settings,
                min_size=0,
                max_size=CONNECTIONS_MAX,
                timeout=CONNECT_SECONDS,
                reconnect_timeout=CONNECT_SECONDS,  # its pauses would become too long in an outage
                check=ConnectionPool.check_connection,
                name="generations",
                open=True,
            )
        try:
            self.read(lambda transaction: check_format(transaction, self.name))
        except BaseException:
            self.close()
            raise

    def _prepare(self, connection: psycopg.Connection[Row], *, create: bool) -> None:
        if _has_tables(connection):
            return
        if not create:
            raise GenerationDatabaseError(
                f'database "{self.name}" does not contain generations',
                hint="Create the tables with sk generations serve.",
            )
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = on")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATION_LOCK,))
            if _has_tables(connection):
                return  # another process has created them
            schema = sql.Identifier(SCHEMA)
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
            connection.execute(sql.SQL("SET LOCAL search_path = {}, pg_catalog").format(schema))
            create_tables(PostgresTransaction(connection))

    def write(self, work: Work[T]) -> T:
        return self._run(_WRITE, work)

    def read(self, work: Work[T]) -> T:
        return self._run(_READ, work)

    def close(self) -> None:
        self._pool.close()

    def _run(self, begin: str, work: Work[T]) -> T:
        deadline = time.monotonic() + RETRY_SECONDS
        with self._errors():
            while True:
                try:
                    with self._pool.connection() as connection:
                        return _run_once(connection, begin, work)
                except _RETRYABLE:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(RETRY_PAUSE_SECONDS)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeout as error:
            raise GenerationServiceUnavailable(
                f'could not connect to database "{self.name}" within {CONNECT_SECONDS} s',
                hint="See the log on stderr for the error of the database.",
            ) from error
        except (ReadOnlySqlTransaction, FeatureNotSupported) as error:
            raise GenerationServiceUnavailable(
                f'database "{self.name}" is read-only or a standby',
                hint="Specify the primary, or all servers with target_session_attrs=read-write.",
            ) from error
        except psycopg.OperationalError as error:
            raise GenerationServiceUnavailable(
                f'database "{self.name}" is unavailable: {_error_text(error)}'
            ) from error
        except psycopg.Error as error:
            raise GenerationDatabaseError(
                f'could not use database "{self.name}": {_error_text(error)}'
            ) from error


def _has_tables(connection: psycopg.Connection[Row]) -> bool:
    """Uses a query, because to_regclass() may return a cached result from before the lock."""
    found = "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s"
    return connection.execute(found, (SCHEMA, "format")).fetchone() == (1,)


def _run_once(connection: psycopg.Connection[Row], begin: str, work: Work[T]) -> T:
    connection.execute(begin.encode())
    result = work(PostgresTransaction(connection))
    _commit(connection)
    return result


def _commit(connection: psycopg.Connection[Row]) -> None:
    """Raises GenerationServiceUnavailable if a failover may lose the commit."""
    warnings: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        warnings.append(diagnostic.message_primary or "")

    connection.add_notice_handler(note)
    try:
        tag = connection.execute("COMMIT").statusmessage
    finally:
        connection.remove_notice_handler(note)
    if tag != "COMMIT" or warnings:
        raise GenerationServiceUnavailable(
            f"the synchronous standbys did not confirm the COMMIT: {'; '.join(warnings) or tag}",
            hint="Check the synchronous standbys of the database.",
        )


class PostgresTransaction(Transaction):
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def rows(self, statement: str, *parameters: object) -> list[Row]:
        text = statement.replace("?", "%s").encode()
        cursor = self._connection.execute(text, parameters)
        return cursor.fetchall() if cursor.description is not None else []


def _name_of(conninfo: str) -> str:
    """Host and database only: a URI may contain a password. Raises GenerationDatabaseError."""
    try:
        settings = conninfo_to_dict(conninfo)
    except (psycopg.Error, UnicodeError) as error:
        raise GenerationDatabaseError(
            "invalid database URI, expected postgresql://user@host:port/dbname"
        ) from error
    return f"{settings.get('dbname') or 'postgres'} on {settings.get('host') or 'this machine'}"


def _error_text(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
