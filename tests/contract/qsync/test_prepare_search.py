"""The search finds the PREPARE of a transaction in the WAL of real servers, and no other record."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from two_phase import LOCAL, commit_sql, prepare_sql, primary_of

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.qsync.gid import Gid, Policy
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.qsync.prepare_search import (
    SEARCH_BYTES_MAX,
    has_prepare,
    search_end_lsn,
)
from quorum_wal.walproposer.qsync.primary_session import PrimarySession

BIG_ROWS = "INSERT INTO t SELECT generate_series(1, 20000)"


def prepared(server: Postgres, statement: str = "INSERT INTO t VALUES (1)") -> tuple[Gid, int]:
    """A gid, and a flush position after its PREPARE. Others write between."""
    with server.connect(options=LOCAL) as connection:
        connection.execute("BEGIN")
        connection.execute(statement)
        row = connection.execute(
            "SELECT pg_current_wal_insert_lsn()::text, pg_current_xact_id()::text::bigint"
        ).fetchone()
        assert row is not None
        begin_lsn, uuid = int(Lsn.parse(row[0])), secrets.token_hex(16)
        gid = Gid(Policy.DETACH, 1, 1, begin_lsn, row[1], 1, uuid)
        server.execute(BIG_ROWS)
        connection.execute(prepare_sql(str(gid)))
    ((lsn,),) = server.execute("SELECT pg_current_wal_flush_lsn()::text")
    return gid, int(Lsn.parse(lsn))


def is_found(server: Postgres, gid: Gid, end_lsn: int) -> bool:
    primary = primary_of(server)
    address = PrimaryAddress(server.dsn())
    return has_prepare(PrimarySession(address, primary, replicates=True), primary, gid, end_lsn)


def test_a_prepare_is_found_where_it_is_and_nowhere_else(server: Postgres) -> None:
    gid, lsn = prepared(server)
    server.execute(commit_sql(str(gid)))
    assert is_found(server, gid, lsn)
    assert not is_found(server, gid, gid.begin_lsn + 64)
    assert not is_found(server, replace(gid, uuid="0" * 32), lsn)


def test_a_gid_in_another_record_is_not_found(server: Postgres) -> None:
    """Another client has written the gid into a message."""
    server.execute("CREATE TABLE IF NOT EXISTS notes (gid text)")
    gid, _ = prepared(server)
    server.execute(commit_sql(str(gid)))
    other = replace(gid, uuid="1" * 32)
    server.execute(f"INSERT INTO notes VALUES ('{other}')")
    ((lsn,),) = server.execute("SELECT pg_current_wal_flush_lsn()::text")
    assert not is_found(server, other, int(Lsn.parse(lsn)))


def test_removed_wal_is_reported(server: Postgres) -> None:
    gid, lsn = prepared(server)
    server.execute(commit_sql(str(gid)))
    old = replace(gid, begin_lsn=8192 * 2)
    with pytest.raises(WalProposerError, match="has already been removed"):
        is_found(server, old, lsn)


def test_the_range_of_the_search() -> None:
    gid = Gid(Policy.DETACH, 1, 1, 1000, 700, 1, "0" * 32)
    first = TimelineHistory(1)
    assert search_end_lsn(gid, 0, first, 5000) == 5000
    assert search_end_lsn(gid, 2000, first, 5000) == 2000
    assert search_end_lsn(gid, 6000, first, 5000) is None
    assert search_end_lsn(gid, 0, first, 1000 + SEARCH_BYTES_MAX + 1) is None
    assert search_end_lsn(replace(gid, tli=2), 0, first, 5000) is None
