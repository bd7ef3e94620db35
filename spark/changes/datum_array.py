"""Arrays as text and as JSON.

    | dimensions 4 | 0, or offset of the data 4 | element type 4 | lengths 4 each |
    | lower bounds 4 each | bitmap of values that are not NULL, if any | elements, each aligned |

The offset of the data includes the 4 bytes of the value's own length, which are not here.
Source: Postgres `utils/array.h`, `arrayfuncs.c`, `json.c`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from quorum_wal.spark.changes.datum_varlena import plain_varlena

_HEADER = struct.Struct("<iiI")
_LENGTH_SIZE = 4
_DIMENSIONS_MAX = 6
#: `MaxArraySize`
_ELEMENTS_MAX = 0x3FFFFFFF // 8


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
    """The output of array_out. Raises ValueError, struct.error on damage."""
    array = _parse(data, element)
    if not array.lengths:
        return "{}"
    values = iter(
        ["NULL" if value is None else _quoted(element.text(value)) for value in array.values]
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


def _quoted(text: str) -> str:
    if text and text.upper() != "NULL" and not any(c in ' \t\n\r\v\f{}",\\' for c in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _parse(data: bytes, element: Element) -> _Array:
    dimensions, data_offset, _ = _HEADER.unpack_from(data)
    if not 0 <= dimensions <= _DIMENSIONS_MAX:
        raise ValueError(f"array of {dimensions} dimensions")
    lengths = struct.unpack_from(f"<{dimensions}i", data, _HEADER.size)
    lower_bounds = struct.unpack_from(f"<{dimensions}i", data, _HEADER.size + 4 * dimensions)
    if dimensions == 0:
        return _Array((), (), [])
    count = prod(lengths)
    if min(lengths) < 0 or count > _ELEMENTS_MAX:
        raise ValueError(f"array of {' x '.join(map(str, lengths))} elements")
    if count == 0:
        return _Array((), (), [])
    bitmap = _HEADER.size + 8 * dimensions
    # Alignment also counts from the value's length.
    at = data_offset or _aligned(bitmap + _LENGTH_SIZE, 8)
    values: list[bytes | None] = []
    for i in range(count):
        if data_offset and not data[bitmap + i // 8] >> i % 8 & 1:
            values.append(None)
            continue
        at = _aligned(at, element.align)
        length = _stored_length(data, at - _LENGTH_SIZE, element.length)
        value = data[at - _LENGTH_SIZE : at - _LENGTH_SIZE + length]
        if len(value) != length:
            raise ValueError("array ends inside an element")
        values.append(plain_varlena(value) if element.length == -1 else value)
        at += length
    return _Array(lengths, lower_bounds, values)


def _aligned(at: int, align: int) -> int:
    return at + -at % align


def _stored_length(data: bytes, at: int, length: int) -> int:
    if length > 0:
        return length
    if length == -2:
        return data.index(b"\0", at) + 1 - at
    if data[at] & 1:
        return data[at] >> 1
    (header,) = struct.unpack_from("<I", data, at)
    return int(header) >> 2
