"""WAL of each version with changes of every shape, and what Postgres's own decoding says of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import change_workload
import pgoutput
import pytest

from pg_fixtures.binaries import PostgresBinaries, find_postgres
from pg_fixtures.data_directory import Setting
from pg_fixtures.plugin import skip_if_unavailable
from pg_fixtures.postgres import Postgres
from spark.catalog import Catalog
from spark.folder_input import FolderInput

MIB = 1 << 20

SETTINGS: dict[str, Setting] = {
    "wal_level": "logical",
    "autovacuum": False,
    "max_prepared_transactions": 5,
    "wal_keep_size": "1GB",
    "fsync": False,
}


@dataclass(frozen=True, slots=True)
class ChangedLog:
    """A stopped server's WAL; `begin_lsn` is where the oracle begins, behind which all is known."""

    wal_input: FolderInput
    begin_lsn: int
    end_lsn: int
    #: of the middle and of the end
    catalogs: tuple[Catalog, Catalog]
    expected: list[pgoutput.Change]


#: (major, wal_level)
LogOf = Callable[[int, str], ChangedLog]

#: as many ways of full-page images as the servers offer
COMPRESSION = {15: "zstd", 16: "pglz", 18: "off"}


@pytest.fixture(scope="session")
def changed_log(initdb_template: Callable[[PostgresBinaries, int], Path]) -> Iterator[LogOf]:
    """`changed_log(major, wal_level)`, made once; the oracle decodes "logical" only."""
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
            return _make(postgres, has_oracle=wal_level == "logical")

        yield make


def _make(postgres: Postgres, *, has_oracle: bool) -> ChangedLog:
    with postgres:
        if has_oracle:
            pgoutput.create_slot(postgres)
        begin_lsn = int(postgres.flush_lsn())
        catalogs = change_workload.first_half(postgres), change_workload.second_half(postgres)
        expected = pgoutput.decoded_changes(postgres) if has_oracle else []
        postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    return ChangedLog(wal_input, begin_lsn, wal_input.newest_lsn(), catalogs, expected)
