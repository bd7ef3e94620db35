"""Of which versions of Postgres a test is worth its time, where all would take too long."""

from __future__ import annotations

from quorum_wal.pg_server.binaries import PostgresBinaries, all_postgres


def oldest_and_newest() -> list[PostgresBinaries]:
    """The ends of all_postgres(): where a difference between versions shows itself first."""
    found = sorted(all_postgres(), key=lambda binaries: binaries.major)
    return found[:1] + found[1:][-1:]
