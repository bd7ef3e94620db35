"""pg_filenode.map: the file numbers of the catalogs that are needed to read all other catalogs.

    magic i32 | mappings i32 | 62 or (since 16) 64 x (oid u32 | file number u32) | crc32c u32

Before version 16 four empty bytes follow. The file in global/ maps shared catalogs. The file of
each database maps pg_class and others, whose file number in pg_class is 0. Pure.
Source: Postgres `utils/cache/relmapper.c`.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from quorum_wal.pageserver.errors import LayerDamaged

MAP_FILE = "pg_filenode.map"
_MAGIC = 0x592717
_HEAD = struct.Struct("<II")
_CRC = struct.Struct("<I")
_PAIR = struct.Struct("<II")
#: maximum number of mappings, by the size of the file
_ROOM = {512: 62, 524: 64}


def parse_relation_map(data: bytes) -> dict[int, int]:
    """File number by oid. Raises LayerDamaged."""
    room = _ROOM.get(len(data))
    if room is None:
        raise LayerDamaged(f"expected {MAP_FILE} of {_sizes()} bytes, found {len(data)}")
    magic, count = _HEAD.unpack_from(data)
    end = _HEAD.size + room * _PAIR.size
    (crc,) = _CRC.unpack_from(data, end)
    if magic != _MAGIC or crc != crc32c(data[:end]):
        raise LayerDamaged(f"{MAP_FILE} is damaged: magic {magic:X}, checksum {crc:08X}")
    if count > room:
        raise LayerDamaged(f"expected at most {room} mappings in {MAP_FILE}, found {count}")
    return dict(_PAIR.iter_unpack(data[_HEAD.size : _HEAD.size + count * _PAIR.size]))


def _sizes() -> str:
    return " or ".join(map(str, _ROOM))
