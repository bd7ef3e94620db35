"""The columns of a mirror table: their Arrow types, values, and keys as text.

    pg_changes (JSON)              definition           file
    "at":"2026-11-26T09:00:00"     timestamp            timestamp[us]
    "total":12.50                  numeric(10,2)        decimal128(10, 2)
    "tags":["a","b"]               text[]               string, the JSON

Laws. The type follows from the name of the Postgres type alone. All types that are not listed here,
also domains, are strings: as `row_to_json()` prints them, without quotes. A value that its type
cannot store is an error, never null. Two rows have the same key exactly if the texts of their key
columns are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from quorum_wal.spark.changes.table_definition import Definition
from quorum_wal.spark.errors import MirrorError

_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_TIMESTAMP = re.compile(r"timestamp(\(\d\))? (with|without) time zone")
_PRECISION_MAX = 38
_SEPARATOR = "\x1f"
#: as pyarrow names it in the metadata of a field
FIELD_ID = "PARQUET:field_id"

_TYPES = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "oid": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "date": pa.date32(),
    "bytea": pa.binary(),
}
_JSON_TYPES = ("json", "jsonb")


@dataclass(frozen=True, slots=True)
class MirrorColumn:
    """A column of a definition. `number` stays when the column is renamed."""

    number: int
    name: str
    type_name: str

    @property
    def arrow_type(self) -> pa.DataType:
        return arrow_type(self.type_name)


def columns_of(definition: Definition, *, is_text: bool = False) -> tuple[MirrorColumn, ...]:
    """With `is_text`, all columns are strings."""
    return tuple(
        MirrorColumn(each["number"], each["name"], _text_type(each) if is_text else each["type"])
        for each in definition["columns"]
    )


def _text_type(column: dict[str, Any]) -> str:
    """JSON keeps the quotes of its strings."""
    return str(column["type"]) if column["type"] in _JSON_TYPES else "text"


def schema_of(columns: Iterable[MirrorColumn]) -> pa.Schema:
    """The number of a column is its field id in Parquet files. Readers of Iceberg need it."""
    return pa.schema([_field(each) for each in columns])


def _field(column: MirrorColumn) -> pa.Field:
    return pa.field(column.name, column.arrow_type, metadata={FIELD_ID: str(column.number)})


def arrow_type(type_name: str) -> pa.DataType:
    """The type of a column, by the name that `format_type()` has for its Postgres type."""
    if found := _NUMERIC.fullmatch(type_name):
        precision, scale = int(found[1]), int(found[2])
        if precision <= _PRECISION_MAX and scale <= precision:
            return pa.decimal128(precision, scale)
    if found := _TIMESTAMP.fullmatch(type_name):
        return pa.timestamp("us", tz="UTC" if found[2] == "with" else None)
    return _TYPES.get(type_name, pa.string())


def array_of(values: Sequence[bytes | None], column: MirrorColumn) -> pa.Array:
    """Values in JSON as an array of the column's type. None is NULL. Raises MirrorError."""
    read = _reader(column)
    kind = column.arrow_type
    try:
        found = [None if value is None or value == b"null" else read(value) for value in values]
        return pa.array(found, kind)
    except (ValueError, ArithmeticError, msgspec.MsgspecError, pa.ArrowException):
        raise _unreadable(values, column, read) from None


def _unreadable(
    values: Sequence[bytes | None], column: MirrorColumn, read: Callable[[bytes], Any]
) -> MirrorError:
    """Names the first value that cannot be stored."""
    for value in values:
        try:
            if value is not None and value != b"null":
                pa.array([read(value)], column.arrow_type)
        except (ValueError, ArithmeticError, msgspec.MsgspecError, pa.ArrowException):
            text = value.decode(errors="replace") if value else ""
            return MirrorError(
                f'column "{column.name}" of type {column.type_name} has the value {text[:80]}, '
                f"which type {column.arrow_type} cannot store",
                hint="A mirror with --text stores all values as text.",
            )
    raise AssertionError("each of the values can be stored")


def _reader(column: MirrorColumn) -> Callable[[bytes], Any]:
    kind = column.arrow_type
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_integer(kind):
        return lambda value: int(_text(value))
    if pa.types.is_floating(kind):
        return lambda value: float(_text(value))
    if pa.types.is_decimal(kind):
        return lambda value: Decimal(_text(value))
    if pa.types.is_date(kind):
        return lambda value: date.fromisoformat(_text(value))
    if pa.types.is_timestamp(kind):
        return lambda value: datetime.fromisoformat(_text(value))
    if pa.types.is_binary(kind):
        return _bytes
    if column.type_name in _JSON_TYPES:
        return lambda value: value.decode()
    return _text


def _text(value: bytes) -> str:
    """A string without its quotes; other JSON as it is."""
    return msgspec.json.decode(value, type=str) if value.startswith(b'"') else value.decode()


def _boolean(value: bytes) -> bool:
    if value not in (b"true", b"false"):
        raise ValueError("not a boolean")
    return value == b"true"


def _bytes(value: bytes) -> bytes:
    text = _text(value)
    if not text.startswith("\\x"):
        raise ValueError("not in the hexadecimal format of bytea")
    return bytes.fromhex(text[2:])


# ---- keys


def key_texts(arrays: Sequence[pa.Array]) -> pa.Array:
    """The keys of rows as one text each, from the arrays of the key columns."""
    texts = [_texts(array) for array in arrays]
    if len(texts) == 1:
        return texts[0]
    parts = [part for text in texts for part in (pc.binary_length(text).cast(pa.string()), text)]
    return pc.binary_join_element_wise(*parts, _SEPARATOR)


def _texts(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_binary(array.type):
        return pa.array([value.hex() for value in array.to_pylist()], pa.string())
    return array.cast(pa.string())


def bucket_of(key_text: str, buckets: int) -> int:
    return crc32(key_text.encode()) % buckets
