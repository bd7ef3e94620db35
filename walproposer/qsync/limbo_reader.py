"""Reads the prepared transactions of all databases of the primary, and the state of one, by SQL.

    pg_current_wal_flush_lsn() | pg_prepared_xacts | pg_current_wal_flush_lsn()

A row is listed only after its PREPARE was flushed, so the position read after the rows is an upper
bound of its end. Names are read as bytes, because those of other programs need not be text in any
encoding. Sources: Postgres `access/transam/twophase.c` (EndPrepare), `utils/adt/xid8funcs.c`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.primary.logical_slots import SLOT_PATTERN
from quorum_wal.walproposer.qsync.limbo_events import LimboEntry
from quorum_wal.walproposer.qsync.outcome_answer import XidStatus
from quorum_wal.walproposer.qsync.primary_session import PrimarySession

_FLUSH_LSN = "SELECT pg_current_wal_flush_lsn()::text"
_NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# One message, so one round trip; Postgres executes the statements in order.
_READ = f"""{_FLUSH_LSN};
SELECT convert_to(gid, 'SQL_ASCII'), convert_to(database::text, 'SQL_ASCII'),
       convert_to(coalesce(owner::text, ''), 'SQL_ASCII'), transaction::text::bigint,
       (extract(epoch FROM prepared - timestamptz '2000-01-01 00:00:00+00') * 1000000)::bigint
  FROM pg_prepared_xacts;
{_FLUSH_LSN}, {_NOW_MS};
SELECT database::text FROM pg_replication_slots WHERE slot_name ~ '{SLOT_PATTERN}'"""
_IS_PREPARED = "SELECT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = %s)"
_XID_STATUS = "SELECT pg_xact_status(%s::text::xid8)"
# It has a transaction id, so its COMMIT is flushed. No program reads the message.
_WRITE = "SELECT pg_logical_emit_message(true, 'sk_qsync', '')"


@dataclass(frozen=True, slots=True)
class Reading:
    """`entries` are those of all programs, in all databases. For the positions see LimboRead.
    `server_now_ms` is the primary's clock; `slot_databases` have a logical slot of ours."""

    entries: tuple[LimboEntry, ...]
    flushed_before_lsn: int
    flushed_after_lsn: int
    server_now_ms: int
    slot_databases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrimaryEvidence:
    """The state of one transaction on the primary, read in this order. `is_in_log` is None if its
    PREPARE was not searched for, or cannot be."""

    is_prepared: bool
    xid_status: XidStatus
    flushed_lsn: int
    is_in_log: bool | None = None


class LimboReader:
    """For one thread. Every method raises WalProposerError."""

    def __init__(self, session: PrimarySession) -> None:
        self._session = session

    def read(self) -> Reading:
        with self._session.opened("could not read the prepared transactions") as connection:
            cursor = connection.execute(_READ)
            before_lsn = _lsn(cursor.fetchone())
            cursor.nextset()
            entries = tuple(_entry(*row) for row in cursor.fetchall())
            cursor.nextset()
            after = cursor.fetchone()
            assert after is not None
            cursor.nextset()
            databases = tuple(database for (database,) in cursor.fetchall())
            return Reading(entries, before_lsn, _lsn(after), int(after[1]), databases)

    def ask(self, gid: Gid) -> PrimaryEvidence:
        with self._session.opened("could not ask for a transaction") as connection:
            row = connection.execute(_IS_PREPARED, (str(gid),)).fetchone()
            status = _xid_status(connection, gid.xid)
            flushed_lsn = _lsn(connection.execute(_FLUSH_LSN).fetchone())
            return PrimaryEvidence(row is not None and bool(row[0]), status, flushed_lsn)

    def write_wal(self) -> None:
        """Write a few bytes of new WAL, which no safekeeper has been sent before."""
        with self._session.opened("could not write to the log") as connection:
            connection.execute(_WRITE)

    def close(self) -> None:
        self._session.close()


def flush_lsn(connection: psycopg.Connection) -> int:
    """Raises psycopg.Error."""
    return _lsn(connection.execute(_FLUSH_LSN).fetchone())


def _lsn(row: tuple[Any, ...] | None) -> int:
    assert row is not None
    return int(Lsn.parse(row[0]))


def _entry(gid: bytes, database: bytes, owner: bytes, xid: int, prepared_at_us: int) -> LimboEntry:
    return LimboEntry(_text(gid), _text(database), _text(owner), xid, prepared_at_us)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _xid_status(connection: psycopg.Connection, xid: int) -> XidStatus:
    try:
        row = connection.execute(_XID_STATUS, (str(xid),)).fetchone()
    except psycopg.errors.InvalidParameterValue:
        return XidStatus.FUTURE
    assert row is not None
    return XidStatus.TOO_OLD if row[0] is None else XidStatus(row[0])
