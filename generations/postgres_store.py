"""The numbers in a database of Postgres, which may have standbys of its own.

    write   BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; LOCK TABLE format    one at a time
    read    the same, no lock; pg_logical_emit_message(true, ...)               its COMMIT has WAL

Laws. Never a standby: READ WRITE is refused there. A primary that was deposed, and waits for its
synchronous standbys, does not answer a read either: the message makes its COMMIT wait as that of a
write does. A COMMIT that ends with a warning was not confirmed by the standbys: it counts as no
answer. The lock comes before the first query, so each transaction sees all before it (LOCK TABLE
takes no snapshot); what cannot be serialized all the same is tried again.

All settings are SET LOCAL, so that it works through a pooler that changes sessions between
transactions. Never the database that is protected: it is gone when the numbers are needed most.
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

from generations.errors import (
    GenerationDatabaseError,
    GenerationServiceUnavailable,
)
from generations.schema import check_format, create_tables
from generations.store import Row, Transaction, Work

T = TypeVar("T")

SCHEMA = "sk_generations"
CONNECTIONS_MAX = 8
CONNECT_SECONDS = 5
#: Of one statement; and of a transaction that stands still, as that of a service that is frozen.
STATEMENT_SECONDS = 10
#: For how long what could not be serialized is tried again, and the pause between.
RETRY_SECONDS = 10.0
RETRY_PAUSE_SECONDS = 0.01
#: Two that create the tables at once do so one after the other: "skgenera", a number of ours.
CREATION_LOCK = 0x736B67656E657261

_BEGIN = f"""BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE;
SET LOCAL synchronous_commit = on;
SET LOCAL search_path = {SCHEMA}, pg_catalog;
SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s';
SET LOCAL idle_in_transaction_session_timeout = '{STATEMENT_SECONDS}s';"""
_WRITE = f"{_BEGIN} LOCK TABLE format IN EXCLUSIVE MODE"
_READ = f"{_BEGIN} SELECT pg_logical_emit_message(true, '{SCHEMA}', '')"
_AGAIN = (SerializationFailure, DeadlockDetected, LockNotAvailable)


class PostgresStore:
    def __init__(self, conninfo: str, *, create: bool) -> None:
        """Raises GenerationDatabaseError, GenerationServiceUnavailable."""
        self.name = _name_of(conninfo)
        settings: dict[str, Any] = {
            "autocommit": True,  # BEGIN is ours
            "prepare_threshold": None,  # a pooler may change the session
            "connect_timeout": CONNECT_SECONDS,
            "tcp_user_timeout": STATEMENT_SECONDS * 1000,
            "application_name": "sk generations",
        }
        with self._errors():
            # Once without the pool, whose errors do not say why there is no connection.
            with psycopg.connect(conninfo, **settings) as connection:
                self._prepare(connection, create=create)
            self._pool = ConnectionPool(
                conninfo,
                kwargs=settings,
                min_size=0,
                max_size=CONNECTIONS_MAX,
                timeout=CONNECT_SECONDS,
                reconnect_timeout=CONNECT_SECONDS,  # its pauses grow: after a long outage, too long
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
                f'database "{self.name}" holds no generations',
                hint="sk generations serve makes the tables.",
            )
        with connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = on")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATION_LOCK,))
            if _has_tables(connection):
                return  # another one was quicker
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
                except _AGAIN:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(RETRY_PAUSE_SECONDS)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeout as error:
            raise GenerationServiceUnavailable(
                f'database "{self.name}" gives no connection within {CONNECT_SECONDS} s',
                hint="The log on stderr says what it answers.",
            ) from error
        except (ReadOnlySqlTransaction, FeatureNotSupported) as error:
            raise GenerationServiceUnavailable(
                f'database "{self.name}" is read-only: a standby, or not let write',
                hint="Name the primary, or all servers with target_session_attrs=read-write.",
            ) from error
        except psycopg.OperationalError as error:
            raise GenerationServiceUnavailable(
                f'database "{self.name}" does not answer: {_said(error)}'
            ) from error
        except psycopg.Error as error:
            raise GenerationDatabaseError(
                f'database "{self.name}" cannot be used: {_said(error)}'
            ) from error


def _has_tables(connection: psycopg.Connection[Row]) -> bool:
    """By a query: to_regclass() may answer from a cache what was so before the lock."""
    found = "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s"
    return connection.execute(found, (SCHEMA, "format")).fetchone() == (1,)


def _run_once(connection: psycopg.Connection[Row], begin: str, work: Work[T]) -> T:
    connection.execute(begin.encode())
    result = work(PostgresTransaction(connection))
    _commit(connection)
    return result


def _commit(connection: psycopg.Connection[Row]) -> None:
    """Raises GenerationServiceUnavailable when it may be lost in a failover."""
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
            f"the database's COMMIT was not confirmed: {'; '.join(warnings) or tag}",
            hint="Look at its synchronous standbys.",
        )


class PostgresTransaction(Transaction):
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def rows(self, statement: str, *parameters: object) -> list[Row]:
        text = statement.replace("?", "%s").encode()
        cursor = self._connection.execute(text, parameters)
        return cursor.fetchall() if cursor.description is not None else []


def _name_of(conninfo: str) -> str:
    """Hosts and database, no more: a URI may hold a password. Raises GenerationDatabaseError."""
    try:
        settings = conninfo_to_dict(conninfo)
    except (psycopg.Error, UnicodeError) as error:
        raise GenerationDatabaseError(
            "the database's URI cannot be read; expected postgresql://user@host:port/dbname"
        ) from error
    return f"{settings.get('dbname') or 'postgres'} on {settings.get('host') or 'this machine'}"


def _said(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
