"""`Datums`: prints the stored bytes of each type of a catalog as text and as JSON.

Text is the output of the type's output function with TimeZone UTC, DateStyle ISO, IntervalStyle
postgres and bytea_output hex, except that types such as regclass are printed as oids, because names
are not stored. JSON is the output of row_to_json(). A type that is not known here is printed as its
stored bytes, and `Reader.undecoded` says so. Source: Postgres `json.c`, the `*_out` functions.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from quorum_wal.spark.changes.catalog import ARRAY, COMPOSITE, DOMAIN, ENUM, MULTIRANGE, RANGE, Type
from quorum_wal.spark.changes.datum_array import (
    Element,
    array_json,
    array_text,
    plain_vector_text,
)
from quorum_wal.spark.changes.datum_composite import Field, composite_json, composite_text
from quorum_wal.spark.changes.datum_extension import EXTENSION_READERS
from quorum_wal.spark.changes.datum_float import float4_text, float8_text
from quorum_wal.spark.changes.datum_geometry import (
    box_text,
    circle_text,
    line_text,
    lseg_text,
    path_text,
    point_text,
    polygon_text,
)
from quorum_wal.spark.changes.datum_jsonb import json_string, jsonb_text
from quorum_wal.spark.changes.datum_jsonpath import jsonpath_text
from quorum_wal.spark.changes.datum_money import MoneyFormat
from quorum_wal.spark.changes.datum_network import cidr_text, inet_text, macaddr_text
from quorum_wal.spark.changes.datum_numeric import numeric_text
from quorum_wal.spark.changes.datum_range import Bound, multirange_text, range_text
from quorum_wal.spark.changes.datum_reader import (
    Printer,
    Reader,
    bytes_reader,
    bytes_text,
    number_reader,
    string_reader,
)
from quorum_wal.spark.changes.datum_snapshot import snapshot_text
from quorum_wal.spark.changes.datum_time import (
    date_text,
    interval_text,
    time_text,
    timestamp_text,
    timestamptz_text,
    timetz_text,
)
from quorum_wal.spark.changes.datum_tsearch import tsquery_text, tsvector_text
from quorum_wal.spark.changes.datum_varlena import DatumError


def _integer(letter: str) -> Printer:
    fields = struct.Struct(f"<{letter}")
    return lambda data: str(fields.unpack(data)[0])


def bool_text(data: bytes) -> str:
    return "t" if data[0] else "f"


def _bool_json(data: bytes) -> str:
    return "true" if data[0] else "false"


def _char(data: bytes) -> str:
    """`"char"`: a byte above 127 as three octal digits, zero as the empty string."""
    byte = data[0]
    return f"\\{byte:03o}" if byte > 127 else chr(byte) if byte else ""


def _text(data: bytes) -> str:
    """Raises DatumError, UnicodeDecodeError."""
    if b"\0" in data:
        raise DatumError("a text has a zero byte")
    return data.decode()


def _name(data: bytes) -> str:
    return data.partition(b"\0")[0].decode()


def _uuid(data: bytes) -> str:
    return str(uuid.UUID(bytes=data))


def _lsn(data: bytes) -> str:
    value = int.from_bytes(data, "little")
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"


def _bits(data: bytes) -> str:
    (length,) = struct.unpack_from("<i", data)
    return "".join(f"{byte:08b}" for byte in data[4:])[:length]


def _tid(data: bytes) -> str:
    high, low, offset = struct.unpack("<HHH", data)
    return f"({high << 16 | low},{offset})"


def _timestamp_json(data: bytes) -> str:
    return json_string(timestamp_text(data, separator="T"))


def _timestamptz_json(data: bytes) -> str:
    return json_string(timestamp_text(data, "+00:00", "T"))


def _array(element: Element) -> Reader:
    return Reader(
        partial(array_text, element=element), partial(array_json, element=element), is_json=True
    )


def _plain_vector(length: int, reader: Reader) -> Reader:
    """`int2vector` and `oidvector`: only their text differs from that of an array."""
    element = Element(length, length, reader.text, reader.json)
    return replace(_array(element), text=partial(plain_vector_text, element=element))


_TEXT = string_reader(_text)
_INT2 = number_reader(_integer("h"))
_U32 = string_reader(_integer("I"))

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
JSON, FLOAT4, FLOAT8, BPCHAR, VARCHAR = 114, 700, 701, 1042, 1043
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL = 1082, 1083, 1114, 1184, 1186
NUMERIC, UUID, JSONB, XML, BOX, MONEY = 1700, 2950, 3802, 142, 603, 790

#: regproc, regprocedure, regoper, regoperator, regclass, regtype, regconfig, regdictionary,
#: regnamespace, regrole, regcollation
NAMED_OIDS = (24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191)

_READERS: Mapping[int, Reader] = {
    BOOL: Reader(bool_text, _bool_json),
    BYTEA: string_reader(bytes_text),
    18: string_reader(_char),  # "char"
    19: string_reader(_name),  # name
    INT8: number_reader(_integer("q")),
    INT2: _INT2,
    22: _plain_vector(2, _INT2),  # int2vector
    INT4: number_reader(_integer("i")),
    TEXT: _TEXT,
    OID: _U32,
    27: string_reader(_tid),  # tid
    28: _U32,  # xid
    29: _U32,  # cid
    30: _plain_vector(4, _U32),  # oidvector
    JSON: Reader(_text, _text),
    XML: _TEXT,
    194: _TEXT,  # pg_node_tree
    600: string_reader(point_text),
    601: string_reader(lseg_text),
    602: string_reader(path_text),
    BOX: string_reader(box_text),
    604: string_reader(polygon_text),
    628: string_reader(line_text),
    650: string_reader(cidr_text),
    FLOAT4: number_reader(float4_text),
    FLOAT8: number_reader(float8_text),
    718: string_reader(circle_text),
    829: string_reader(macaddr_text),
    774: string_reader(macaddr_text),  # macaddr8
    869: string_reader(inet_text),
    BPCHAR: _TEXT,
    VARCHAR: _TEXT,
    DATE: string_reader(date_text),
    TIME: string_reader(time_text),
    TIMESTAMP: Reader(timestamp_text, _timestamp_json),
    TIMESTAMPTZ: Reader(timestamptz_text, _timestamptz_json),
    INTERVAL: string_reader(interval_text),
    1266: string_reader(timetz_text),
    1560: string_reader(_bits),
    1562: string_reader(_bits),  # varbit
    NUMERIC: number_reader(numeric_text),
    1790: _TEXT,  # refcursor
    UUID: string_reader(_uuid),
    2970: string_reader(snapshot_text),  # txid_snapshot
    3220: string_reader(_lsn),
    3614: string_reader(tsvector_text),
    3615: string_reader(tsquery_text),
    JSONB: Reader(jsonb_text, jsonb_text),
    4072: string_reader(jsonpath_text),
    5038: string_reader(snapshot_text),
    5069: string_reader(_integer("Q")),  # xid8
    **dict.fromkeys(NAMED_OIDS, _U32),
}


class Datums:
    """The readers for one catalog's types."""

    def __init__(self, types: Mapping[int, Type]) -> None:
        self._types = types
        self._readers: dict[int, Reader] = dict(_READERS)
        self._base_oids: dict[int, int] = {}

    def reader(self, type_oid: int) -> Reader:
        found = self._readers.get(type_oid)
        if found is None:
            # A damaged catalog may have a type that contains itself.
            self._readers[type_oid] = bytes_reader(f"type {self._name(type_oid)} contains itself")
            found = self._readers[type_oid] = self._make(type_oid)
        return found

    def base_oid(self, type_oid: int) -> int:
        """The base type of a domain, and text for citext; other types are returned as they are."""
        found = self._base_oids.get(type_oid)
        if found is None:
            found = self._base_oids[type_oid] = self._find_base_oid(type_oid)
        return found

    def money_decimals(self) -> int | None:
        """How many digits of money are after the point; None if the catalog does not say it."""
        money = self._types.get(MONEY)
        found = None if money is None else _money_format(money)
        return found.decimals if isinstance(found, MoneyFormat) else None

    def _find_base_oid(self, type_oid: int) -> int:
        found = self._types.get(type_oid)
        for _ in self._types:  # a damaged catalog may have a circle
            if found is None or found.kind != DOMAIN:
                break
            type_oid = found.of_oid
            found = self._types.get(type_oid)
        is_citext = found is not None and (found.extension, found.name) == ("citext", "citext")
        return TEXT if is_citext else type_oid

    def _name(self, type_oid: int) -> str:
        found = self._types.get(type_oid)
        return found.name if found else str(type_oid)

    def _make(self, type_oid: int) -> Reader:
        found = self._types.get(type_oid)
        if found is None:
            return bytes_reader(f"the catalog does not have type {type_oid}")
        if found.kind == DOMAIN:
            return self.reader(found.of_oid)
        if found.kind == ENUM:
            return string_reader(_enum(found.labels))
        if found.kind == ARRAY:
            return self._array(found)
        if found.kind in (RANGE, MULTIRANGE):
            return self._range(found)
        if found.kind == COMPOSITE:
            return self._composite(found)
        if found.oid == MONEY:
            return _money(found)
        extended = EXTENSION_READERS.get((found.extension, found.name))
        return extended or bytes_reader(f"type {found.name} is not decoded")

    def _array(self, array: Type) -> Reader:
        stored, reader = self._types.get(array.of_oid), self.reader(array.of_oid)
        if stored is None:
            return bytes_reader(f"the catalog does not have type {array.of_oid}")
        delimiter = ";" if self.base_oid(array.of_oid) == BOX else ","
        element = Element(stored.length, stored.align, reader.text, reader.json, delimiter)
        return replace(_array(element), undecoded=reader.undecoded)

    def _range(self, range_type: Type) -> Reader:
        """Also of a multirange, whose `of_oid` is its range."""
        of_range = range_type if range_type.kind == RANGE else self._types.get(range_type.of_oid)
        subtype = self._types.get(of_range.of_oid) if of_range else None
        if subtype is None:
            return _older_catalog(range_type)
        reader = self.reader(subtype.oid)
        bound = Bound(subtype.length, subtype.align, reader.text)
        print_it = range_text if range_type.kind == RANGE else multirange_text
        return replace(string_reader(partial(print_it, bound=bound)), undecoded=reader.undecoded)

    def _composite(self, composite: Type) -> Reader:
        if not composite.relation_oid:
            return _older_catalog(composite)
        readers = [self.reader(each.type_oid) for each in composite.attributes]
        fields = tuple(
            Field(each.name, each.length, each.align, each.is_dropped, reader.text, reader.json)
            for each, reader in zip(composite.attributes, readers, strict=True)
        )
        reasons = dict.fromkeys(
            reader.undecoded
            for each, reader in zip(composite.attributes, readers, strict=True)
            if reader.undecoded and not each.is_dropped
        )
        return Reader(
            partial(composite_text, fields=fields),
            partial(composite_json, fields=fields),
            is_json=True,
            undecoded=", ".join(reasons),
        )


def _older_catalog(found: Type) -> Reader:
    return bytes_reader(f"the catalog does not describe type {found.name}: take a new catalog")


def _money(money: Type) -> Reader:
    found = _money_format(money)
    if isinstance(found, Reader):
        return found
    return replace(string_reader(found.text), number=found.number)


def _money_format(money: Type) -> MoneyFormat | Reader:
    """Or the reader for money whose format the catalog does not have."""
    if not money.samples:
        return _older_catalog(money)
    try:
        return MoneyFormat.of(money.samples)
    except ValueError as error:
        return bytes_reader(f"the catalog is damaged: {error}")


def _enum(labels: Mapping[int, str]) -> Printer:
    def print_label(data: bytes) -> str:
        oid = int.from_bytes(data, "little")
        if oid not in labels:
            raise ValueError(f"the catalog has no enum label with oid {oid}")
        return labels[oid]

    return print_label
