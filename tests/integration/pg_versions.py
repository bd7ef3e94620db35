"""Which versions of Postgres a test uses if all versions would take too long."""

from __future__ import annotations

from quorum_wal.pg_server.binaries import PostgresBinaries, all_postgres


def oldest_and_newest() -> list[PostgresBinaries]:
    """The first and the last of all_postgres(), which differ most."""
    found = sorted(all_postgres(), key=lambda binaries: binaries.major)
    return found[:1] + found[1:][-1:]
