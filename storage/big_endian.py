"""Numbers and patterns in a buffer, for the modules that may be compiled: `big_endian.pxd` says the
same in C."""

from __future__ import annotations

import struct

_U32 = struct.Struct("!I")


def u32_at(memory: memoryview, at: int) -> int:
    value: int = _U32.unpack_from(memory, at)[0]
    return value


def is_at(memory: memoryview, at: int, pattern: bytes) -> bool:
    """Whether the bytes there are the pattern's; the caller knows that so many are there."""
    return memory[at : at + len(pattern)] == pattern
