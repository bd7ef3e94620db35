"""Little-endian numbers at any offset of a byte array, inside compiled loops.

    load_u32(data, at) == int.from_bytes(data[at : at + 4], "little")

And `lent`, for arrays that a compiled loop passes to other compiled functions.

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


def _lender() -> Callable[[Numbers], Numbers]:
    @intrinsic
    def lend(typing_context: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            same = context.make_array(signature.args[0])(context, builder, arguments[0])
            same.meminfo = ir.Constant(same.meminfo.type, None)
            same.parent = ir.Constant(same.parent.type, None)
            return same._getvalue()

        return array(array), generate

    lender: Callable[[Numbers], Numbers] = lend
    return lender


#: An argument of a compiled function, or a part of one, as an array without a reference count. With
#: one, each function that gets the array counts, which costs more than most of these functions do.
#: Only for arguments, because an array of the function itself is freed after its last use.
lent = _lender()

load_u16 = _loader(16, types.uint16)
load_u32 = _loader(32, types.uint32)
load_u64 = _loader(64, types.uint64)
