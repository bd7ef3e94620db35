"""The files of an Iceberg snapshot: its manifest, and the list of its manifests.

    manifest list, Avro, one record     manifest, Avro, a record for each file
    manifest_path   .../17-8b1f90ab-m0.avro   status       added
    manifest_length 4096                      snapshot_id  17
    added_files_count 2, ...                  data_file    file_path .../000000000017-0003-….parquet
                                                           record_count 812, ...

Pure. Laws. A snapshot has one manifest, with all files of the table, and with those that the
snapshot removed. The sequence number of a snapshot is its id. Optional fields that a mirror does
not know are omitted. Source: Iceberg table specification, version 2 (format/spec.md of
apache/iceberg); the numbers are those that it has for the fields.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import fastavro
import msgspec

from quorum_wal.spark.mirror.iceberg_metadata import FORMAT_VERSION, IcebergSchema
from quorum_wal.spark.mirror.version import MirrorFile

#: the only compression that every reader of Avro has
CODEC = "deflate"
#: of files with rows; others have deletions
CONTENT_DATA = 0


class Status(IntEnum):
    """What a snapshot did with a file."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """`added_by` is the snapshot that added the file, `path` where it is, as a URL."""

    status: Status
    file: MirrorFile
    path: str
    added_by: int


def encode_manifest(
    entries: Iterable[ManifestEntry], snapshot_id: int, schema: IcebergSchema
) -> bytes:
    head = {
        "schema": msgspec.json.encode(schema).decode(),
        "schema-id": str(schema.schema_id),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": str(FORMAT_VERSION),
        "content": "data",
    }
    return _avro(_ENTRY, [_entry(each, snapshot_id) for each in entries], head)


def encode_manifest_list(
    path: str,
    length_bytes: int,
    entries: Sequence[ManifestEntry],
    snapshot_id: int,
    parent_id: int | None,
) -> bytes:
    """Of the manifest at `path`, which has `entries`. Without any, the list is empty."""
    head = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "sequence-number": str(snapshot_id),
        "format-version": str(FORMAT_VERSION),
    }
    if not entries:
        return _avro(_MANIFEST, [], head)
    live = [each.added_by for each in entries if each.status is not Status.DELETED]
    record = {
        "manifest_path": path,
        "manifest_length": length_bytes,
        "partition_spec_id": 0,
        "content": CONTENT_DATA,
        "sequence_number": snapshot_id,
        "min_sequence_number": min(live, default=snapshot_id),
        "added_snapshot_id": snapshot_id,
        "partitions": [],
    }
    for status in Status:
        files = [each.file for each in entries if each.status is status]
        record[f"{status.name.lower()}_files_count"] = len(files)
        record[f"{status.name.lower()}_rows_count"] = sum(file.rows for file in files)
    return _avro(_MANIFEST, [record], head)


def summary_of(entries: Sequence[ManifestEntry]) -> dict[str, str]:
    """The summary of the snapshot whose manifest has `entries`."""
    added, deleted, live = (
        [each.file for each in entries if each.status in kinds]
        for kinds in ((Status.ADDED,), (Status.DELETED,), (Status.ADDED, Status.EXISTING))
    )
    operation = "overwrite" if added else "delete"
    found = {"operation": operation if deleted else "append"}
    for prefix, infix, files in (
        ("added", "added", added),
        ("deleted", "removed", deleted),
        ("total", "total", live),
    ):
        found[f"{prefix}-data-files"] = str(len(files))
        found[f"{prefix}-records"] = str(sum(file.rows for file in files))
        found[f"{infix}-files-size"] = str(sum(file.bytes for file in files))
    return found


def _entry(entry: ManifestEntry, snapshot_id: int) -> dict[str, Any]:
    """A file that is added inherits the sequence number of the snapshot."""
    is_added = entry.status is Status.ADDED
    return {
        "status": entry.status.value,
        "snapshot_id": entry.added_by if entry.status is Status.EXISTING else snapshot_id,
        "sequence_number": None if is_added else entry.added_by,
        "file_sequence_number": None if is_added else entry.added_by,
        "data_file": {
            "content": CONTENT_DATA,
            "file_path": entry.path,
            "file_format": "PARQUET",
            "partition": {},
            "record_count": entry.file.rows,
            "file_size_in_bytes": entry.file.bytes,
        },
    }


def _avro(schema: dict[str, Any], records: list[dict[str, Any]], head: dict[str, str]) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, schema, records, codec=CODEC, metadata=head)
    return sink.getvalue()


def _field(number: int, name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "field-id": number}


def _optional(number: int, name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": number}


def _record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


_ENTRY = _record(
    "manifest_entry",
    _field(0, "status", "int"),
    _optional(1, "snapshot_id", "long"),
    _optional(3, "sequence_number", "long"),
    _optional(4, "file_sequence_number", "long"),
    _field(2, "data_file", _record(
        "r2",
        _field(134, "content", "int"),
        _field(100, "file_path", "string"),
        _field(101, "file_format", "string"),
        _field(102, "partition", _record("r102")),
        _field(103, "record_count", "long"),
        _field(104, "file_size_in_bytes", "long"),
    )),
)  # fmt: skip

_PARTITION = _record(
    "r508",
    _field(509, "contains_null", "boolean"),
    _optional(518, "contains_nan", "boolean"),
    _optional(510, "lower_bound", "bytes"),
    _optional(511, "upper_bound", "bytes"),
)

_MANIFEST = _record(
    "manifest_file",
    _field(500, "manifest_path", "string"),
    _field(501, "manifest_length", "long"),
    _field(502, "partition_spec_id", "int"),
    _field(517, "content", "int"),
    _field(515, "sequence_number", "long"),
    _field(516, "min_sequence_number", "long"),
    _field(503, "added_snapshot_id", "long"),
    _field(504, "added_files_count", "int"),
    _field(505, "existing_files_count", "int"),
    _field(506, "deleted_files_count", "int"),
    _field(512, "added_rows_count", "long"),
    _field(513, "existing_rows_count", "long"),
    _field(514, "deleted_rows_count", "long"),
    _optional(507, "partitions", {"type": "array", "items": _PARTITION, "element-id": 508}),
)
