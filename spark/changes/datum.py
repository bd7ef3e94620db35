"""`Datums`: prints the stored bytes of each type of a catalog as text and as JSON.

Text is the output of the type's output function with TimeZone UTC, DateStyle ISO, IntervalStyle
postgres and bytea_output hex. JSON is the output of row_to_json(). A type that is not listed here
has no `reader`, and its values are not decoded. Source: Postgres `json.c`, the `*_out` functions.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quorum_wal.spark.changes.catalog import ARRAY, DOMAIN, ENUM, Type
from quorum_wal.spark.changes.datum_array import Element, array_json, array_text
from quorum_wal.spark.changes.datum_float import float4_text, float8_text
from quorum_wal.spark.changes.datum_jsonb import json_string, jsonb_text
from quorum_wal.spark.changes.datum_network import cidr_text, inet_text, macaddr_text
from quorum_wal.spark.changes.datum_numeric import numeric_text
from quorum_wal.spark.changes.datum_time import (
    date_text,
    interval_text,
    time_text,
    timestamp_text,
    timestamptz_text,
    timetz_text,
)
from quorum_wal.spark.changes.datum_varlena import DatumError

Printer = Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class Reader:
    """The printers for a plain value; a varlena has no header here."""

    text: Printer
    json: Printer
    #: for typed columns without a matching type: whether JSON is better than text, as for arrays
    is_json: bool = False


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


def _bytea(data: bytes) -> str:
    return "\\x" + data.hex()


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


def _number_json(text: Printer) -> Printer:
    """NaN and the infinities are not JSON numbers, and are quoted."""

    def print_json(data: bytes) -> str:
        number = text(data)
        return f'"{number}"' if number[-1] in "Ny" else number

    return print_json


def _string_json(text: Printer) -> Printer:
    return lambda data: json_string(text(data))


def _timestamp_json(data: bytes) -> str:
    return json_string(timestamp_text(data, separator="T"))


def _timestamptz_json(data: bytes) -> str:
    return json_string(timestamp_text(data, "+00:00", "T"))


def _number(text: Printer) -> Reader:
    return Reader(text, _number_json(text))


def _string(text: Printer) -> Reader:
    return Reader(text, _string_json(text))


_TEXT = _string(_text)
_JSONB = Reader(jsonb_text, jsonb_text)

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
JSON, FLOAT4, FLOAT8, BPCHAR, VARCHAR = 114, 700, 701, 1042, 1043
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL = 1082, 1083, 1114, 1184, 1186
NUMERIC, UUID, JSONB = 1700, 2950, 3802

_READERS: Mapping[int, Reader] = {
    BOOL: Reader(bool_text, _bool_json),
    BYTEA: _string(_bytea),
    18: _string(_char),
    19: _string(_name),
    INT8: _number(_integer("q")),
    INT2: _number(_integer("h")),
    INT4: _number(_integer("i")),
    TEXT: _TEXT,
    OID: _string(_integer("I")),
    27: _string(_tid),
    28: _string(_integer("I")),
    JSON: Reader(_text, _text),
    142: _TEXT,
    650: _string(cidr_text),
    FLOAT4: _number(float4_text),
    FLOAT8: _number(float8_text),
    829: _string(macaddr_text),
    774: _string(macaddr_text),
    869: _string(inet_text),
    BPCHAR: _TEXT,
    VARCHAR: _TEXT,
    DATE: _string(date_text),
    TIME: _string(time_text),
    TIMESTAMP: Reader(timestamp_text, _timestamp_json),
    TIMESTAMPTZ: Reader(timestamptz_text, _timestamptz_json),
    INTERVAL: _string(interval_text),
    1266: _string(timetz_text),
    1560: _string(_bits),
    1562: _string(_bits),
    NUMERIC: _number(numeric_text),
    UUID: _string(_uuid),
    3220: _string(_lsn),
    JSONB: _JSONB,
    5069: _string(_integer("Q")),
}


class Datums:
    """The readers for one catalog's types."""

    def __init__(self, types: Mapping[int, Type]) -> None:
        self._types = types
        self._readers: dict[int, Reader | None] = dict(_READERS)

    def reader(self, type_oid: int) -> Reader | None:
        """None if values of this type are not decoded."""
        if type_oid not in self._readers:
            self._readers[type_oid] = self._make(type_oid)
        return self._readers[type_oid]

    def base_oid(self, type_oid: int) -> int:
        """The base type of a domain; other types are returned as they are."""
        while (found := self._types.get(type_oid)) is not None and found.kind == DOMAIN:
            type_oid = found.of_oid
        return type_oid

    def type_name(self, type_oid: int) -> str:
        found = self._types.get(type_oid)
        return found.name if found else str(type_oid)

    def _make(self, type_oid: int) -> Reader | None:
        found = self._types.get(type_oid)
        if found is None:
            return None
        if found.kind == DOMAIN:
            return self.reader(found.of_oid)
        if found.kind == ENUM:
            return _string(_enum(found.labels))
        if found.kind == ARRAY:
            return self._array(found)
        return None

    def _array(self, array: Type) -> Reader | None:
        stored, reader = self._types.get(array.of_oid), self.reader(array.of_oid)
        if stored is None or reader is None:
            return None
        element = Element(stored.length, stored.align, reader.text, reader.json)
        return Reader(
            lambda data: array_text(data, element),
            lambda data: array_json(data, element),
            is_json=True,
        )


def _enum(labels: Mapping[int, str]) -> Printer:
    def print_label(data: bytes) -> str:
        oid = int.from_bytes(data, "little")
        if oid not in labels:
            raise ValueError(f"the catalog has no enum label with oid {oid}")
        return labels[oid]

    return print_label
