"""Full logs: one per version and segment size, each with every shape of record there is."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import wal_workloads
from checked_log import CheckedLog
from wal_folder import WalFolder

from pg_fixtures.binaries import PostgresBinaries, find_postgres
from pg_fixtures.errors import Unavailable
from pg_fixtures.postgres import Postgres

MAJORS = (15, 16, 18)
MIB = 1 << 20

#: major version, and segment size in MiB
FULL_LOGS = ((15, 16), (16, 16), (18, 16), (18, 1), (15, 64))

LogMaker = Callable[[int, int], CheckedLog]


def binaries_of(major: int) -> PostgresBinaries:
    """The Postgres of that version; the test is skipped if this machine has none."""
    try:
        return find_postgres(major)
    except Unavailable as error:
        pytest.skip(str(error))


def new_dir(scratch_dir: Path) -> Path:
    """An empty folder for one server."""
    return Path(tempfile.mkdtemp(dir=scratch_dir))


def make_full_log(scratch_dir: Path, major: int, wal_seg_size: int) -> CheckedLog:
    binaries = binaries_of(major)
    data_dir = new_dir(scratch_dir)
    with Postgres(
        binaries, data_dir, settings=wal_workloads.KEEP_ALL_WAL, wal_seg_size=wal_seg_size
    ) as postgres:
        wal_workloads.many_kinds(postgres)
        methods = wal_workloads.page_images(postgres)
        postgres.pgbench("-i", "-q")
        postgres.pgbench("-c", "2", "-t", "1500")
        wal_workloads.long_records(postgres, random.Random(major), 6 * MIB)
        with postgres.connect() as connection:
            wal_workloads.fill(connection, max(8 * MIB, wal_seg_size))
        if wal_seg_size <= 16 * MIB:
            wal_workloads.switches(postgres)
            wal_workloads.switches_at_segment_end(postgres, wal_seg_size)
        wal_workloads.last_record_ends_with(postgres, 8192)
    folder = WalFolder.load(data_dir / "pg_wal", binaries, wal_seg_size)
    return CheckedLog(folder, compression_methods=tuple(methods))
