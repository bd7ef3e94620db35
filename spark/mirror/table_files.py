"""The Parquet files of a mirror table: merged with changes, or rewritten. Runs on the executors.

    files of bucket 3  --+
    net changes of 3   --+-->  one new file of bucket 3

Laws. A file is never changed. The name of a new file has the version for which it is written and a
token of the driver's attempt, so a repeated task writes the same file again. Every net change is
checked against the files: the row before it must exist, or must not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorum_wal.objectstore.store import ObjectStore, open_store
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.net_changes import row_of
from quorum_wal.spark.mirror.schema_change import ColumnSource
from quorum_wal.spark.mirror.table_columns import (
    MirrorColumn,
    array_of,
    bucket_of,
    key_texts,
    schema_of,
)
from quorum_wal.spark.mirror.version import NUMBER_DIGITS, MirrorFile

#: of all Parquet files. Iceberg requires that decimals of up to 18 digits are integers.
PARQUET_OPTIONS = {
    "compression": "zstd",
    "compression_level": 1,
    "store_decimal_as_integer": True,
}

#: net changes of one bucket: keys are texts of `table_columns.py`, a row is JSON; `row` is null if
#: the key has no row any more
NET_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("source", pa.string()),
        pa.field("had_row", pa.bool_()),
        pa.field("row", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one table, and how to write more. Picklable; opens the store itself. `key` are
    the names of the key columns, `folder` is where new files go."""

    url: str
    store_options: tuple[tuple[str, str], ...] = field(repr=False)  # may contain secrets
    name: str
    columns: tuple[MirrorColumn, ...]
    key: tuple[str, ...]
    buckets: int
    files: tuple[MirrorFile, ...]
    #: 000000000017 and 8b1f90ab in the names of new files
    version: int
    token: str

    def merge(self, bucket: int, net: pa.Table) -> MirrorFile | None:
        """Writes the bucket's rows after the changes; None if there are none. Raises MirrorError,
        ObjectStoreError."""
        store = open_store(self.url, dict(self.store_options))
        rows = merged(self._read(store, [bucket]), net, self, lambda: self._sources(store, net))
        return self.write(store, bucket, rows) if rows.num_rows else None

    def rewrite(
        self, file: MirrorFile, part: int, after: TableFiles, sources: Sequence[ColumnSource]
    ) -> list[MirrorFile]:
        """Writes the rows of one file, the `part`-th, with the columns, key and buckets of `after`.
        Raises MirrorError, ObjectStoreError."""
        store = open_store(self.url, dict(self.store_options))
        rows = converted(self._read_files(store, [file]), after, sources)
        buckets = pa.array(after.buckets_of(rows), pa.int32())
        return [
            after.write(store, bucket, rows.filter(pc.equal(buckets, bucket)), f"r{part}")
            for bucket in sorted(set(buckets.to_pylist()))
        ]

    def write(
        self, store: ObjectStore, bucket: int, rows: pa.Table, suffix: str = ""
    ) -> MirrorFile:
        data = _parquet(rows)
        path = self.path(bucket, suffix)
        store.put(path, data)
        return MirrorFile(path, bucket, rows.num_rows, len(data))

    def path(self, bucket: int, suffix: str = "") -> str:
        """`suffix` distinguishes files of one bucket."""
        name = f"{self.version:0{NUMBER_DIGITS}}-{bucket:04}-{self.token}{suffix}"
        return f"{quote(self.name, safe='.')}/{name}.parquet"

    def buckets_of(self, rows: pa.Table) -> list[int]:
        """The bucket of each row; of a table without a key, any."""
        if not self.key:
            return [number % self.buckets for number in range(rows.num_rows)]
        texts = key_texts([rows[name] for name in self.key])
        return [bucket_of(text, self.buckets) for text in texts.to_pylist()]

    def _read(self, store: ObjectStore, buckets: Iterable[int]) -> pa.Table:
        wanted = set(buckets)
        return self._read_files(store, [file for file in self.files if file.bucket in wanted])

    def _read_files(self, store: ObjectStore, files: Sequence[MirrorFile]) -> pa.Table:
        schema = schema_of(self.columns)
        try:
            parts = [pq.read_table(pa.BufferReader(store.get(file.path))) for file in files]
            return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])
        except (pa.ArrowException, ValueError) as error:
            names = ", ".join(file.path for file in files)
            raise MirrorError(
                f"a file of the mirror cannot be read: {names}: {error}",
                hint="It is damaged. Begin a new mirror.",
            ) from error

    def _sources(self, store: ObjectStore, net: pa.Table) -> pa.Table:
        """The rows of the keys that `net` names as sources, in any bucket."""
        wanted = net["source"].drop_null()
        buckets = {bucket_of(text, self.buckets) for text in wanted.to_pylist()}
        rows = self._read(store, buckets)
        return rows.filter(pc.is_in(key_texts([rows[name] for name in self.key]), wanted))


def merged(
    base: pa.Table, net: pa.Table, table: TableFiles, sources: Callable[[], pa.Table]
) -> pa.Table:
    """The rows of a bucket after the net changes. `sources` returns the rows before the batch that
    have columns which the changes lack. Raises MirrorError."""
    kept = base
    if table.key:
        texts = key_texts([base[name] for name in table.key])
        _check(texts, net, table.name)
        kept = base.filter(pc.invert(pc.is_in(texts, net["key"].combine_chunks())))
    written = net.filter(pc.is_valid(net["row"]))
    if written.num_rows == 0:
        return kept
    rows = [row_of(text) for text in written["row"].to_pylist()]
    found = None
    if written["source"].null_count < written.num_rows:
        found = _Sources.of(sources(), written["source"].combine_chunks(), table)
    arrays = [_column(column, rows, found) for column in table.columns]
    return pa.concat_tables([kept, pa.Table.from_arrays(arrays, schema=schema_of(table.columns))])


def converted(rows: pa.Table, after: TableFiles, sources: Sequence[ColumnSource]) -> pa.Table:
    """The rows with the columns of `after`. Raises MirrorError."""
    arrays = []
    for column, source in zip(after.columns, sources, strict=True):
        if source.name is None:
            array = array_of([source.missing], column)
            arrays.append(pa.chunked_array([pa.repeat(array[0], rows.num_rows)]))
            continue
        array = rows[source.name]
        if source.labels is not None:
            labels = source.labels
            texts = [None if text is None else labels.get(text, text) for text in array.to_pylist()]
            array = pa.chunked_array([pa.array(texts, pa.string())])
        try:
            arrays.append(array.cast(column.arrow_type))
        except pa.ArrowException as error:
            raise MirrorError(
                f'column "{column.name}" of {after.name} cannot be converted to '
                f"{column.type_name}: {error}",
                hint="Begin a new mirror in another folder.",
            ) from error
    return pa.Table.from_arrays(arrays, schema=schema_of(after.columns))


@dataclass(frozen=True, slots=True)
class _Sources:
    """For each written row, its source row in `rows`, or None."""

    rows: pa.Table
    places: pa.Array

    @classmethod
    def of(cls, rows: pa.Table, names: pa.Array, table: TableFiles) -> _Sources:
        texts = key_texts([rows[name] for name in table.key])
        places = pc.index_in(names, texts)
        lost = pc.and_(pc.is_null(places), pc.is_valid(names))
        if pc.any(lost).as_py():
            key = names.filter(lost)[0].as_py()
            raise _missing_row(table.name, key)
        return cls(rows, places)


def _column(
    column: MirrorColumn, rows: Sequence[Mapping[str, bytes]], sources: _Sources | None
) -> pa.Array:
    """The values of a column in the changed rows, or in their sources if the changes lack it."""
    found = array_of([row.get(column.name) for row in rows], column)
    if sources is None or all(column.name in row for row in rows):
        return found
    is_given = pa.array([column.name in row for row in rows])
    taken = sources.rows[column.name].combine_chunks().take(sources.places)
    return pc.if_else(is_given, found, taken)


def _check(texts: pa.Array, net: pa.Table, name: str) -> None:
    """Whether the rows before the batch are those that the changes need."""
    keys = net["key"].combine_chunks()
    is_found = pc.is_in(keys, texts)
    wrong = pc.not_equal(is_found, net["had_row"].combine_chunks())
    if not pc.any(wrong).as_py():
        return
    key, had_row = (net[column].filter(wrong)[0].as_py() for column in ("key", "had_row"))
    if had_row:
        raise _missing_row(name, key)
    raise MirrorError(
        f"table {name} of the mirror has a row with key {key!r}, which is inserted again",
        hint="The mirror and the WAL do not fit: begin a new mirror. Deferrable primary keys are "
        "not supported.",
    )


def _missing_row(name: str, key: str) -> MirrorError:
    return MirrorError(
        f"table {name} of the mirror has no row with key {key!r}, which a change needs",
        hint="The mirror and the WAL do not fit: begin a new mirror.",
    )


def _parquet(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **PARQUET_OPTIONS)
    return bytes(sink.getvalue())
