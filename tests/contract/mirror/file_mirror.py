"""A mirror without a source: its tables are written by the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.spark.changes.table_definition import Definition
from quorum_wal.spark.mirror.table_columns import array_of, columns_of, schema_of
from quorum_wal.spark.mirror.table_files import TableFiles
from quorum_wal.spark.mirror.version import (
    FORMAT,
    MirrorFile,
    MirrorJob,
    MirrorTable,
    SeenTransactions,
    TableFormat,
    Version,
    Versions,
)

TYPES = {
    "id": ("bigint", b"1"),
    "flag": ("boolean", b"true"),
    "small": ("smallint", b"2"),
    "n": ("integer", b"3"),
    "ratio": ("real", b"0.5"),
    "double": ("double precision", b"0.25"),
    "total": ("numeric(12,2)", b"12.50"),
    "day": ("date", b'"2026-11-26"'),
    "at": ("timestamp with time zone", b'"2026-11-26T09:00:00+00:00"'),
    "plain": ("timestamp without time zone", b'"2026-11-26T09:00:00"'),
    "raw": ("bytea", rb'"\\x00ff"'),
    "täxt": ("text", '"ü"'.encode()),
}
NOW_MS = 1_790_000_000_000


def definition(name: str, *columns: str) -> Definition:
    return {
        "schema": "s", "table": name, "kind": "table", "key": ["id"],
        "columns": [
            {"number": number, "name": column, "type": TYPES[column][0]}
            for number, column in enumerate(columns, 1)
        ],
    }  # fmt: skip


class FileMirror:
    """A mirror without a source."""

    def __init__(self, store: ObjectStore, table_format: TableFormat) -> None:
        self.versions = Versions(store)
        self.versions.begin(
            MirrorJob(FORMAT, 1, "db", (), (), is_text=False, table_format=table_format)
        )
        self.version = Version(0, 0, None, None, "", SeenTransactions(0, 0, 1, ()), ())

    def table(self, name: str, *columns: str, rows: int = 1, version: int = 1) -> MirrorTable:
        """One with a file of equal rows."""
        defined = definition(name, *columns)
        file = self.write(defined, 0, [{each: TYPES[each][1] for each in columns}] * rows, version)
        return MirrorTable(defined, 1, (file,))

    def write(
        self, defined: Definition, bucket: int, rows: Sequence[Mapping[str, bytes]], version: int
    ) -> MirrorFile:
        """`rows` have JSON values by the names of their columns."""
        columns = columns_of(defined)
        files = TableFiles(
            self.versions.store.url, (), f"{defined['schema']}.{defined['table']}", columns,
            ("id",), 1, (), version, f"{version:08}",
        )  # fmt: skip
        arrays = [array_of([row.get(column.name) for row in rows], column) for column in columns]
        table = pa.Table.from_arrays(arrays, schema=schema_of(columns))
        return files.write(self.versions.store, bucket, table)

    def create(self, *tables: MirrorTable) -> Version:
        self.version = replace(self.version, number=self.version.number + 1, tables=tables)
        self.versions.create(self.version)
        return self.version
