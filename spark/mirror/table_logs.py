"""`open_log`: the log of a mirror whose tables other programs read as Delta or Iceberg tables.

The log of Iceberg needs the package `fastavro`, so it is imported only for that format.
"""

from __future__ import annotations

from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.delta_log import DeltaLog
from quorum_wal.spark.mirror.table_log import TableLog
from quorum_wal.spark.mirror.version import TableFormat, Versions


def check_format(table_format: TableFormat, store: ObjectStore) -> None:
    """Whether tables of this format can be written to the store. Raises MirrorError."""
    if table_format is not TableFormat.ICEBERG:
        return
    try:
        from quorum_wal.spark.mirror.iceberg_log import location_of
    except ModuleNotFoundError as error:
        raise MirrorError(
            f"--format iceberg needs the Python package {error.name}",
            hint=f"Install it: pip install {error.name}",
        ) from error
    location_of(store)


def open_log(versions: Versions) -> TableLog | None:
    """None if the tables are Parquet files only. Raises MirrorError, ObjectStoreError."""
    match versions.job().table_format:
        case TableFormat.PARQUET:
            return None
        case TableFormat.DELTA:
            return DeltaLog(versions)
        case TableFormat.ICEBERG:
            check_format(TableFormat.ICEBERG, versions.store)
            from quorum_wal.spark.mirror.iceberg_log import IcebergLog

            return IcebergLog(versions)
