"""Full logs: one for each version and segment size, with every kind of record."""

from __future__ import annotations

import random
from collections.abc import Callable

import wal_workloads
from checked_log import CheckedLog
from wal_folder import WalFolder

from quorum_wal.pg_fixtures.postgres import Postgres

MAJORS = (15, 16, 18)
MIB = 1 << 20

#: major version, and segment size in MiB
FULL_LOGS = ((15, 16), (16, 4), (18, 2), (18, 1), (15, 64))
#: those with switches, one for each version
SWITCH_LOGS = FULL_LOGS[:3]

LogMaker = Callable[[int, int], CheckedLog]


def make_full_log(postgres: Postgres, wal_seg_size: int) -> CheckedLog:
    """On a new server. Ends with a crash after a record that ends with its page."""
    with postgres:
        wal_workloads.many_kinds(postgres)
        methods = wal_workloads.page_images(postgres)
        postgres.pgbench("-i", "-q")
        postgres.pgbench("-c", "2", "-t", "200")
        postgres.execute("UPDATE pgbench_accounts SET abalance = 1 WHERE aid % 5 = 0")
        wal_workloads.long_records(postgres, random.Random(wal_seg_size), 6 * MIB)
        with postgres.connect() as connection:
            wal_workloads.fill(connection, wal_seg_size)
        if wal_seg_size <= 16 * MIB:
            wal_workloads.switches(postgres)
            wal_workloads.switches_at_segment_end(postgres, wal_seg_size)
        wal_workloads.last_record_ends_with(postgres, 8192)
    folder = WalFolder.load(postgres, wal_seg_size)
    return CheckedLog(folder, compression_methods=tuple(methods))
