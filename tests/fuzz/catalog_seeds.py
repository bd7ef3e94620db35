"""Tuples of system catalogs, and decoders with layouts of a few columns: `catalog_decoder.py`."""

from __future__ import annotations

import struct

from quorum_wal.spark.changes.catalog import CatalogLayout, Column
from quorum_wal.spark.changes.catalog_decoder import CatalogDecoder
from quorum_wal.spark.changes.catalog_rows import PG_ATTRIBUTE, PG_INDEX

#: type: its oid, length and alignment
_TYPES = {
    "bool": (16, 1, 1), "char": (18, 1, 1), "name": (19, 64, 1), "int2": (21, 2, 2),
    "int4": (23, 4, 4), "oid": (26, 4, 4), "int2vector": (22, -1, 4), "anyarray": (2277, -1, 8),
}  # fmt: skip


def _decoder(oid: int, *columns: tuple[str, str]) -> CatalogDecoder:
    found = []
    for name, type_name in columns:
        type_oid, length, align = _TYPES[type_name]
        found.append(Column(name, type_oid, -1, length, align, length > 0, False, None, None))
    return CatalogDecoder(oid, CatalogLayout((oid,), tuple(found)))


INDEX_DECODER = _decoder(
    PG_INDEX,
    ("indexrelid", "oid"), ("indrelid", "oid"), ("indnkeyatts", "int2"), ("indisprimary", "bool"),
    ("indisreplident", "bool"), ("indkey", "int2vector"),
)  # fmt: skip
ATTRIBUTE_DECODER = _decoder(
    PG_ATTRIBUTE,
    ("attrelid", "oid"), ("attname", "name"), ("atttypid", "oid"), ("attlen", "int2"),
    ("attnum", "int2"), ("atttypmod", "int4"), ("attbyval", "bool"), ("attalign", "char"),
    ("attnotnull", "bool"), ("attgenerated", "char"), ("attisdropped", "bool"),
    ("attmissingval", "anyarray"),
)  # fmt: skip


def _tuple(columns: int, values: bytes, bitmap: bytes = b"") -> bytes:
    """infomask2, infomask, hoff, bitmap, padding, values."""
    size = -(-(23 + len(bitmap)) // 8) * 8
    header = struct.pack("<HHB", columns, 1 if bitmap else 0, size) + bitmap
    return header.ljust(size - 18, b"\0") + values


_VECTOR = struct.pack("<iiIii", 1, 0, 21, 2, 0) + struct.pack("<2h", 1, 3)
INDEX_ROWS = (
    _tuple(
        6,
        struct.pack("<IIhBB", 16403, 16401, 1, 1, 0)
        + struct.pack("<I", len(_VECTOR) + 4 << 2)
        + _VECTOR,
    ),
)
_ATTRIBUTE = struct.pack(
    "<I64sIhhiBcBcB", 16401, b"id", 23, 4, 1, -1, 1, b"i", 1, b"\0", 0
)  # fmt: skip
_MISSING = struct.pack("<iiIiii", 1, 0, 23, 1, 1, 7)
ATTRIBUTE_ROWS = (
    _tuple(12, _ATTRIBUTE, b"\xff\x07"),
    _tuple(
        12,
        _ATTRIBUTE.ljust(88, b"\0") + struct.pack("<I", len(_MISSING) + 4 << 2) + _MISSING,
        b"\xff\x0f",
    ),
)
