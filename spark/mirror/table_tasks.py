"""The functions of Spark's tasks: they key the changes of a batch, fold them, and merge the result.

    rows of pg_changes --keyed--> changes with keys --by family, folded--> net changes
                       --by bucket, merged--> new files

A task has all changes of its keys, and all net changes of its buckets. `RoundTables` is picklable.
Errors are shown with their hints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

import pyarrow as pa

from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.net_changes import (
    Change,
    Key,
    NetChange,
    change_of,
    json_of,
    net_changes,
    values_of,
)
from quorum_wal.spark.mirror.table_columns import array_of, bucket_of, key_texts
from quorum_wal.spark.mirror.table_files import NET_SCHEMA, TableFiles
from quorum_wal.spark.mirror.version import MirrorFile
from quorum_wal.spark.sources.shown_errors import shown_errors

if TYPE_CHECKING:
    from pyspark.sql import Row

#: (number of the table, change)
Keyed: TypeAlias = tuple[int, Change]
#: the values of NET_SCHEMA
Net: TypeAlias = tuple[str, str | None, bool, bytes | None]
#: (number of the table, bucket)
BucketId: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RoundTables:
    """The tables of a round by their number, as they are when its changes are applied."""

    tables: Mapping[int, TableFiles]

    def keyed(self, rows: Iterable[Row]) -> Iterator[Keyed]:
        """`rows` are rows of pg_changes with `table_number`."""
        with shown_errors():
            for row in rows:
                number = row.table_number
                yield number, change_of(row.asDict(), self.tables[number].key)

    def folded(self, changes: Iterable[tuple[int, Keyed]]) -> Iterator[tuple[BucketId, Net]]:
        """All changes of some keys, each with the number of its task."""
        with shown_errors():
            by_table: dict[int, list[Change]] = {}
            for _, (number, change) in changes:
                by_table.setdefault(number, []).append(change)
            for number, found in by_table.items():
                table = self.tables[number]
                names = [column.name for column in table.columns]
                for bucket, net in _net_rows(table, net_changes(found, names)):
                    yield (number, bucket), net

    def keyed_and_folded(self, rows: Iterable[Row]) -> Iterator[tuple[BucketId, Net]]:
        """Of all changes of the round."""
        return self.folded((0, each) for each in self.keyed(rows))

    def merged(
        self, changes: Iterable[tuple[BucketId, Net]]
    ) -> Iterator[tuple[BucketId, MirrorFile | None]]:
        """All net changes of some buckets. A bucket without rows has no file."""
        with shown_errors():
            by_bucket: dict[BucketId, list[Net]] = {}
            for bucket_id, net in changes:
                by_bucket.setdefault(bucket_id, []).append(net)
            for (number, bucket), rows in by_bucket.items():
                columns = zip(zip(*rows, strict=True), NET_SCHEMA, strict=True)
                arrays = [pa.array(column, field.type) for column, field in columns]
                net_table = pa.Table.from_arrays(arrays, schema=NET_SCHEMA)
                yield (number, bucket), self.tables[number].merge(bucket, net_table)


def family_id(number: int, key: Key) -> str:
    return f"{number}:{key.decode()}"


def task_of(keyed: Keyed, families: Mapping[str, str], tasks: int) -> int:
    """Keys that are changed into each other have one task."""
    own = family_id(keyed[0], keyed[1].key)
    return crc32(families.get(own, own).encode()) % tasks


def task_of_bucket(bucket_id: BucketId, tasks: int) -> int:
    number, bucket = bucket_id
    return (number * 31 + bucket) % tasks


def _net_rows(table: TableFiles, found: list[NetChange]) -> Iterator[tuple[int, Net]]:
    """Each net change with its bucket."""
    keys = _texts(table, [each.key for each in found])
    sources = iter(_texts(table, [each.source for each in found if each.source is not None]))
    for key, each in zip(keys, found, strict=True):
        source = None if each.source is None else next(sources)
        row = None if each.row is None else json_of(each.row)
        yield bucket_of(key, table.buckets), (key, source, each.had_row, row)


def _texts(table: TableFiles, keys: list[Key]) -> list[str]:
    """The keys as the texts that the values in the files have. Without key columns, as they are."""
    if not table.key or not keys:
        return [key.decode() for key in keys]
    columns = {column.name: column for column in table.columns}
    values = [values_of(key) for key in keys]
    arrays = []
    for place, name in enumerate(table.key):
        if name not in columns:
            raise MirrorError(f'key column "{name}" of {table.name} is not one of its columns')
        arrays.append(array_of([each[place] for each in values], columns[name]))
    found: list[str] = key_texts(arrays).to_pylist()
    return found
