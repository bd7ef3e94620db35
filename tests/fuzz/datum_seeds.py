"""Stored values of the types that have a format of their own: the parsers of `spark/changes`.

Each is a value without the header of its length, as a tuple, an array or a composite value has it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

from quorum_wal.spark.changes import datum_varlena
from quorum_wal.spark.changes.datum_array import (
    Element,
    array_json,
    array_text,
    plain_vector_text,
)
from quorum_wal.spark.changes.datum_composite import Field, composite_json, composite_text
from quorum_wal.spark.changes.datum_geometry import (
    box_text,
    circle_text,
    cube_text,
    line_text,
    lseg_text,
    path_text,
    point_text,
    polygon_text,
)
from quorum_wal.spark.changes.datum_hstore import hstore_json, hstore_text
from quorum_wal.spark.changes.datum_jsonb import jsonb_text
from quorum_wal.spark.changes.datum_jsonpath import jsonpath_text
from quorum_wal.spark.changes.datum_ltree import ltree_text
from quorum_wal.spark.changes.datum_numeric import numeric_text
from quorum_wal.spark.changes.datum_range import Bound, multirange_text, range_text
from quorum_wal.spark.changes.datum_snapshot import snapshot_text
from quorum_wal.spark.changes.datum_tsearch import tsquery_text, tsvector_text
from quorum_wal.spark.changes.datum_vector import halfvec_text, sparsevec_text, vector_text

Read = Callable[[bytes], object]

TEXT = -1, 4
INT4 = 4, 4


def short(value: bytes) -> bytes:
    """With a header of one byte."""
    return bytes([len(value) + 1 << 1 | 1]) + value


def long(value: bytes) -> bytes:
    """With a header of four bytes."""
    return struct.pack("<I", len(value) + 4 << 2) + value


def pglz(length: int) -> bytes:
    """An `a`, and a match of the bytes before it, as a compressed value."""
    content = b"\x02" + b"a" + bytes([0x0F, 0x01, length - 1 - 18])
    return struct.pack("<II", len(content) + 8 << 2 | 2, length) + content


ARRAY = struct.pack("<iiIii", 1, 0, 25, 2, 1) + long(b"abcd") + long(b"x")
ARRAY_WITH_NULL = struct.pack("<iiIii", 1, 28, 23, 3, 1) + b"\x05\0\0\0" + struct.pack("<ii", 7, 8)
VECTOR = struct.pack("<iiIiihh", 1, 0, 21, 2, 0, 7, 8)

RANGE = struct.pack("<Iii", 3904, 1, 5) + b"\x02"
TEXT_RANGE = struct.pack("<I", 16400) + short(b'a"b') + long(b"c,d") + b"\x06"
MULTIRANGE = (
    struct.pack("<III", 4451, 2, 8) + b"\x02\x02" + bytes(2) + struct.pack("<4i", 1, 5, 7, 9)
)

COMPOSITE = (
    struct.pack("<iI6xHHB", -1, 16400, 2, 0, 24) + bytes(1) + struct.pack("<i", 7) + short(b"(x)")
)
COMPOSITE_WITH_NULL = struct.pack("<iI6xHHB", -1, 16400, 2, 1, 24) + b"\x02" + short(b"y")
FIELDS = (
    Field("a", 4, 4, False, bytes.hex, bytes.hex),
    Field("b", -1, 4, False, bytes.hex, bytes.hex),
    Field("gone", -1, 4, True, bytes.hex, bytes.hex),
)

NUMBERS = struct.pack("<4d", 1.5, -2e300, 0.0, 7.0)
PATH = struct.pack("<iii", 2, 1, 0) + NUMBERS
POLYGON = struct.pack("<i4d", 2, 1.5, 7.0, 0.0, -2.0) + NUMBERS
CUBE = struct.pack("<I", 2) + NUMBERS
CUBE_POINT = struct.pack("<I", 0x80000004) + NUMBERS

TSVECTOR = (
    struct.pack("<III", 2, 1 << 1, 3 << 1 | 1 | 1 << 12) + b"abcd" + struct.pack("<HH", 1, 0xC007)
)
TSQUERY = (
    struct.pack("<I", 4)
    + struct.pack("<BBhI4x", 2, 4, 2, 2)
    + struct.pack("<BB?xII", 1, 9, True, 0, 1)
    + struct.pack("<BBhI4x", 2, 1, 0, 1)
    + struct.pack("<BB?xII", 1, 0, False, 0, 1 | 2 << 12)
    + b"a\0b\0"
)
HSTORE = struct.pack("<IIIII", 0x80000002, 0x80000001, 3, 4, 0x40000004) + b"avvk"
LTREE = struct.pack("<HxxH", 2, 3) + b"Top" + bytes(3) + struct.pack("<H", 1) + b"a" + bytes(5)
HALFVEC = struct.pack("<HH2e", 2, 0, 1.5, -0.25)
SPARSEVEC = struct.pack("<iiiiiff", 9, 2, 0, 0, 8, 1.5, -2.0)
VECTOR_OF_FLOATS = struct.pack("<HH3f", 3, 0, 1.5, 1e-20, 3.0)
SNAPSHOT = struct.pack("<IQQQ", 1, 10, 20, 15)

#: $.a[*] ? (@ > 1.5)
JSONPATH = struct.pack("<I", 0x80000001) + b"".join(
    (
        struct.pack("<BxxxI", 27, 8),
        struct.pack("<BxxxII", 25, 16, 1) + b"a\0" + bytes(2),
        struct.pack("<BxxxI", 21, 8),
        struct.pack("<BxxxII", 29, 0, 12),
        struct.pack("<BxxxIII", 11, 0, 16, 24),
        struct.pack("<BxxxI", 26, 0),
        struct.pack("<BxxxI", 2, 0) + long(struct.pack("<HHH", 0x8080, 1, 5000)),
    )
)
JSONB = struct.pack("<II", 0x50000001, 0x80000001) + b"a"
NUMERIC = struct.pack("<HHH", 0x8080, 1, 5000)

_ELEMENT = Element(*TEXT, bytes.hex, bytes.hex)
_BOUND, _TEXT_BOUND = Bound(*INT4, bytes.hex), Bound(*TEXT, bytes.hex)


def _of_fixed_length(data: bytes) -> object:
    is_short = len(data) < len(NUMBERS)
    return [
        read(data) for read in ((line_text, circle_text) if is_short else (lseg_text, box_text))
    ]


#: module, parser -> how it is called, valid values
DATUMS: dict[str, tuple[Read, tuple[bytes, ...]]] = {
    "datum_array.array_text": (partial(array_text, element=_ELEMENT), (ARRAY,)),
    "datum_array.array_json": (
        partial(array_json, element=Element(*INT4, bytes.hex, bytes.hex)),
        (ARRAY_WITH_NULL,),
    ),
    "datum_array.plain_vector_text": (
        partial(plain_vector_text, element=Element(2, 2, bytes.hex, bytes.hex)),
        (VECTOR,),
    ),
    "datum_range.range_text": (partial(range_text, bound=_BOUND), (RANGE, b"\0\0\0\0\x01")),
    "datum_range.range_text (text)": (partial(range_text, bound=_TEXT_BOUND), (TEXT_RANGE,)),
    "datum_range.multirange_text": (partial(multirange_text, bound=_BOUND), (MULTIRANGE,)),
    "datum_composite.composite_text": (
        partial(composite_text, fields=FIELDS),
        (COMPOSITE, COMPOSITE_WITH_NULL),
    ),
    "datum_composite.composite_json": (
        partial(composite_json, fields=FIELDS),
        (COMPOSITE, COMPOSITE_WITH_NULL),
    ),
    "datum_geometry.point_text": (point_text, (NUMBERS[:16],)),
    "datum_geometry.*": (
        _of_fixed_length,
        (NUMBERS[:24], NUMBERS),
    ),
    "datum_geometry.path_text": (path_text, (PATH,)),
    "datum_geometry.polygon_text": (polygon_text, (POLYGON,)),
    "datum_geometry.cube_text": (cube_text, (CUBE, CUBE_POINT)),
    "datum_tsearch.tsvector_text": (tsvector_text, (TSVECTOR,)),
    "datum_tsearch.tsquery_text": (tsquery_text, (TSQUERY, bytes(4))),
    "datum_hstore.hstore_text": (hstore_text, (HSTORE, bytes(4))),
    "datum_hstore.hstore_json": (hstore_json, (HSTORE, bytes(4))),
    "datum_ltree.ltree_text": (ltree_text, (LTREE,)),
    "datum_vector.vector_text": (vector_text, (VECTOR_OF_FLOATS,)),
    "datum_vector.halfvec_text": (halfvec_text, (HALFVEC,)),
    "datum_vector.sparsevec_text": (sparsevec_text, (SPARSEVEC,)),
    "datum_snapshot.snapshot_text": (snapshot_text, (SNAPSHOT,)),
    "datum_jsonpath.jsonpath_text": (jsonpath_text, (JSONPATH,)),
    "datum_jsonb.jsonb_text": (jsonb_text, (JSONB,)),
    "datum_numeric.numeric_text": (numeric_text, (NUMERIC,)),
    "datum_varlena.plain_varlena": (datum_varlena.plain_varlena, (short(b"x"), pglz(100))),
}


def compile_all() -> None:
    """A first call compiles and imports, which no case has the time for."""
    for read, values in DATUMS.values():
        read(values[0])
    datum_varlena.plain_varlena(pglz(100))
