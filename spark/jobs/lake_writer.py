"""The rows of one range become Parquet files, one for each hour of them. Runs on the executors.

    lsn         1000028   1000090   10000E0   1000150
    xact_time      -       10:59       -       11:00      a record belongs to the hour of the
    hour           10        10       11        11        transaction that ends next in the range

Law: what is written is a function of the range alone, not of how its bytes came in batches; so the
range is taken whole. Behind its last transaction the hour is that one's; without any it is none.
Written by pyarrow inside the task, which takes a third of the time of Spark's own writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from objectstore.store import ObjectStore
from spark.jobs.lake import LakeFile, file_key

SECONDS_PER_HOUR = 3600
#: of zstd: higher ones cost more than they save on WAL's numbers
COMPRESSION_LEVEL = 1

#: Positions and numbers that mostly grow: their differences are small. Beside dictionaries for what
#: has few values only, this makes files a fourth as large in two thirds of the time.
GROWING = frozenset({"lsn", "end_lsn", "prev_lsn", "commit_lsn", "xid", "block"})
FEW_VALUES = frozenset(
    {
        "tli", "rmgr", "operation", "schema", "table", "record_length", "main_data_length",
        "fpi_count", "fpi_bytes", "block_id", "tablespace", "database", "relfilenode", "fork",
        "data_length",
    }
)  # fmt: skip


def write_range(
    store: ObjectStore,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    lsns: tuple[int, int],
    time_column: str,
    dropped: frozenset[str] = frozenset(),
) -> list[LakeFile]:
    """The files that the rows of [start, end) have become; each is there, whole, when this returns.

    `time_column` says the hour, and is itself one of `dropped` if nobody asked for it. Raises
    ObjectStoreError, and whatever `batches` raises.
    """
    table = pa.Table.from_batches(batches, schema)
    hours = _hours(table.column(time_column))
    kept = table.drop_columns(sorted(dropped))
    found = sorted(pc.unique(hours).to_pylist(), key=lambda hour: (hour is None, hour))
    if len(found) == 1:
        return [_write(store, kept, found[0], lsns)]
    return [_write(store, kept.filter(_is_hour(hours, hour)), hour, lsns) for hour in found]


def _hours(times: pa.ChunkedArray) -> pa.Array:
    """Of each row, in hours since 1970; null where there is none in the range."""
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
    """A whole file."""
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def parquet_writer(sink: pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=[leaf for leaf in leaves if leaf.rpartition(".")[2] in FEW_VALUES],
        column_encoding={
            leaf: "DELTA_BINARY_PACKED" for leaf in leaves if leaf.rpartition(".")[2] in GROWING
        },
        # No reader skips anything by what is in lists, and it takes a tenth of the time.
        write_statistics=[leaf for leaf in leaves if "." not in leaf],
    )


def _leaves(path: str, kind: pa.DataType) -> list[str]:
    """Columns as Parquet names them: blocks.list.element.fork"""
    if pa.types.is_list(kind):
        return _leaves(f"{path}.list.{kind.value_field.name}", kind.value_type)
    if pa.types.is_struct(kind):
        return [leaf for each in kind for leaf in _leaves(f"{path}.{each.name}", each.type)]
    return [path]
