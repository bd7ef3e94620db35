"""Logs that real servers of each version left behind, made once per session."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
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

#: major version and segment size in MiB of the logs that hold every shape of record
FULL_LOGS = ((15, 16), (16, 16), (18, 16), (18, 1), (15, 64))

LogMaker = Callable[[int, int], CheckedLog]


@pytest.fixture(scope="session")
def scratch_dir() -> Iterator[Path]:
    """A folder that the server's account can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="pgwal-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def rng() -> random.Random:
    """Draws the cuts and the damage; the seed is printed when the test fails."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def full_log(scratch_dir: Path) -> LogMaker:
    """`full_log(major, seg_mib)`: a log that has every shape of record; made once."""
    made: dict[tuple[int, int], CheckedLog] = {}

    def make(major: int, seg_mib: int) -> CheckedLog:
        key = (major, seg_mib)
        if key not in made:
            made[key] = _make_full_log(scratch_dir, major, seg_mib * MIB)
        return made[key]

    return make


def binaries_of(major: int) -> PostgresBinaries:
    """The Postgres of that version; the test is skipped if this machine has none."""
    try:
        return find_postgres(major)
    except Unavailable as error:
        pytest.skip(str(error))


def new_dir(scratch_dir: Path) -> Path:
    """An empty folder for one server."""
    return Path(tempfile.mkdtemp(dir=scratch_dir))


def _make_full_log(scratch_dir: Path, major: int, wal_seg_size: int) -> CheckedLog:
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
