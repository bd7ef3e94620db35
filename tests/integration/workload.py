"""Generates WAL with messages that need no table."""

from __future__ import annotations

from quorum_wal.pg_fixtures.postgres import Postgres

MESSAGE_BYTES = 100_000


def write_wal(postgres: Postgres, megabytes: int, message_bytes: int = MESSAGE_BYTES) -> None:
    """At least that much WAL, in records of about `message_bytes`; no commit waits for it."""
    count = (megabytes << 20) // message_bytes + 1
    postgres.execute(
        "SELECT count(pg_logical_emit_message(false, 'wal', repeat('w', %s)))"
        " FROM generate_series(1, %s)",
        (message_bytes, count),
    )


def pg_wal_bytes(postgres: Postgres) -> int:
    """The size of the segments in pg_wal, recycled ones included."""
    ((size,),) = postgres.execute("SELECT sum(size)::bigint FROM pg_ls_waldir()")
    return int(size)
