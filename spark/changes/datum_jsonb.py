"""`jsonb` as text.

    container | header 4: count 28 bits, scalar 1, object 1, array 1 | entries 4 each | contents |
    entry     | length or end 28 bits, kind 3 bits, is an end 1 bit  |
    object    | entries of all keys, then of all values |

Every 32nd entry has the end of its content, the others have its length. Numbers and containers
begin at multiples of 4. A scalar is an array of one, with a flag. Source: Postgres `jsonb.h`,
`jsonb_util.c`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from quorum_wal.spark.changes.datum_numeric import numeric_text

_COUNT = 0x0FFFFFFF
_SCALAR, _OBJECT = 0x10000000, 0x20000000
_IS_END = 0x80000000
_KIND = 0x70000000
_STRING, _NUMERIC, _FALSE, _TRUE, _NULL = 0, 0x10000000, 0x20000000, 0x30000000, 0x40000000
_CONTAINER = 0x50000000
_WORDS = {_FALSE: "false", _TRUE: "true", _NULL: "null"}

_encode = json.JSONEncoder(ensure_ascii=False).encode


def json_string(text: str) -> str:
    """Quoted as escape_json of Postgres does: control characters other than \\b\\f\\n\\r\\t become
    \\u00XX; characters that need no escape are unchanged."""
    return _encode(text)


@dataclass(slots=True)
class _Node:
    kind: int
    begin: int
    end: int


def jsonb_text(data: bytes) -> str:
    """The output of jsonb_out. Raises ValueError, struct.error on damage."""
    (header,) = struct.unpack_from("<I", data)
    count = header & _COUNT
    if header & _OBJECT:
        nodes = list(_nodes(data, 2 * count))
        pairs = zip(nodes[:count], nodes[count:], strict=True)
        return "{" + ", ".join(f"{_node(data, k)}: {_node(data, v)}" for k, v in pairs) + "}"
    values = [_node(data, node) for node in _nodes(data, count)]
    return values[0] if header & _SCALAR else f"[{', '.join(values)}]"


def _nodes(data: bytes, count: int) -> Iterator[_Node]:
    """Nodes do not overlap, so a container is never read twice."""
    entries = struct.unpack_from(f"<{count}I", data, 4)
    begin = base = 4 + 4 * count
    for entry in entries:
        length = entry & _COUNT
        end = base + length if entry & _IS_END else begin + length
        if not begin <= end <= len(data):
            raise ValueError(f"jsonb entry from {begin} to {end} of {len(data)} bytes")
        yield _Node(entry & _KIND, begin, end)
        begin = end


def _node(data: bytes, node: _Node) -> str:
    if node.kind in _WORDS:
        return _WORDS[node.kind]
    if node.kind == _STRING:
        return json_string(data[node.begin : node.end].decode())
    begin = node.begin + -node.begin % 4
    if node.kind == _NUMERIC:
        return numeric_text(_varlena(data[begin : node.end]))
    if node.kind == _CONTAINER:
        return jsonb_text(data[begin : node.end])
    raise ValueError(f"jsonb entry of kind {node.kind:08X}")


def _varlena(data: bytes) -> bytes:
    """The value without its length."""
    if data[0] & 1:
        return data[1 : data[0] >> 1]
    (header,) = struct.unpack_from("<I", data)
    return data[4 : header >> 2]
