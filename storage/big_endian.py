"""Numbers and patterns in a buffer, for the modules that may be compiled. `big_endian.pxd` has the
same functions in C."""

from __future__ import annotations

import struct

_U32 = struct.Struct("!I")
_U64 = struct.Struct("!Q")


def u32_at(memory: memoryview, at: int) -> int:
    value: int = _U32.unpack_from(memory, at)[0]
    return value


def is_at(memory: memoryview, at: int, pattern: bytes) -> bool:
    """Whether the bytes there equal `pattern`; the caller has checked the length."""
    return memory[at : at + len(pattern)] == pattern


def is_same(memory: memoryview, at: int, other: bytes, other_at: int, count: int) -> bool:
    """Whether `count` bytes there equal those of `other` at `other_at`."""
    return memory[at : at + count] == other[other_at : other_at + count]


def bytes_at(memory: memoryview, at: int, count: int) -> bytes:
    """A copy of memory[at:at + count]."""
    return bytes(memory[at : at + count])


def u64_at(memory: memoryview, at: int) -> int:
    value: int = _U64.unpack_from(memory, at)[0]
    return value


def put_u32(memory: memoryview, at: int, value: int) -> None:
    _U32.pack_into(memory, at, value)


def put_u64(memory: memoryview, at: int, value: int) -> None:
    _U64.pack_into(memory, at, value)


def copy_bytes(to: memoryview, to_at: int, memory: memoryview, at: int, count: int) -> None:
    """Copies memory[at:at + count] to `to_at`."""
    to[to_at : to_at + count] = memory[at : at + count]
