"""Values of composite types as text and as JSON.

    | typmod 4 | type 4 | ctid 6 | infomask2 2 | infomask 2 | hoff 1 |
    | bitmap of values that are not NULL, if any | padding | values, aligned |

This is a heap tuple with a type in place of its transactions. `hoff` counts from the value's own
length, which is not in the data. A value may be older than its type: attributes that it lacks are
NULL. Source: Postgres `htup_details.h`, `rowtypes.c` (record_out), `json.c` (composite_to_json).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quorum_wal.spark.changes.datum_cursor import LENGTH_SIZE, DatumCursor
from quorum_wal.spark.changes.datum_jsonb import json_string
from quorum_wal.spark.changes.datum_varlena import DatumError

_HEADER = struct.Struct("<14xHHB")
_COUNT_MASK, _HAS_NULL = 0x07FF, 0x0001
_QUOTED = frozenset(' \t\n\r\v\f"\\(),')


@dataclass(frozen=True, slots=True)
class Field:
    """An attribute: its storage format, and its printers. A dropped one is not printed."""

    name: str
    length: int
    align: int
    is_dropped: bool
    text: Callable[[bytes], str]
    json: Callable[[bytes], str]


def composite_text(data: bytes, fields: Sequence[Field]) -> str:
    """The output of record_out. Raises DatumError, struct.error, and what the printers raise."""
    parts = (
        "" if value is None else _quoted(field.text(value))
        for field, value in _values(data, fields)
    )
    return f"({','.join(parts)})"


def composite_json(data: bytes, fields: Sequence[Field]) -> str:
    """The output of row_to_json. Raises DatumError, struct.error, and what the printers raise."""
    parts = (
        f"{json_string(field.name)}:{'null' if value is None else field.json(value)}"
        for field, value in _values(data, fields)
    )
    return "{" + ",".join(parts) + "}"


def _values(data: bytes, fields: Sequence[Field]) -> Iterator[tuple[Field, bytes | None]]:
    infomask2, infomask, hoff = _HEADER.unpack_from(data)
    count, has_null = infomask2 & _COUNT_MASK, infomask & _HAS_NULL
    if count > len(fields):
        raise DatumError(
            f"a composite value has {count} attributes, but the catalog has {len(fields)} for its "
            "type: take a new catalog"
        )
    bitmap = data[_HEADER.size : _HEADER.size + (count + 7) // 8 if has_null else _HEADER.size]
    if hoff < _HEADER.size + len(bitmap) + LENGTH_SIZE:
        raise DatumError(f"the header of a composite value has {hoff} bytes, too few")
    cursor = DatumCursor(data, hoff - LENGTH_SIZE)
    for number, field in enumerate(fields):
        is_null = number >= count or (has_null and not bitmap[number // 8] >> number % 8 & 1)
        if field.is_dropped:
            if not is_null:
                cursor.stored(field.length, field.align)
        else:
            yield field, None if is_null else cursor.value(field.length, field.align)


def _quoted(text: str) -> str:
    if text and _QUOTED.isdisjoint(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
