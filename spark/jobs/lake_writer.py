"""Writes the rows of one range as Parquet files, one for each hour. Runs on the executors.

    lsn         1000028   1000090   10000E0   1000150
    xact_time      -       10:59       -       11:00      a record belongs to the hour of the
    hour           10        10       11        11        next transaction end in the range

Law: the files depend on the range alone, not on the batches in which it is read; so the whole range
is collected first. Records after the last transaction end have its hour; without any end they have
none. Pyarrow writes the files inside the task, in a third of the time of Spark's own writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.spark.jobs.lake import LakeFile, file_key

SECONDS_PER_HOUR = 3600
#: of zstd; higher levels cost more than they save on WAL
COMPRESSION_LEVEL = 1
#: rows whose values and levels are in the processor's cache while a column is encoded
ROWS_AT_ONCE = 1 << 16

#: Positions and numbers that mostly grow, with small differences. Together with dictionaries for
#: columns with few values, this makes files a fourth as large, in two thirds of the time.
GROWING = frozenset({"lsn", "end_lsn", "prev_lsn", "commit_lsn", "xid", "block"})
FEW_VALUES = frozenset(
    {
        "tli", "rmgr", "operation", "schema", "table", "record_length", "main_data_length",
        "fpi_count", "fpi_bytes", "block_id", "tablespace", "database", "relfilenode", "fork",
        "data_length",
    }
)  # fmt: skip
#: Columns that are small after their encoding, or mostly null. For them zstd would take more time
#: to create its tables than to compress.
SMALL = FEW_VALUES | {"seq", "top_xid", "xact_time", "gid", "has_image", "will_init"}
#: Of columns with few values each file has nearly all, so readers skip no file by their statistics,
#: nor by those of list items.
OF_ONE_TABLE = frozenset({"schema", "table"})


def write_range(
    store: ObjectStore,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    lsns: tuple[int, int],
    time_column: str,
    dropped: frozenset[str] = frozenset(),
) -> list[LakeFile]:
    """Writes the rows of [start, end). Returns when the files are complete in the store.

    `time_column` determines the hour; it is in `dropped` if it was not requested. Raises
    ObjectStoreError, and the errors of `batches`.
    """
    table = pa.Table.from_batches(batches, schema)
    hours = _hours(table.column(time_column))
    kept = table.drop_columns(sorted(dropped))
    found = sorted(pc.unique(hours).to_pylist(), key=lambda hour: (hour is None, hour))
    if len(found) == 1:
        return [_write(store, kept, found[0], lsns)]
    return [_write(store, kept.filter(_is_hour(hours, hour)), hour, lsns) for hour in found]


def _hours(times: pa.ChunkedArray) -> pa.Array:
    """The hour of each row, in hours since 1970; null if the range has no time."""
    micros = times.combine_chunks().cast(pa.int64())
    filled = pc.fill_null_forward(pc.fill_null_backward(micros))
    return pc.floor(pc.divide(filled.cast(pa.float64()), SECONDS_PER_HOUR * 1e6)).cast(pa.int64())


def _is_hour(hours: pa.Array, hour: int | None) -> pa.Array:
    return pc.is_null(hours) if hour is None else pc.fill_null(pc.equal(hours, hour), False)


def _write(store: ObjectStore, rows: pa.Table, hour: int | None, lsns: tuple[int, int]) -> LakeFile:
    date, hour_of_day = None, None
    if hour is not None:
        begins_at = datetime.fromtimestamp(hour * SECONDS_PER_HOUR, UTC)
        date, hour_of_day = begins_at.date().isoformat(), begins_at.hour
    data = parquet_bytes(rows)
    key = file_key(date, hour_of_day, *lsns)
    store.put(key, data)
    return LakeFile(key, rows.num_rows, len(data))


def parquet_bytes(rows: pa.Table) -> bytes:
    """A complete Parquet file."""
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def parquet_writer(sink: pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    leaves = {
        leaf: leaf.rpartition(".")[2]
        for field in schema
        for leaf in _leaves(field.name, field.type)
    }
    by_zstd = [leaf for leaf, name in leaves.items() if name not in SMALL]
    return pq.ParquetWriter(
        sink,
        schema,
        compression={leaf: "zstd" if leaf in by_zstd else "snappy" for leaf in leaves},
        compression_level=dict.fromkeys(by_zstd, COMPRESSION_LEVEL),
        use_dictionary=[leaf for leaf, name in leaves.items() if name in FEW_VALUES],
        column_encoding={
            leaf: "DELTA_BINARY_PACKED" for leaf, name in leaves.items() if name in GROWING
        },
        write_statistics=[
            leaf
            for leaf, name in leaves.items()
            if leaf == name and name not in FEW_VALUES - OF_ONE_TABLE
        ],
        write_batch_size=ROWS_AT_ONCE,
    )


def _leaves(path: str, kind: pa.DataType) -> list[str]:
    """The names of the columns in Parquet: blocks.list.element.fork"""
    if pa.types.is_list(kind):
        return _leaves(f"{path}.list.{kind.value_field.name}", kind.value_type)
    if pa.types.is_struct(kind):
        return [leaf for each in kind for leaf in _leaves(f"{path}.{each.name}", each.type)]
    return [path]
