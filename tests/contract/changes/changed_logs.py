"""Logs with changes of every shape, and what Postgres's own decoding says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import change_workload
import pgoutput

from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.inputs.folder_input import FolderInput

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
    """A stopped server's WAL. The reference begins at `begin_lsn`; everything after it is known."""

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


def make_changed_log(postgres: Postgres, *, has_oracle: bool) -> ChangedLog:
    with postgres:
        if has_oracle:
            pgoutput.create_slot(postgres)
        begin_lsn = int(postgres.flush_lsn())
        catalogs = change_workload.first_half(postgres), change_workload.second_half(postgres)
        expected = pgoutput.decoded_changes(postgres) if has_oracle else []
        postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    return ChangedLog(wal_input, begin_lsn, wal_input.newest_lsn(), catalogs, expected)
