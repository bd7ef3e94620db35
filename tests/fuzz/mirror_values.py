"""Rows of `pg_changes` as a mirror reads them, and their values by the names of their types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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


def _value(type_name: str, case: bytes) -> object:
    return array_of([case], MirrorColumn(1, "x", type_name)).to_pylist()


#: name -> (parser, valid input)
MIRROR_VALUES: dict[str, tuple[Callable[[bytes], object], tuple[bytes, ...]]] = {
    "net_changes.row_of": (row_of, (b'{"a":1,"b":[null,{"c":"d"}]}',)),
    **{
        f"table_columns.array_of ({name})": (partial(_value, name), (value,))
        for name, value in _VALUES.items()
    },
}
