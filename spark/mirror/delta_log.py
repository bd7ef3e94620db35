"""`DeltaLog`: the tables of a mirror as Delta tables. Its files are those of the mirror.

    shop.orders/_delta_log/00000000000000000007.json              a commit, one action a line
    {"commitInfo":{"timestamp":...,"operation":"MERGE"}}
    {"txn":{"appId":"quorum-wal","version":17}}                   the version of the mirror
    {"remove":{"path":"000000000012-0003-8b1f90ab.parquet",...}}
    {"add":{"path":"000000000017-0003-77ab01cd.parquet",...}}
    shop.orders/_delta_log/00000000000000000050.checkpoint.parquet  all actions up to commit 50
    shop.orders/_delta_log/_last_checkpoint
    _mirror/delta.json                                            the last version that is published

Laws: those of `TableLog`. A version is committed once, because the last commit names it. A commit
is created, never replaced. Source: Delta transaction log protocol (PROTOCOL.md of delta-io/delta).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa
import pyarrow.parquet as pq

from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.table_columns import columns_of, schema_of
from quorum_wal.spark.mirror.table_log import TableLog, check_order
from quorum_wal.spark.mirror.version import MirrorFile, MirrorTable, Version, Versions

PUBLISHED = "_mirror/delta.json"
APP_ID = "quorum-wal"
NUMBER_DIGITS = 20
#: Readers read all commits since the last checkpoint.
CHECKPOINT_EVERY = 50

Action: TypeAlias = dict[str, dict[str, Any]]


class DeltaLog(TableLog):
    """Used by one thread. Every method raises MirrorError, ObjectStoreError."""

    def __init__(self, versions: Versions) -> None:
        super().__init__(versions, PUBLISHED)

    def _commit(
        self,
        name: str,
        old: MirrorTable | None,
        new: MirrorTable | None,
        version: Version,
        now_ms: int,
    ) -> None:
        number = version.number
        folder = f"{quote(name, safe='.')}/_delta_log/"
        last = _last_commit(self._store, folder)
        published = None if last is None else self._committed(folder, last)
        check_order(name, published, version)
        if published == number:
            return
        commit = 0 if last is None else last + 1
        table = new or MirrorTable(old.definition if old else {})
        actions = [
            {"commitInfo": {"timestamp": now_ms, "operation": "MERGE", "engineInfo": APP_ID}},
            {"txn": {"appId": APP_ID, "version": number, "lastUpdated": now_ms}},
        ]
        if commit == 0 or old is None or old.definition != table.definition:
            actions += self._head(name, table, now_ms)
        actions += _changes(old, table, now_ms)
        data = "".join(f"{json.dumps(action, ensure_ascii=False)}\n" for action in actions)
        key = f"{folder}{commit:0{NUMBER_DIGITS}}.json"
        if not self._store.create(key, data.encode()):
            raise MirrorError(
                f"{key} exists already",
                hint="Another process writes this mirror, or another program wrote the table.",
            )
        if commit and commit % CHECKPOINT_EVERY == 0:
            self._checkpoint(name, folder, commit, table, number, now_ms)

    def _committed(self, folder: str, commit: int) -> int | None:
        """The version of the mirror that a commit published."""
        key = f"{folder}{commit:0{NUMBER_DIGITS}}.json"
        try:
            actions = [json.loads(line) for line in self._store.get(key).splitlines()]
            found = [action["txn"]["version"] for action in actions if "txn" in action]
        except (ValueError, KeyError, TypeError) as error:
            raise MirrorError(f'"{key}" is damaged: {error}') from error
        return found[-1] if found else None

    def _head(self, name: str, table: MirrorTable, now_ms: int) -> list[Action]:
        """The protocol, and the columns."""
        schema = schema_of(columns_of(table.definition, is_text=self._is_text))
        metadata = {
            "id": str(uuid5(NAMESPACE_URL, f"{self._store.url}/{name}")),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(delta_schema(schema), ensure_ascii=False),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": now_ms,
        }
        return [{"protocol": _protocol(schema)}, {"metaData": metadata}]

    def _checkpoint(
        self, name: str, folder: str, commit: int, table: MirrorTable, number: int, now_ms: int
    ) -> None:
        """All actions that are in force, as a Parquet file; then the commits before it can go."""
        actions: list[Action] = [
            {"txn": {"appId": APP_ID, "version": number, "lastUpdated": now_ms}},
            *self._head(name, table, now_ms),
            *(_add(file, now_ms) for file in table.files),
        ]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(actions, schema=_CHECKPOINT), sink)
        key = f"{folder}{commit:0{NUMBER_DIGITS}}.checkpoint.parquet"
        self._store.put(key, bytes(sink.getvalue()))
        pointer = {"version": commit, "size": len(actions)}
        self._store.put(f"{folder}_last_checkpoint", json.dumps(pointer).encode())
        # Readers that began with the checkpoint before this one still need the commits after it.
        oldest = f"{folder}{commit - CHECKPOINT_EVERY:0{NUMBER_DIGITS}}"
        for info in list(self._store.list(folder)):
            if info.key < oldest and info.key.rpartition("/")[2][:1].isdigit():
                self._store.delete(info.key)


def _last_commit(store: ObjectStore, folder: str) -> int | None:
    names = (info.key.rpartition("/")[2] for info in store.list(folder))
    numbers = [int(name[:NUMBER_DIGITS]) for name in names if name.endswith(".json")]
    return max(numbers, default=None)


def _changes(old: MirrorTable | None, new: MirrorTable, now_ms: int) -> list[Action]:
    before = {} if old is None else {file.path: file for file in old.files}
    after = {file.path: file for file in new.files}
    removed: list[Action] = [
        {"remove": {"path": _name(path), "deletionTimestamp": now_ms, "dataChange": True}}
        for path in before
        if path not in after
    ]
    return removed + [_add(file, now_ms) for path, file in after.items() if path not in before]


def _add(file: MirrorFile, now_ms: int) -> Action:
    return {
        "add": {
            "path": _name(file.path),
            "partitionValues": {},
            "size": file.bytes,
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": json.dumps({"numRecords": file.rows}),
        }
    }


def _name(path: str) -> str:
    """The path of a file in the folder of its table."""
    return path.rpartition("/")[2]


# ---- the schema


def delta_schema(schema: pa.Schema) -> dict[str, Any]:
    fields: Iterable[Mapping[str, Any]] = (
        {"name": field.name, "type": delta_type(field.type), "nullable": True, "metadata": {}}
        for field in schema
    )
    return {"type": "struct", "fields": list(fields)}


def delta_type(kind: pa.DataType) -> str:
    """The name that Delta has for a type of `table_columns.py`."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _NAMES[kind]


_NAMES = {
    pa.bool_(): "boolean",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.binary(): "binary",
    pa.string(): "string",
}


def _protocol(schema: pa.Schema) -> dict[str, Any]:
    """Times without a zone are a feature of newer readers."""
    if all(delta_type(field.type) != "timestamp_ntz" for field in schema):
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    features = ["timestampNtz"]
    return {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": features, "writerFeatures": features,
    }  # fmt: skip


_TEXTS = pa.map_(pa.string(), pa.string())
_CHECKPOINT = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()),
                           ("lastUpdated", pa.int64())])),
        ("add", pa.struct([("path", pa.string()), ("partitionValues", _TEXTS),
                           ("size", pa.int64()), ("modificationTime", pa.int64()),
                           ("dataChange", pa.bool_()), ("stats", pa.string())])),
        ("remove", pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()),
                              ("dataChange", pa.bool_())])),
        ("metaData", pa.struct([("id", pa.string()),
                                ("format", pa.struct([("provider", pa.string()),
                                                      ("options", _TEXTS)])),
                                ("schemaString", pa.string()),
                                ("partitionColumns", pa.list_(pa.string())),
                                ("configuration", _TEXTS), ("createdTime", pa.int64())])),
        ("protocol", pa.struct([("minReaderVersion", pa.int32()),
                                ("minWriterVersion", pa.int32()),
                                ("readerFeatures", pa.list_(pa.string())),
                                ("writerFeatures", pa.list_(pa.string()))])),
    ]
)  # fmt: skip
