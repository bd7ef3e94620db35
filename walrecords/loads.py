"""Little-endian numbers at any offset of a byte array, inside compiled loops.

    load_u32(data, at) == int.from_bytes(data[at : at + 4], "little")

Law: nothing here checks `at`. The caller must have checked that the bytes are there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

#: numbers and arrays of compiled loops, which the compiler types
Int: TypeAlias = Any
Bytes: TypeAlias = Any
Numbers: TypeAlias = Any

assert sys.byteorder == "little", "WAL has the byte order of its server: little-endian"


def _loader(bits: int, result: Any) -> Callable[[Bytes, Int], Int]:
    @intrinsic
    def load(typing_context: Any, data: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.gep(array.data, [arguments[1]])
            place = builder.bitcast(place, ir.IntType(bits).as_pointer())
            return builder.load(place, align=1)

        return result(data, types.int64), generate

    loader: Callable[[Bytes, Int], Int] = load
    return loader


load_u16 = _loader(16, types.uint16)
load_u32 = _loader(32, types.uint32)
load_u64 = _loader(64, types.uint64)
