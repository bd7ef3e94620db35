"""The slots of one timeline, and its pageserver, as bytes on disk. Pure.

    0        4         8       12                                        n      n+4
    | "QSLT" | version | count | slot | slot | ...     | trim            | CRC32C |
      magic    u32 BE    u32

    slot: name length u8 | name | restart_lsn u64 (0: reserves nothing yet) | lost u8
    trim: suffix u64 | horizon_lsn u64 | inherited u8        in version 2 only (trim_rule.py)


Version 1 is written while no pageserver is known, so that older releases can read it. A file that
fails any check is refused, never reset: an empty set of slots would allow the removal of WAL that
was promised to clients.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import crc32c

from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.trim_rule import Trim

MAGIC = b"QSLT"
VERSION_OF_SLOTS, VERSION_WITH_TRIM = 1, 2

DATA_CORRUPTED = "XX001"

_HEAD = struct.Struct("!4sII")
_LENGTH = struct.Struct("!B")
_STATE = struct.Struct("!Q?")
_TRIM = struct.Struct("!QQ?")
_CRC = struct.Struct("!I")

_HINT = "Restore the file, or remove it and create the slots again; until then no WAL is removed."


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """The part of a slot that is saved."""

    name: str
    restart_lsn: int
    is_lost: bool


@dataclass(frozen=True, slots=True)
class SavedHolders:
    """The content of the file. `trim` None: no pageserver is known."""

    slots: tuple[SavedSlot, ...] = ()
    trim: Trim | None = None


def encode_slots(slots: Iterable[SavedSlot], trim: Trim | None = None) -> bytes:
    saved = list(slots)
    version = VERSION_OF_SLOTS if trim is None else VERSION_WITH_TRIM
    parts = [_HEAD.pack(MAGIC, version, len(saved))]
    for slot in saved:
        name = slot.name.encode()
        parts += [_LENGTH.pack(len(name)), name, _STATE.pack(slot.restart_lsn, slot.is_lost)]
    if trim is not None:
        parts.append(_TRIM.pack(trim.suffix, trim.horizon_lsn, trim.is_inherited))
    content = b"".join(parts)
    return content + _CRC.pack(crc32c.crc32c(content))


def decode_slots(data: bytes, name: str) -> SavedHolders:
    """Decodes the file; messages call it `name`. Raises SafekeeperError (XX001)."""
    if len(data) < _HEAD.size + _CRC.size:
        raise _damaged(f"slots file {name} has {len(data)} bytes, too few for a slots file")
    magic, version, count = _HEAD.unpack_from(data)
    if magic != MAGIC or version not in (VERSION_OF_SLOTS, VERSION_WITH_TRIM):
        raise _damaged(
            f"slots file {name} begins with {magic!r} version {version}, "
            f"expected {MAGIC!r} version {VERSION_OF_SLOTS} or {VERSION_WITH_TRIM}"
        )
    (stored,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    computed = crc32c.crc32c(data[: -_CRC.size])
    if stored != computed:
        raise _damaged(f"slots file {name} has checksum {stored:08X}, computed {computed:08X}")
    body = data[_HEAD.size : -_CRC.size]
    try:
        slots, at = _read_slots(body, count)
        trim = None
        if version == VERSION_WITH_TRIM:
            trim = Trim(*_TRIM.unpack_from(body, at))
            at += _TRIM.size
        if at != len(body):
            raise ValueError(f"{len(body) - at} bytes after its end")
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise _damaged(f"slots file {name}: {error}") from error
    return SavedHolders(tuple(slots), trim)


def _read_slots(body: bytes, count: int) -> tuple[list[SavedSlot], int]:
    """Returns the slots, and the offset at which they end."""
    slots, at = [], 0
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(body, at)
        name_at = at + _LENGTH.size
        state_at = name_at + length
        restart_lsn, is_lost = _STATE.unpack_from(body, state_at)
        slots.append(SavedSlot(body[name_at:state_at].decode(), restart_lsn, is_lost))
        at = state_at + _STATE.size
    return slots, at


def _damaged(message: str) -> SafekeeperError:
    return SafekeeperError(message, hint=_HINT, sqlstate=DATA_CORRUPTED)
