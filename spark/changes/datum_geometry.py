"""Geometric types as text.

    point   x, y                  lseg     two points
    line    A, B, C               box      the upper right and the lower left corner
    circle  a point, the radius   path     | points 4 | is closed 4 | 4 | points 16 each |
                                  polygon  | points 4 | bounding box 32 | points 16 each |
    cube    | dimensions 31 bits, is a point 1 bit: 4 | lower left corner | upper right corner |

All numbers are float8. Source: Postgres `geo_decls.h`, `geo_ops.c` (path_encode), `cubedata.h`,
`cube.c` (cube_out).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from quorum_wal.spark.changes.datum_float import float8_texts
from quorum_wal.spark.changes.datum_varlena import DatumError

_POINT_SIZE = 16
_PATH = struct.Struct("<ii4x")
_POLYGON = struct.Struct("<i32x")
_CUBE = struct.Struct("<I")
_IS_POINT, _DIMENSIONS = 0x80000000, 0x7FFFFFFF


def point_text(data: bytes) -> str:
    return _points(float8_texts(data, 2))


def lseg_text(data: bytes) -> str:
    return f"[{_points(float8_texts(data, 4))}]"


def box_text(data: bytes) -> str:
    return _points(float8_texts(data, 4))


def line_text(data: bytes) -> str:
    return "{" + ",".join(float8_texts(data, 3)) + "}"


def circle_text(data: bytes) -> str:
    x, y, radius = float8_texts(data, 3)
    return f"<({x},{y}),{radius}>"


def path_text(data: bytes) -> str:
    """Raises DatumError, struct.error."""
    count, is_closed = _PATH.unpack_from(data)
    points = _stored_points(data[_PATH.size :], count)
    return f"({points})" if is_closed else f"[{points}]"


def polygon_text(data: bytes) -> str:
    """Raises DatumError, struct.error."""
    (count,) = _POLYGON.unpack_from(data)
    return f"({_stored_points(data[_POLYGON.size :], count)})"


def cube_text(data: bytes) -> str:
    """Raises DatumError, struct.error. A cube whose corners are equal is printed as a point."""
    (header,) = _CUBE.unpack_from(data)
    count = header & _DIMENSIONS
    numbers = float8_texts(data[_CUBE.size :], count if header & _IS_POINT else 2 * count)
    lower, upper = (f"({', '.join(each)})" for each in (numbers[:count], numbers[count:]))
    return lower if header & _IS_POINT or lower == upper else f"{lower},{upper}"


def _stored_points(data: bytes, count: int) -> str:
    if len(data) != _POINT_SIZE * count:
        raise DatumError(f"{count} points in {len(data)} bytes")
    return _points(float8_texts(data, 2 * count))


def _points(numbers: Sequence[str]) -> str:
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return ",".join(f"({x},{y})" for x, y in pairs)
