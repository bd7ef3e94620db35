"""`TableMetadata`: the metadata of an Iceberg table, which names its columns and snapshots.

    {"format-version":2, "table-uuid":"...", "location":"file:///srv/mirror/shop.orders",
     "schemas":[{"type":"struct", "schema-id":0,
                 "fields":[{"id":1, "name":"id", "required":false, "type":"long"}, ...]}],
     "current-snapshot-id":17,
     "snapshots":[{"snapshot-id":17, "manifest-list":"...", "schema-id":0, ...}], ...}

Pure. Laws. A column's id is its number in Postgres. While a table has its UUID, an id keeps its
type, or gets a wider one; a table whose columns change otherwise is a new one. All columns are
optional, and tables have no partitions. Source: Iceberg table specification, version 2 (format/
spec.md of apache/iceberg).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
import pyarrow as pa

from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.table_columns import MirrorColumn
from quorum_wal.spark.mirror.version import KEPT

FORMAT_VERSION = 2
KEPT_MS = int(KEPT.total_seconds() * 1000)
#: Ids of the fields of partitions begin after it.
LAST_PARTITION_ID = 999
#: The property with the first version that is a snapshot of the table. Older files belong to it.
FIRST_VERSION = "quorum-wal.first-version"

_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")
_WIDER = {("int", "long"), ("float", "double")}


class IcebergField(msgspec.Struct, frozen=True):
    id: int
    name: str
    type: str
    required: bool = False


class IcebergSchema(msgspec.Struct, rename="kebab", frozen=True):
    schema_id: int
    fields: tuple[IcebergField, ...]
    type: str = "struct"


class Snapshot(msgspec.Struct, rename="kebab", frozen=True):
    """`snapshot_id` is the number of the mirror's version."""

    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    manifest_list: str
    schema_id: int
    summary: dict[str, str]
    parent_snapshot_id: int | msgspec.UnsetType = msgspec.UNSET


class SnapshotLogEntry(msgspec.Struct, rename="kebab", frozen=True):
    timestamp_ms: int
    snapshot_id: int


class MetadataLogEntry(msgspec.Struct, rename="kebab", frozen=True):
    timestamp_ms: int
    metadata_file: str


class TableMetadata(msgspec.Struct, rename="kebab", frozen=True):
    """Of one state of a table. Snapshots are in their order; the last one is the current one."""

    table_uuid: str
    location: str
    last_sequence_number: int
    last_updated_ms: int
    last_column_id: int
    current_schema_id: int
    schemas: tuple[IcebergSchema, ...]
    properties: dict[str, str]
    current_snapshot_id: int | None = None
    refs: dict[str, dict[str, Any]] = {}
    snapshots: tuple[Snapshot, ...] = ()
    snapshot_log: tuple[SnapshotLogEntry, ...] = ()
    metadata_log: tuple[MetadataLogEntry, ...] = ()
    format_version: int = FORMAT_VERSION
    default_spec_id: int = 0
    partition_specs: tuple[dict[str, Any], ...] = ({"spec-id": 0, "fields": []},)
    last_partition_id: int = LAST_PARTITION_ID
    default_sort_order_id: int = 0
    sort_orders: tuple[dict[str, Any], ...] = ({"order-id": 0, "fields": []},)

    @property
    def first_version(self) -> int:
        return int(self.properties[FIRST_VERSION])

    def continues(self, fields: Iterable[IcebergField]) -> bool:
        """Whether `fields` can be the next columns of this table."""
        known = {(each.id, each.type) for schema in self.schemas for each in schema.fields}
        new = {each.id: each.type for each in fields}
        return all(_is_promoted(kind, new.get(number, kind)) for number, kind in known)

    def schema_for(self, fields: tuple[IcebergField, ...]) -> IcebergSchema:
        """One that the table has, or the next one."""
        for schema in self.schemas:
            if schema.fields == fields:
                return schema
        last = max((schema.schema_id for schema in self.schemas), default=-1)
        return IcebergSchema(last + 1, fields)

    def following(
        self, schema: IcebergSchema, snapshot: Snapshot, metadata_file: str | None
    ) -> TableMetadata:
        """The table after one more snapshot. Snapshots that were replaced more than KEPT ago are
        removed. Schemas stay: they are the types that an id has had. `metadata_file` is the URL of
        `self`, if it was written."""
        later = (*self.snapshots, snapshot)[1:]
        oldest_ms = snapshot.timestamp_ms - KEPT_MS
        kept = [
            each
            for each, replaced_by in zip(self.snapshots, later, strict=True)
            if replaced_by.timestamp_ms > oldest_ms
        ]
        snapshots = (*kept, snapshot)
        log = self.metadata_log
        if metadata_file is not None:
            log = (*log, MetadataLogEntry(self.last_updated_ms, metadata_file))
        return msgspec.structs.replace(
            self,
            last_sequence_number=snapshot.sequence_number,
            last_updated_ms=snapshot.timestamp_ms,
            last_column_id=max(self.last_column_id, *(each.id for each in schema.fields), 0),
            current_schema_id=schema.schema_id,
            schemas=self.schemas if schema in self.schemas else (*self.schemas, schema),
            current_snapshot_id=snapshot.snapshot_id,
            refs={"main": {"snapshot-id": snapshot.snapshot_id, "type": "branch"}},
            snapshots=snapshots,
            snapshot_log=tuple(
                SnapshotLogEntry(each.timestamp_ms, each.snapshot_id) for each in snapshots
            ),
            metadata_log=log[max(0, len(log) - len(kept)) :],  # a snapshot has one metadata file
        )


def new_table(location: str, first_version: int) -> TableMetadata:
    """A table without columns and snapshots. The UUID is the same for the same arguments."""
    return TableMetadata(
        table_uuid=str(uuid5(NAMESPACE_URL, f"{location}/{first_version}")),
        location=location,
        last_sequence_number=0,
        last_updated_ms=0,
        last_column_id=0,
        current_schema_id=0,
        schemas=(),
        # Files belong to the mirror: no other program may delete them.
        properties={"gc.enabled": "false", FIRST_VERSION: str(first_version)},
    )


def decode_metadata(data: bytes, key: str) -> TableMetadata:
    """Raises MirrorError."""
    try:
        found = msgspec.convert(msgspec.json.decode(data), TableMetadata)
        if found.first_version < 0 or found.current_snapshot_id is None or not found.snapshots:
            raise ValueError("it has no snapshot")
        return found
    except (msgspec.MsgspecError, ValueError, KeyError, RecursionError) as error:
        raise MirrorError(
            f'"{key}" is not the metadata of a mirror\'s Iceberg table: {error}',
            hint="It is damaged, or another program wrote it.",
        ) from error


def iceberg_fields(columns: Iterable[MirrorColumn]) -> tuple[IcebergField, ...]:
    return tuple(
        IcebergField(each.number, each.name, iceberg_type(each.arrow_type)) for each in columns
    )


def iceberg_type(kind: pa.DataType) -> str:
    """The name that Iceberg has for a type of `table_columns.py`."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    return _NAMES[kind]


_NAMES = {
    pa.bool_(): "boolean",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.binary(): "binary",
    pa.string(): "string",
}


def _is_promoted(old: str, new: str) -> bool:
    """Whether Iceberg allows that a column changes its type so."""
    if old == new or (old, new) in _WIDER:
        return True
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before is None or after is None:
        return False
    return before[2] == after[2] and int(before[1]) <= int(after[1])
