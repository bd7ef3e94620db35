"""Rows of `pg_changes` as a mirror reads them, their values by the names of their types, and the
metadata of its Iceberg tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quorum_wal.spark.mirror.iceberg_metadata import decode_metadata
from quorum_wal.spark.mirror.net_changes import row_of
from quorum_wal.spark.mirror.table_columns import MirrorColumn, array_of

_VALUES = {
    "bigint": b"-12",
    "numeric(6,2)": b"12.50",
    "double precision": b'"NaN"',
    "boolean": b"true",
    "date": b'"2026-11-26"',
    "timestamp with time zone": b'"2026-11-26T09:00:00.5+00:00"',
    "bytea": rb'"\\x00ff"',
    "text": rb'"a \" b"',
    "jsonb": b'{"a": [1]}',
}
_METADATA = b"""
{"table-uuid":"18e0eeaf-c1e9-5c18-988d-c2b57843895e","location":"file:///m/s.a",
"last-sequence-number":2,"last-updated-ms":1790000000002,"last-column-id":1,"current-schema-id":0,
"schemas":[{"schema-id":0,"fields":[{"id":1,"name":"id","type":"long","required":false}],
"type":"struct"}],"properties":{"gc.enabled":"false","quorum-wal.first-version":"2"},
"current-snapshot-id":2,"refs":{"main":{"snapshot-id":2,"type":"branch"}},"snapshots":[
{"snapshot-id":2,"sequence-number":2,"timestamp-ms":1790000000001,"schema-id":0,
"manifest-list":"file:///m/s.a/metadata/snap-2-c81f0b72.avro","summary":{"operation":"append"}}],
"snapshot-log":[{"timestamp-ms":1790000000001,"snapshot-id":2}],"metadata-log":[],
"format-version":2}"""


def _value(type_name: str, case: bytes) -> object:
    return array_of([case], MirrorColumn(1, "x", type_name)).to_pylist()


#: name -> (parser, valid input)
MIRROR_VALUES: dict[str, tuple[Callable[[bytes], object], tuple[bytes, ...]]] = {
    "net_changes.row_of": (row_of, (b'{"a":1,"b":[null,{"c":"d"}]}',)),
    "iceberg_metadata.decode_metadata": (partial(decode_metadata, key="v1"), (_METADATA,)),
    **{
        f"table_columns.array_of ({name})": (partial(_value, name), (value,))
        for name, value in _VALUES.items()
    },
}
