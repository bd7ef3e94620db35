"""`CatalogDecoder`: decodes the tuples of one system catalog.

    tuple of pg_attribute --CatalogLayout--> AttributeRow(attrelid=16401, attnum=1, attname="id", …)

The layout comes from the server itself (`catalog_snapshot.py`), because the columns of the catalogs
differ between versions. Source: Postgres `c.h` (int2vector), `htup_details.h`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from quorum_wal.spark.changes.catalog import ALIGN, CatalogLayout, Column
from quorum_wal.spark.changes.catalog_rows import ROW_OF, Row
from quorum_wal.spark.changes.datum_varlena import DatumError, plain_varlena
from quorum_wal.spark.changes.tuple_layout import MISSING, NULL, PACKED, PLAIN, lay_out
from quorum_wal.spark.errors import CatalogError

_NUMBERS = {21: struct.Struct("<h"), 23: struct.Struct("<i"), 26: struct.Struct("<I"),
            700: struct.Struct("<f")}  # fmt: skip
_BOOL, _CHAR, _NAME, _INT2VECTOR, _ANYARRAY = 16, 18, 19, 22, 2277
#: of an array without NULL, after the length: dimensions, offset, type, length, lower bound
_VECTOR = struct.Struct("<iiIii")
_ROOM = 16


class CatalogDecoder:
    """Decodes the tuples of one catalog. Raises CatalogError if its layout is not one."""

    def __init__(self, catalog_oid: int, layout: CatalogLayout) -> None:
        self._row: Callable[..., Row] = ROW_OF[catalog_oid]
        self._columns = layout.columns
        numbers = {column.name: number for number, column in enumerate(layout.columns)}
        row = ROW_OF[catalog_oid]
        absent = sorted(set(row._fields) - row._field_defaults.keys() - numbers.keys())
        if absent:
            raise CatalogError(
                f"system catalog {catalog_oid} has no column {', '.join(absent)}",
                hint="Take a new catalog with sk catalog snapshot.",
            )
        self._wanted = [(name, numbers[name]) for name in row._fields if name in numbers]

    def decode(self, stored: bytes) -> Row:
        """`stored` begins with infomask2. Raises DatumError."""
        data = np.frombuffer(stored + bytes(_ROOM), np.uint8)
        values = lay_out(data, np.zeros(1, np.int64), np.array([len(stored)]), self._columns)
        found: dict[str, Any] = {}
        for name, number in self._wanted:
            state, at = int(values.state[number, 0]), int(values.at[number, 0])
            value = stored[at : at + int(values.length[number, 0])]
            column = self._columns[number]
            if state in (NULL, MISSING) and column.type_oid == _ANYARRAY:
                found[name] = None
            elif state == PLAIN or (state == PACKED and column.type_oid == _ANYARRAY):
                found[name] = _read(value, column, is_packed=state == PACKED)
            else:
                raise DatumError(f"a row of a system catalog has no readable column {name}")
        return self._row(**found)


def _read(value: bytes, column: Column, *, is_packed: bool) -> Any:
    """Raises DatumError."""
    kind = column.type_oid
    try:
        if is_packed:
            return plain_varlena(value)
        if kind in _NUMBERS:
            return _NUMBERS[kind].unpack(value)[0]
        if kind == _BOOL:
            return value[0] != 0
        if kind == _CHAR:
            letter = value.rstrip(b"\0").decode("latin-1")
            if column.name.endswith("align") and letter not in ALIGN:
                raise DatumError(f"column {column.name} of a system catalog is {letter!r}")
            return letter
        if kind == _NAME:
            return value.partition(b"\0")[0].decode()
        if kind == _INT2VECTOR:
            count = _VECTOR.unpack_from(value)[3]
            return struct.unpack_from(f"<{count}h", value, _VECTOR.size)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DatumError(f"column {column.name} of a system catalog: {error}") from error
    if kind == _ANYARRAY:
        return value
    raise DatumError(f"column {column.name} of a system catalog has type {kind}")
