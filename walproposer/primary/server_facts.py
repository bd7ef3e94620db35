"""Identifies a primary, and checks whether it can be one of ours."""

from __future__ import annotations

import psycopg

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.walproposer.errors import Refusal

SUPPORTED_MAJORS = range(13, 19)

#: Distinguishes two servers that were promoted from one log: they share system id and timeline.
START_US = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"


def read_server_facts(connection: psycopg.Connection) -> ServerFacts:
    """Raises Refusal for a server that cannot be one of our primaries."""
    row = connection.execute(
        "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),"
        " (SELECT system_identifier::text FROM pg_control_system()),"
        " (SELECT bytes_per_wal_segment FROM pg_control_init()),"
        " current_setting('wal_level')"
    ).fetchone()
    assert row is not None
    version, in_recovery, system_id, seg_size, wal_level = row
    if version // 10000 not in SUPPORTED_MAJORS:
        raise Refusal(
            f"the primary is Postgres {version // 10000}, "
            f"supported are {SUPPORTED_MAJORS[0]} to {SUPPORTED_MAJORS[-1]}"
        )
    if in_recovery:
        raise Refusal(
            "the server is a standby, not a primary",
            hint="Give the DSN of the primary, or promote this one first.",
        )
    if wal_level == "minimal":
        raise Refusal(
            'the primary has wal_level "minimal", expected "replica" or "logical"',
            hint="ALTER SYSTEM SET wal_level = 'replica'; then restart the primary.",
        )
    return ServerFacts(int(system_id), version, seg_size)


def read_start_us(connection: psycopg.Connection) -> int:
    """When its postmaster started, in microseconds since the Unix epoch."""
    row = connection.execute(f"SELECT {START_US}").fetchone()
    assert row is not None
    return int(row[0])
