"""Logs of real servers of each version, created once per session."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from checked_log import CheckedLog
from full_logs import MIB, LogMaker, make_full_log
from wal_workloads import KEEP_ALL_WAL

from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres


@pytest.fixture(scope="session")
def full_log(initdb_template: Callable[[PostgresBinaries, int], Path]) -> Iterator[LogMaker]:
    """`full_log(major, seg_mib)`: a log with every kind of record; created once."""
    # Hundreds of megabytes: not in pytest's folders, which pytest keeps for some runs.
    with tempfile.TemporaryDirectory(prefix="pgwal-", ignore_cleanup_errors=True) as scratch_dir:
        Path(scratch_dir).chmod(0o755)  # for the account that the server runs as

        @cache
        def make(major: int, seg_mib: int) -> CheckedLog:
            with skip_if_unavailable():
                binaries = find_postgres(major)
            postgres = Postgres(
                binaries,
                Path(tempfile.mkdtemp(dir=scratch_dir)) / "data",
                settings=KEEP_ALL_WAL,
                wal_seg_size=seg_mib * MIB,
                template=initdb_template(binaries, seg_mib * MIB),
            )
            return make_full_log(postgres, seg_mib * MIB)

        yield make


@pytest.fixture
def rng() -> random.Random:
    """Chooses the cuts and the damage; the seed is printed when the test fails."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)
