"""A log read as `pg_changes` reads it, as rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from changed_logs import ChangedLog

from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes
from quorum_wal.spark.changes.undecoded_rows import OnUnknown, UndecodedPolicy
from quorum_wal.spark.inputs.wal_reader import WalRange

Row = dict[str, Any]

PASS = UndecodedPolicy(OnUnknown.PASS)


def read(
    log: ChangedLog, begin_lsn: int, end_lsn: int, catalog: Catalog | None = None, **options: Any
) -> list[Row]:
    """The changes of the transactions that commit in the range, also those that could not be
    decoded; by default with both catalogs."""
    catalog = catalog or log.catalogs[0].merged(log.catalogs[1])
    wal_range = WalRange(begin_lsn, end_lsn, log.end_lsn)
    changes = ChangeOptions(catalog, **{"undecoded": PASS, **options})
    batches = list(read_changes(log.wal_input, wal_range, changes))
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def without_rows(log: ChangedLog) -> Catalog:
    """Both catalogs as an older version of `sk catalog snapshot` has taken them: what happens after
    them is not followed."""
    bare = [Catalog.from_json(catalog.to_json(), "a copy") for catalog in log.catalogs]
    for catalog in bare:
        catalog.rows = None
    return bare[0].merged(bare[1])


def read_all(log: ChangedLog, catalog: Catalog | None = None, **options: Any) -> list[Row]:
    return read(log, log.begin_lsn, log.end_lsn, catalog, **options)
