"""`copy_bytes`: memcpy inside compiled loops. A slice assignment there copies single bytes.

Law: nothing here checks the offsets. The caller must have checked that the bytes and the room are
there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from quorum_wal.walrecords.loads import Bytes, Int


def _intrinsic() -> Callable[[Bytes, Int, Bytes, Int, Int], None]:
    @intrinsic
    def copy(
        typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            places = [
                builder.bitcast(
                    builder.gep(context.make_array(array_type)(context, builder, array).data, [at]),
                    ir.IntType(8).as_pointer(),
                )
                for array_type, array, at in (
                    (signature.args[0], arguments[0], arguments[1]),
                    (signature.args[2], arguments[2], arguments[3]),
                )
            ]
            cgutils.raw_memcpy(builder, *places, arguments[4], 1)
            return context.get_dummy_value()

        signature = types.none(target, types.int64, source, types.int64, types.int64)
        return signature, generate

    copier: Callable[[Bytes, Int, Bytes, Int, Int], None] = copy
    return copier


#: (target, target_at, source, source_at, length) of arrays of bytes that do not overlap
copy_bytes = _intrinsic()
