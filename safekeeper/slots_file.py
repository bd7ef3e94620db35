"""The slots of one timeline as bytes on disk. Pure.

    0        4         8       12                                        n      n+4
    | "QSLT" | version | count | slot | slot | ...                       | CRC32C |
      magic    u32 BE    u32

    slot: name length u8 | name | restart_lsn u64 (0: reserves nothing yet) | lost u8

A file that fails any check is refused, never reset: an empty set of slots would let WAL go that
somebody was promised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import crc32c

from safekeeper.errors import SafekeeperError

MAGIC = b"QSLT"
FORMAT_VERSION = 1

DATA_CORRUPTED = "XX001"

_HEAD = struct.Struct("!4sII")
_LENGTH = struct.Struct("!B")
_STATE = struct.Struct("!Q?")
_CRC = struct.Struct("!I")

_HINT = "Restore the file, or remove it and create the slots again; until then no WAL is removed."


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """What outlives the process."""

    name: str
    restart_lsn: int
    is_lost: bool


def encode_slots(slots: Iterable[SavedSlot]) -> bytes:
    saved = list(slots)
    parts = [_HEAD.pack(MAGIC, FORMAT_VERSION, len(saved))]
    for slot in saved:
        name = slot.name.encode()
        parts += [_LENGTH.pack(len(name)), name, _STATE.pack(slot.restart_lsn, slot.is_lost)]
    content = b"".join(parts)
    return content + _CRC.pack(crc32c.crc32c(content))


def decode_slots(data: bytes, name: str) -> list[SavedSlot]:
    """The slots in the file called `name` in messages. Raises SafekeeperError (XX001)."""
    if len(data) < _HEAD.size + _CRC.size:
        raise _damaged(f"slots file {name} has {len(data)} bytes, too few to be one")
    magic, version, count = _HEAD.unpack_from(data)
    if (magic, version) != (MAGIC, FORMAT_VERSION):
        raise _damaged(
            f"slots file {name} begins with {magic!r} version {version}, "
            f"expected {MAGIC!r} version {FORMAT_VERSION}"
        )
    (stored,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    computed = crc32c.crc32c(data[: -_CRC.size])
    if stored != computed:
        raise _damaged(f"slots file {name} has checksum {stored:08X}, computed {computed:08X}")
    try:
        return _read_slots(data[_HEAD.size : -_CRC.size], count)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise _damaged(f"slots file {name}: {error}") from error


def _read_slots(body: bytes, count: int) -> list[SavedSlot]:
    slots, at = [], 0
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(body, at)
        name_at = at + _LENGTH.size
        state_at = name_at + length
        restart_lsn, is_lost = _STATE.unpack_from(body, state_at)
        slots.append(SavedSlot(body[name_at:state_at].decode(), restart_lsn, is_lost))
        at = state_at + _STATE.size
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes after its last slot")
    return slots


def _damaged(message: str) -> SafekeeperError:
    return SafekeeperError(message, hint=_HINT, sqlstate=DATA_CORRUPTED)
