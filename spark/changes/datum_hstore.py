"""`hstore` as text and as JSON.

    | pairs 28 bits, new format 1 bit: 4 | entries 4 each: key, value, key, ... | keys and values |
    entry | is the first 1 bit, is NULL 1 bit, end of the key or value 30 bits |

A key or value begins where the one before it ends. row_to_json() uses the cast from hstore to json.
Source: Postgres `hstore.h`, `hstore_io.c` (hstore_out, hstore_to_json).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from quorum_wal.spark.changes.datum_jsonb import json_string
from quorum_wal.spark.changes.datum_varlena import DatumError

_U32 = struct.Struct("<I")
_COUNT, _IS_NEW = 0x0FFFFFFF, 0x80000000
_IS_NULL, _END = 0x40000000, 0x3FFFFFFF


def hstore_text(data: bytes) -> str:
    """Raises DatumError, struct.error."""
    return ", ".join(
        f"{_quoted(key)}=>{'NULL' if value is None else _quoted(value)}"
        for key, value in _pairs(data)
    )


def hstore_json(data: bytes) -> str:
    """Raises DatumError, struct.error."""
    pairs = (
        f"{json_string(key)}: {'null' if value is None else json_string(value)}"
        for key, value in _pairs(data)
    )
    return "{" + ", ".join(pairs) + "}"


def _pairs(data: bytes) -> Iterator[tuple[str, str | None]]:
    (header,) = _U32.unpack_from(data)
    count = header & _COUNT
    strings_at = _U32.size * (1 + 2 * count)
    if not header & _IS_NEW and header:
        raise DatumError("hstore in the format of Postgres 8.4")
    if strings_at > len(data):
        raise DatumError(f"hstore of {count} pairs in {len(data)} bytes")
    begin, key = strings_at, ""
    for number, (entry,) in enumerate(_U32.iter_unpack(data[_U32.size : strings_at])):
        end = strings_at + (entry & _END)
        if not begin <= end <= len(data):
            raise DatumError(f"hstore entry from {begin} to {end} of {len(data)} bytes")
        text = data[begin:end].decode()
        if number % 2 == 0:
            key = text
        else:
            yield key, None if entry & _IS_NULL else text
        begin = end


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
