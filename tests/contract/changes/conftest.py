"""WAL of each version with changes of every shape, made once per session."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from changed_logs import COMPRESSION, MIB, SETTINGS, ChangedLog, LogOf, make_changed_log

from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres


@pytest.fixture(scope="session")
def changed_log(initdb_template: Callable[[PostgresBinaries, int], Path]) -> Iterator[LogOf]:
    """`changed_log(major, wal_level)`, created once; the reference decodes only "logical"."""
    with tempfile.TemporaryDirectory(prefix="changes-", ignore_cleanup_errors=True) as scratch_dir:
        Path(scratch_dir).chmod(0o755)  # for the account that the server runs as

        @cache
        def make(major: int, wal_level: str) -> ChangedLog:
            with skip_if_unavailable():
                binaries = find_postgres(major)
            settings = {**SETTINGS, "wal_level": wal_level, "wal_compression": COMPRESSION[major]}
            postgres = Postgres(
                binaries,
                Path(scratch_dir) / f"{major}-{wal_level}",
                settings=settings,
                wal_seg_size=MIB,
                template=initdb_template(binaries, MIB),
            )
            return make_changed_log(postgres, has_oracle=wal_level == "logical")

        yield make
