"""Arrays as text and as JSON.

    | dimensions 4 | 0, or offset of the data 4 | element type 4 | lengths 4 each |
    | lower bounds 4 each | bitmap of values that are not NULL, if any | elements, each aligned |

The offset of the data includes the 4 bytes of the value's own length, which are not here.
`int2vector` and `oidvector` have the same format. Source: Postgres `utils/array.h`, `arrayfuncs.c`,
`json.c`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from quorum_wal.spark.changes.datum_cursor import LENGTH_SIZE, DatumCursor
from quorum_wal.spark.changes.datum_varlena import DatumError

_HEADER = struct.Struct("<iiI")
_DIMENSIONS_MAX = 6
#: `MaxArraySize`
_ELEMENTS_MAX = 0x3FFFFFFF // 8
#: of the first element, if no bitmap precedes it
_DATA_ALIGN = 8
_QUOTED = frozenset(' \t\n\r\v\f{}"\\')


@dataclass(frozen=True, slots=True)
class Element:
    """The storage format of an array's elements, and their printers."""

    length: int
    align: int
    text: Callable[[bytes], str]
    json: Callable[[bytes], str]
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class _Array:
    lengths: tuple[int, ...]
    lower_bounds: tuple[int, ...]
    #: None is NULL
    values: list[bytes | None]


def array_text(data: bytes, element: Element) -> str:
    """The output of array_out. Raises ValueError, IndexError, struct.error on damage."""
    array = _parse(data, element)
    if not array.lengths:
        return "{}"
    quoted = _QUOTED | {element.delimiter}
    values = iter(
        ["NULL" if each is None else _quoted(element.text(each), quoted) for each in array.values]
    )
    text = _nested(array.lengths, values, "{", "}", element.delimiter)
    if any(bound != 1 for bound in array.lower_bounds):
        pairs = zip(array.lower_bounds, array.lengths, strict=True)
        bounds = "".join(f"[{bound}:{bound + length - 1}]" for bound, length in pairs)
        return f"{bounds}={text}"
    return text


def array_json(data: bytes, element: Element) -> str:
    """The output of array_to_json."""
    array = _parse(data, element)
    if not array.lengths:
        return "[]"
    values = iter(["null" if value is None else element.json(value) for value in array.values])
    return _nested(array.lengths, values, "[", "]", ",")


def _nested(
    lengths: tuple[int, ...], values: Iterator[str], opening: str, closing: str, delimiter: str
) -> str:
    if not lengths:
        return next(values)
    parts = (_nested(lengths[1:], values, opening, closing, delimiter) for _ in range(lengths[0]))
    return opening + delimiter.join(parts) + closing


def plain_vector_text(data: bytes, element: Element) -> str:
    """The output of int2vectorout and oidvectorout. Raises as array_text does."""
    values = _parse(data, element).values
    return " ".join("" if value is None else element.text(value) for value in values)


def _quoted(text: str, quoted: frozenset[str]) -> str:
    if text and text.upper() != "NULL" and quoted.isdisjoint(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _parse(data: bytes, element: Element) -> _Array:
    dimensions, data_offset, _ = _HEADER.unpack_from(data)
    if not 0 <= dimensions <= _DIMENSIONS_MAX:
        raise DatumError(f"array of {dimensions} dimensions")
    lengths = struct.unpack_from(f"<{dimensions}i", data, _HEADER.size)
    lower_bounds = struct.unpack_from(f"<{dimensions}i", data, _HEADER.size + 4 * dimensions)
    if dimensions == 0:
        return _Array((), (), [])
    count = prod(lengths)
    if min(lengths) < 0 or count > _ELEMENTS_MAX:
        raise DatumError(f"array of {' x '.join(map(str, lengths))} elements")
    if count == 0:
        return _Array((), (), [])
    bitmap = _HEADER.size + 8 * dimensions
    cursor = DatumCursor(data, data_offset - LENGTH_SIZE if data_offset else bitmap)
    if not data_offset:
        cursor.align(_DATA_ALIGN)
    values: list[bytes | None] = []
    for i in range(count):
        if data_offset and not data[bitmap + i // 8] >> i % 8 & 1:
            values.append(None)
        else:
            cursor.align(element.align)
            values.append(cursor.value(element.length, element.align))
    return _Array(lengths, lower_bounds, values)
