"""Ranges and multiranges as text.

    range       | type 4 | lower bound | upper bound | flags 1 |
    multirange  | type 4 | count 4 | places of the ranges, 4 each but for the first |
                | flags 1 each | bounds of each range, aligned |

A bound that is infinite, or of an empty range, is not stored. The ranges of a multirange lie one
behind the other, so their places are not needed. Source: Postgres `rangetypes.h`, `rangetypes.c`
(range_deparse), `multirangetypes.c`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from quorum_wal.spark.changes.datum_cursor import DatumCursor
from quorum_wal.spark.changes.datum_varlena import DatumError

_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE = 0x01, 0x02, 0x04
_LOWER_INFINITE, _UPPER_INFINITE, _LOWER_NULL, _UPPER_NULL = 0x08, 0x10, 0x20, 0x40
_NO_LOWER = _EMPTY | _LOWER_INFINITE | _LOWER_NULL
_NO_UPPER = _EMPTY | _UPPER_INFINITE | _UPPER_NULL

_TYPE_SIZE = 4
_COUNT = struct.Struct("<4xI")
_PLACE_SIZE = 4
_QUOTED = frozenset(' \t\n\r\v\f"\\()[],')


@dataclass(frozen=True, slots=True)
class Bound:
    """The storage format of a range's subtype, and its printer."""

    length: int
    align: int
    text: Callable[[bytes], str]


def range_text(data: bytes, bound: Bound) -> str:
    """The output of range_out. Raises DatumError, and what the bound's printer raises."""
    if len(data) <= _TYPE_SIZE:
        raise DatumError(f"range of {len(data)} bytes, expected at least {_TYPE_SIZE + 1}")
    return _range(DatumCursor(data[:-1], _TYPE_SIZE), data[-1], bound)


def multirange_text(data: bytes, bound: Bound) -> str:
    """The output of multirange_out. Raises DatumError, struct.error, and what the bound's printer
    raises."""
    (count,) = _COUNT.unpack_from(data)
    flags_at = _COUNT.size + _PLACE_SIZE * max(count - 1, 0)
    if flags_at + count > len(data):
        raise DatumError(f"multirange of {count} ranges in {len(data)} bytes")
    cursor = DatumCursor(data, flags_at + count)
    ranges = []
    for flags in data[flags_at : flags_at + count]:
        cursor.align(bound.align)
        ranges.append(_range(cursor, flags, bound))
    return "{" + ",".join(ranges) + "}"


def _range(cursor: DatumCursor, flags: int, bound: Bound) -> str:
    if flags & _EMPTY:
        return "empty"
    lower = upper = ""
    if not flags & _NO_LOWER:
        lower = _quoted(bound.text(cursor.value(bound.length, bound.align)))
    if not flags & _NO_UPPER:
        upper = _quoted(bound.text(cursor.value(bound.length, bound.align)))
    opening = "[" if flags & _LOWER_INCLUSIVE else "("
    closing = "]" if flags & _UPPER_INCLUSIVE else ")"
    return f"{opening}{lower},{upper}{closing}"


def _quoted(text: str) -> str:
    if text and _QUOTED.isdisjoint(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
