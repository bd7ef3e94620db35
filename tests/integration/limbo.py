"""Prepared transactions with gids of qsync, as a client leaves them when it dies, and checks of the
transactions that are still prepared."""

from __future__ import annotations

import secrets

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.qsync.gid import Gid, Policy, uuid7
from quorum_wal.walproposer.primary.server_facts import START_US

#: A deadline in the past, so that a coordinator can finish them at once.
DEADLINE_MS = 1


def prepare(
    postgres: Postgres,
    statement: str,
    *,
    policy: Policy = Policy.DETACH,
    deadline_ms: int = DEADLINE_MS,
    **connection: str,
) -> str:
    """Prepare a transaction and return its gid. The session ends; it needs no quorum."""
    with postgres.connect(options="-c synchronous_commit=local", **connection) as session:
        session.execute("BEGIN")
        session.execute(statement)
        row = session.execute(
            "SELECT pg_current_xact_id()::text::bigint, pg_current_wal_insert_lsn()::text,"
            " ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int,"
            f" {START_US}"
        ).fetchone()
        assert row is not None
        xid, begin_lsn, tli, start_us = row
        uuid = uuid7(0, secrets.token_bytes(10))
        place = (tli, int(Lsn.parse(begin_lsn)), xid, start_us)
        gid = str(Gid(policy, deadline_ms, *place, uuid))
        session.execute(f"PREPARE TRANSACTION '{gid}'")
    return gid


def prepared_gids(postgres: Postgres) -> set[str]:
    """The gids in all databases."""
    return {gid for (gid,) in postgres.execute("SELECT gid FROM pg_prepared_xacts")}
